// The update phase: one optimizer function per parameter.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ir/graph/training_graph.h"
#include "ir/plan/optimizer.h"
#include "onnx_import/autodiff/gradient_context.h"

namespace pipeshard {

// An optimizer's update of one parameter, as a call of a function of the pipeshard domain. Its inputs are the
// parameter, its gradient, the states, the step if it counts, the hyperparameters, in float64 the numbers of
// the schedule; its outputs the new parameter and states.
struct UpdateRecipe {
  std::string function;
  std::string overload;             // the learning rate's schedule; "" for one rate
  std::vector<std::string> states;  // their kinds
  bool counts_steps = false;
  std::vector<double> hyperparameters;
  std::vector<double> schedule;
  std::map<std::string, Attribute> attributes;
};
UpdateRecipe updateRecipe(const OptimizerSpec& optimizer);

// For every parameter that a gradient reaches: the graph inputs "<parameter>.gradient" and
// "<parameter>.<state>", a node, and its outputs "<parameter>.updated" and "<parameter>.<state>.updated"; and
// `step`, if the optimizer counts. Fills in the parameters' roles. Scalar hyperparameters are shared
// constants of the parameter's type.
void appendUpdates(BackwardBuilder& builder, const OptimizerSpec& optimizer,
                   const std::vector<ParameterGroup>& groups, TrainingGraph& training);

// The optimizer of the parameter of that name, after what its groups say. Error(kUsage) for a pattern that is
// no regular expression.
OptimizerSpec optimizerOf(const std::string& parameter, OptimizerSpec optimizer,
                          const std::vector<ParameterGroup>& groups);

// "group 'bias|norm': 25 parameters, weight_decay=0" of each group: how many of the weights that are trained
// have such names. Error(kUsage) for a pattern that is no regular expression or found in none of them.
std::vector<std::string> groupNotes(const Graph& graph, const std::vector<ParameterGroup>& groups);

}  // namespace pipeshard
