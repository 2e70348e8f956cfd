// Methods of choosing shardings, as limits on the one problem (shard_stage.h says what each means). Internal to shard_stage.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sharding/sharding_problem.h"

namespace pipeshard {

struct ShardingMethod {
  enum class Kind : uint8_t { kAuto, kDataParallel, kZero2, kZero3, kTensorParallel, kMegatron, kManual };
  Kind kind = Kind::kAuto;
  int data = 1;    // kMegatron
  int tensor = 1;  // kMegatron
};
// Error(kConfiguration) that lists the methods, the nearest first.
ShardingMethod parseMethod(std::string_view text);

// What depends on the batch, and how: the batch axes of TrainingGraph::inputs followed through the factor rules, from inputs to what they
// influence, then from gradients back to what made them.
struct BatchDependence {
  std::vector<int> axis_of_value;   // by value index; -1: not cut with the batch
  std::vector<int> factor_of_node;  // by node index, into FactorRule::factors; -1: none
  std::vector<bool> influenced;     // by value index: computed from batch inputs
};
BatchDependence followBatch(const TrainingGraph& training, const std::vector<NodeId>& nodes);

// The limits that a method means. `training` must outlive them. Errors: kConfiguration when the mesh or the batch does not fit the method.
ProblemLimits methodLimits(const ShardingMethod& method, const TrainingGraph& training, const std::vector<NodeId>& nodes,
                           const LogicalMesh& mesh);

// By the first value of each group of the stage: what ShardStageOptions::constraints say. Errors: kConfiguration naming the pattern.
std::map<ValueId, ShardingSpec> givenSpecs(const TrainingGraph& training, const std::vector<StageValue>& values, const LogicalMesh& mesh,
                                           const std::vector<ShardConstraint>& constraints);

}  // namespace pipeshard
