// Weights and biases of LSTM, GRU and RNN that are folded into the operators' inputs. Internal to
// onnx_import/exporter.
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "onnx_import/exporter/parameter_unfolding.h"

namespace pipeshard {

// Of the node, if it is such an operator: each of its constants that holds all rows of parameters that its
// call mentions becomes these parameters, in PyTorch's order of gates, and the nodes that bring them into
// ONNX's (folded_parameters.h). Left as it is: what holds other parameters, too, or has a form of its own.
void unfoldRecurrence(Unfolding& unfolding, size_t node);

// LSTM, GRU or RNN.
bool isRecurrence(const Node& node);

// Initializers that such operators alone read, as their weights, recurrent weights or biases, all of them
// with the same weights; with the module of the first ("decoder.rnn"; "" for the outermost). Where an
// exporter has folded them, gates have another order and both biases are one tensor, but each of its elements
// is one of a parameter: an update that takes each element by itself is the module's.
std::map<ValueId, std::string> recurrentWeights(const Graph& graph);

}  // namespace pipeshard
