// Weights and biases of LSTM, GRU and RNN that are folded into the operators' inputs. Internal to
// onnx_import/exporter.
#pragma once

#include <cstddef>

#include "onnx_import/exporter/parameter_unfolding.h"

namespace pipeshard {

// Of the node, if it is such an operator: each of its constants that holds all rows of parameters that its
// call mentions becomes these parameters, in PyTorch's order of gates, and the nodes that bring them into
// ONNX's (folded_parameters.h). Left as it is: what holds other parameters, too, or has a form of its own.
void unfoldRecurrence(Unfolding& unfolding, size_t node);

}  // namespace pipeshard
