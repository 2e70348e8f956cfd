// A whole training step in a file: weights and states of an optimizer go in, the loss and their new values
// come out, all of plain operators.
//
//   inputs   w, v, x, labels          outputs   loss, w - 0.1 * v', v' = 0.9 * v + g
//
// The new value of a weight is known by its last operation (StepGraph::updatedLeaf). The gradient in it is
// the last value on the way from the batch to the update that all of it goes through, before any weight or
// state takes part. What is done with it is compared with our optimizers (optimizer_fit.h), so that names and
// the way it is written do not matter. Then the update is taken out: gradients become outputs (a joint
// graph), states, step and learning rate are no inputs any more.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ir/plan/optimizer.h"
#include "onnx_import/autodiff/imported_backward.h"
#include "onnx_import/forms/step_graph.h"

namespace pipeshard {

struct ImportedState {
  std::string parameter;
  std::string kind;    // "momentum", "first_moment", "second_moment": as ours are called
  std::string value;   // the input or initializer
  std::string output;  // its new value
};

struct ImportedOptimizer {
  OptimizerSpec spec;
  // The input that gives the learning rate; "": it is in spec. Then spec has the default.
  std::string learning_rate;
  std::string step;    // the input or initializer that counts, or ""
  int first_step = 0;  // of Adam: what it is in the first update
  std::vector<ImportedState> states;
};

struct ImportedUpdates {
  std::vector<ImportedGradient> gradients;  // values, not outputs yet
  std::vector<std::string> outputs;         // new weights, states and steps
  std::vector<std::string> weight_inputs;
  ImportedOptimizer optimizer;
};

// A parameter and the output that is its new value.
using UpdatedParameters = std::vector<std::pair<ValueId, ValueId>>;
// The outputs whose last operation says that they are.
UpdatedParameters updatedParameters(const StepGraph& step);

// What these updates are; nullopt if there are none that depend on the batch. Error(kBadModel) naming the
// weight when its update is none of SGD (with momentum), Adam and AdamW, and why; or when weights are updated
// in different ways. `gradients`: those that are known, by parameter.
std::optional<ImportedUpdates> findUpdates(const StepGraph& step, const UpdatedParameters& updated,
                                           const std::map<ValueId, ValueId>& gradients = {});

// Removes all that looks like an update: new values of weights and states, step counters, and the inputs that
// only they read. What is left is a forward pass.
void leaveOutUpdates(Graph& graph, const StepGraph& step);

// Makes the gradients outputs, marked as such, and removes what belongs to the update alone.
void removeUpdates(Graph& graph, const ImportedUpdates& updates);

}  // namespace pipeshard
