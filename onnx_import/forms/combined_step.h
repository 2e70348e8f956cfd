// A model and its TrainingInfoProtos (onnx_import/format/training_info.h) as one graph: the step of training
// that they mean. Internal to onnx_import/forms.
//
// Several follow each other: what one assigns to an initializer, the next reads.
//
//   first: g := gradient of w       second: w := w - 0.1 g       together: w := w - 0.1 (gradient of w)
//
// A Gradient operator names what it differentiates: y by xs, all else held. Here it reads y and the xs
// themselves, so that the flow of data shows what it depends on. It is never run.
#pragma once

#include <map>
#include <vector>

#include "ir/graph/graph.h"
#include "onnx_import/format/training_info.h"

namespace pipeshard {

struct CombinedStep {
  // The model's graph, its ids unchanged, then the algorithms.
  Graph graph;
  std::map<ValueId, ValueId> updates;    // initializers, and their content after the step
  std::map<ValueId, ValueId> gradients;  // inputs and initializers, and the gradient of `loss` by them
  ValueId loss;                          // what Gradient differentiates; invalid where there is none
};

// Error(kBadModel) for what contradicts itself (a binding of what is not there or twice, a name defined
// twice), and for what pipeshard's step is not: gradients of several values, of gradients, at other values
// than those of the step, or after weights have changed.
CombinedStep combineStep(const Graph& graph, const std::vector<TrainingInfo>& infos);

// By value: do the contents of these depend on it? Themselves included.
std::vector<bool> valuesBefore(const Graph& graph, const std::vector<ValueId>& values);

bool isGradient(const Node& node);

}  // namespace pipeshard
