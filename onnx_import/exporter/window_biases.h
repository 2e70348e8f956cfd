// Tables of biases by relative position (Liu et al. 2021, Swin Transformer, section 3.2) that are folded into
// what an attention in windows adds. Internal to onnx_import/exporter.
#pragma once

#include <cstddef>

#include "onnx_import/exporter/parameter_unfolding.h"

namespace pipeshard {

// Of a constant, and the first node that reads it: the table again, and the nodes that read it for every pair
// of places. True if that is what the constant is: the parameter and the index have the names that Swin's
// code gives them, and pairs of the same difference in rows and columns have the same numbers.
bool unfoldWindowBiases(Unfolding& unfolding, size_t reader, ValueId constant, const Fold& fold);

}  // namespace pipeshard
