// Where parameters live, given the stage of every node. Internal to partition/.
#pragma once

#include <vector>

#include "ir/graph/training_graph.h"
#include "ir/plan/plan.h"

namespace pipeshard {

// By node of a pass: its layer in the plan, one of its stage's. Forward nodes never read what a later layer
// of their stage makes, and backward nodes never what the backward nodes of an earlier layer make: passes may
// run layer by layer. Other nodes: 0.
std::vector<int> nodeLayers(const TrainingGraph& training, const Plan& plan,
                            const std::vector<int>& node_stages);

// By parameter: the stages whose forward or backward nodes read it, ascending, without repetitions.
std::vector<std::vector<int>> parameterReaders(const TrainingGraph& training,
                                               const std::vector<int>& node_stages);

// By parameter: the first stage that reads it; for one that is trained but not read, the stage of its first
// gradient part; -1 for one that nothing needs.
std::vector<int> parameterOwners(const TrainingGraph& training, const std::vector<int>& node_stages);

// A gradient reaches it and the optimizer updates it; any other parameter stays as it is.
inline bool isTrained(const Parameter& parameter) {
  return !parameter.gradient_parts.empty() && parameter.updated.valid();
}

// The nodes of `phase` that the values depend on through nodes of that phase, in graph order. `producer` as
// in UseDef.
std::vector<NodeId> nodesBehind(const TrainingGraph& training, const std::vector<NodeId>& producer,
                                const std::vector<ValueId>& values, Phase phase);

// What the update of a parameter gives: its new value, then its states.
std::vector<ValueId> updatedValues(const Parameter& parameter);

}  // namespace pipeshard
