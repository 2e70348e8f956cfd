// Which optimizer an update is, by its results: hyperparameters are solved for from a few points, and then
// our own function (docs/operators.md) must give the same at others. Internal to onnx_import/forms.
//
//   p' = p - 0.1 g         sgd:lr=0.1
//   v' = 0.9 v + g, p' = p - 0.1 v'     sgd:lr=0.1,momentum=0.9
//   m', v' as averages of g and g^2, corrected by the step     adam
//
// What training starts from is 0 for all states, so that a state may be a multiple of ours: v' = 0.9 v - 0.1
// g with p' = p + v' is the second line, too.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ir/plan/optimizer.h"
#include "onnx_import/forms/element_function.h"

namespace pipeshard {

// The inputs of the function: the parameter, its gradient, `states`, then the step and the learning rate if
// they are inputs. Its outputs: the new parameter and states.
struct UpdateInputs {
  size_t states = 0;
  bool step = false;
  bool learning_rate = false;
};

struct FittedUpdate {
  std::optional<OptimizerSpec> spec;  // learning_rate is the default if it is an input
  // Of Adam: the states' positions, first moment and second.
  std::vector<size_t> moments;
  int first_step = 0;          // of Adam: what the file's step is in the first update
  double gradient_weight = 1;  // of a momentum: the factor of the gradient in it
  std::string reason;          // why there is no spec
};

FittedUpdate fitUpdate(const ElementFunction& update, const UpdateInputs& inputs);

}  // namespace pipeshard
