// What the readers of a value contribute to its gradient becomes one value.
//
//   x [10] is read as x[0:4], x[4:7] and a whole: Sum(the whole's, Concat(that of 0:4, that of 4:7, zeros
//   [3]))
//
// A recurrent layer reads its sequence step by step: padding each step's gradient to the whole, and adding
// these, would take time and memory quadratic in the steps.
#pragma once

#include <vector>

#include "onnx_import/autodiff/gradient_context.h"

namespace pipeshard {

// The gradient of a value of this shape from all `parts`, of one type; at least one. Emitted by `context`.
ValueId joinGradientParts(GradientContext& context, const Shape& shape,
                          const std::vector<GradientPart>& parts);

}  // namespace pipeshard
