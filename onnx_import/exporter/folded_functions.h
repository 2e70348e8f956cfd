// Functions of single numbers that the exporter's optimizer has computed of a parameter, undone. Internal to
// onnx_import/exporter.
//
// The temperature of a contrastive loss, logit_scale.exp(), is a constant 'exp' in the file. What it was
// computed from is its logarithm:
//   'exp' = 14.2857  →  logit_scale = 2.65926, and logit_scale  →  Exp  →  'exp'
// Digits that the function has swallowed are gone: a gate of sigmoid(12) is 0.999994 with steps of 6e-8,
// which are 0.01 of the number before. Such a parameter is not made again.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "ir/base/data_type.h"
#include "onnx_import/exporter/parameter_unfolding.h"

namespace pipeshard {

// ONNX's operators, the first on the parameter.
using FoldedFunction = std::vector<std::string>;

// The functions among `fold`'s calls, which lose their names there: the rest may be views. Of several only
// -exp(x) and exp(-x) are known, by the sign of what they gave (`bytes`, elements of `type`). Empty where
// there is none.
std::optional<FoldedFunction> takeFunction(Fold& fold, DataType type, const std::vector<std::byte>& bytes);

// The numbers that `function` has made these of. Nothing where one of them is not known to 1e-5 of it (of 1,
// where it is less).
std::optional<std::vector<std::byte>> beforeFunction(const FoldedFunction& function, DataType type,
                                                     const std::vector<std::byte>& bytes);

}  // namespace pipeshard
