// The part of a graph that makes a new weight of its gradient. Internal to onnx_import/forms.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "onnx_import/forms/step_graph.h"

namespace pipeshard {

// What is asked for each of the parameters: StepGraph::fromBatch and fromGiven, and step counters: scalars
// that an output is, plus 1.
struct CutFacts {
  std::vector<bool> from_batch;
  std::vector<bool> from_given;
  std::map<ValueId, ValueId> counters;  // leaf to output
};
CutFacts cutFacts(const StepGraph& step, const std::vector<ValueId>& parameters);

struct UpdateCone {
  ValueId parameter;
  ValueId gradient;              // as the update uses it
  std::vector<ValueId> states;   // tensors of its shape that the loss does not depend on
  std::vector<ValueId> outputs;  // the new parameter, then the new states in that order
  std::vector<ValueId> scalars;  // step, learning rate: inputs, and initializers that an output counts on
  std::vector<NodeId> nodes;     // between these
};

// The same with the gradient without a constant factor that it has in the cone's; nullopt if it has none.
//   v' = 0.9 v - 0.2 g: of the gradient -0.2 g, or 0.2 g, that of g
std::optional<UpdateCone> withoutFactor(const StepGraph& step, const CutFacts& facts, UpdateCone cone);

// Of the output `updated`, the new value of `parameter`. Error(kBadModel) naming the parameter where no
// single gradient can be told, for one that is clipped, and for a state without a new value. `gradient`: the
// parameter's, where it is known.
UpdateCone updateCone(const StepGraph& step, const CutFacts& facts, ValueId parameter, ValueId updated,
                      ValueId gradient = {});

// Throws Error(kBadModel): the update of the parameter is not taken, for that reason, and what to do.
[[noreturn]] void refuseUpdate(const std::string& parameter, const std::string& reason);

}  // namespace pipeshard
