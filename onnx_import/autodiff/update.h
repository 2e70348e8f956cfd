// The update phase: one optimizer function per parameter.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ir/graph/training_graph.h"
#include "ir/plan/optimizer.h"
#include "onnx_import/autodiff/gradient_context.h"
#include "onnx_import/autodiff/training.h"

namespace pipeshard {

// An optimizer's update of one parameter, as a call of a function of the pipeshard domain. Its inputs are the
// parameter, its gradient, the states, the step if it counts, the hyperparameters, in float64 the numbers of
// the schedule; its outputs the new parameter and states.
struct UpdateRecipe {
  std::string function;             // "": the optimizer is no one function (readsWholeTensors)
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
// constants of the parameter's type. Where gradients are clipped, the update reads
// "<parameter>.gradient.clipped"; by their norm, this is made with the input `gradient_scale`, which the step
// provides (ir/graph/training_graph.h).
void appendUpdates(BackwardBuilder& builder, const OptimizerSpec& optimizer,
                   const std::vector<ParameterGroup>& groups, const UpdateExtras& extras,
                   TrainingGraph& training);

// The optimizer of the parameter, after what its groups say (isNamedBy in ir/graph/weight_role.h).
// Error(kUsage) for a pattern that is no regular expression.
OptimizerSpec optimizerOf(const Value& parameter, OptimizerSpec optimizer,
                          const std::vector<ParameterGroup>& groups);

// "group 'bias|norm': 25 parameters, weight_decay=0" of each group: how many of the weights that are trained
// have such names. Error(kUsage) for a pattern that is no regular expression or found in none of them.
std::vector<std::string> groupNotes(const Graph& graph, const std::vector<ParameterGroup>& groups);

// With Muon: which parameters it updates, and which AdamW.
std::vector<std::string> muonNotes(const Graph& graph, const OptimizerSpec& optimizer,
                                   const std::vector<ParameterGroup>& groups);

// ---- updates that read whole tensors (tensor_optimizers.cc) ----

// LAMB, Adafactor and Muon are several nodes, whose sums and products are standard operators: so the sharding
// rules see them, and a parameter that is cut over devices gets its norms, its sums of rows, or all of it, by
// collectives that are planned and priced like any others.
bool readsWholeTensors(OptimizerSpec::Kind kind);

// Of a parameter of this shape: Muon updates matrices, and AdamW what is none, or is left to it by a group
// (no iterations).
OptimizerSpec optimizerOfShape(const OptimizerSpec& spec, const Shape& shape);

// Appends the update of one parameter: fills in its states and `updated`. `gradient`: as it is read, clipped
// or not; `step` counts the steps; `spec.kind` reads whole tensors.
void appendTensorUpdate(BackwardBuilder& builder, const OptimizerSpec& spec, ValueId step, ValueId gradient,
                        Parameter& parameter);

}  // namespace pipeshard
