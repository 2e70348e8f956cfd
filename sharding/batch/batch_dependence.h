// What of a training graph depends on the batch, and how: the batch axes of TrainingGraph::inputs followed
// through the factor rules, from inputs to what they influence, then from gradients back to what made them.
// Of the whole graph: where a stage's inputs come from other stages, only these know.
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
