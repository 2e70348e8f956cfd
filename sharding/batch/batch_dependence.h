// What of a training graph depends on the batch, and along which axis: the batch axes of
// TrainingGraph::inputs, followed through the factor rules, from inputs to what they influence, then from
// gradients back to what made them. It is found for the whole graph, not for a stage alone, because which
// axis of a stage's input is the batch follows from the stages that made it.
#pragma once

#include <vector>

#include "ir/graph/training_graph.h"

namespace pipeshard {

struct BatchDependence {
  std::vector<int> axis_of_value;   // by value index; -1: not cut with the batch
  std::vector<int> factor_of_node;  // by node index, into FactorRule::factors; -1: none
  std::vector<bool> influenced;     // by value index: computed from batch inputs
};
BatchDependence followBatch(const TrainingGraph& training);

}  // namespace pipeshard
