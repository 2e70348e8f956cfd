// ONNX Runtime's training artifacts (onnxruntime.training.artifacts): what each of their files is, and
// training_model.onnx as a joint graph.
//
//   inputs   x, labels, fc.weight, fc.bias, fc.weight_grad.accumulation.buffer, ..., lazy_reset_grad
//   nodes    ..., com.microsoft::InPlaceAccumulatorV2(fc.weight_grad.accumulation.buffer, fc.weight_grad,
//            lazy_reset_grad) -> fc.weight_grad.accumulation.out
//   outputs  onnx::loss::3, logits, fc.weight_grad.accumulation.out, ...
//
// An accumulator adds a gradient to its first input, in place, and gives a flag. What it is given becomes an
// output and is marked as the gradient of fc.weight; the accumulator, its buffer, its flag and
// lazy_reset_grad go. The first output is the loss. Inputs that are read like weights but have no accumulator
// are frozen.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

struct OrtTraining {
  std::string loss;
  size_t gradients = 0;
  std::vector<std::string> weight_inputs;  // trained and frozen
};

// Reduces the graph, if it has accumulators; nothing otherwise. Error(kBadModel) naming an accumulator whose
// weight is not in the file; for a file that is the optimizer of the artifacts alone (what to give instead,
// and which --optimizer it means); for a dump of ORTModule, whose loss is not in the file; and for the single
// training graphs of ONNX Runtime before 2021.
std::optional<OrtTraining> takeOrtTraining(Graph& graph);

// Inputs that are read like weights: floating-point, of static shape, where a layer has its weights, or
// called like a parameter or a buffer of a module. In order.
std::vector<std::string> inputsLikeWeights(const Graph& graph);

}  // namespace pipeshard
