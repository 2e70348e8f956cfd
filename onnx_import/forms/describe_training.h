// How a model is trained, written as ONNX says it: a TrainingInfoProto, for other tools that read them, and
// for reduceForm (model_form.h), which takes the same loss, parameters and optimizer from it.
//
//   algorithm            Gradient(xs: the parameters, zs: the inputs; y: the loss), then a parameter's
//   update:
//                        Momentum (ai.onnx.preview.training) for SGD with momentum; the plain operators of
//                        our function (docs/operators.md) for SGD, Adam and AdamW. The preview's Adam is
//                        another one: it adds epsilon before the moments are corrected, and decays after the
//                        step.
//   its initializers     states, zeros as large as their parameters; a count of steps from 0
//   update_binding       parameters, states and the count
//   initialization       zeros for states and the count; parameters keep what they have
#pragma once

#include <string>
#include <vector>

#include "ir/graph/graph.h"
#include "ir/plan/optimizer.h"

namespace pipeshard {

struct TrainingDescription {
  std::string loss;                     // a value of one number
  std::vector<std::string> parameters;  // initializers of static shape that the loss depends on
  OptimizerSpec optimizer;              // not kNone
  std::vector<ParameterGroup> groups = {};
};

// Gives a forward graph as read its TrainingInfoProto, in the place of any that it has; with it the opset of
// Gradient, and IR version 7 at least. Error(kConfiguration) for a graph of operators before opset 16, and
// for a loss or parameter that is not there, or no parameter.
void describeTraining(Graph& graph, const TrainingDescription& training);

}  // namespace pipeshard
