// The shardings that people give (--shard), as kept specs of values. Internal to shard_stage.
#pragma once

#include <map>
#include <vector>

#include "ir/graph/training_graph.h"
#include "sharding/stage/shard_stage.h"
#include "sharding/stage/stage_values.h"

namespace pipeshard {

// By the first value of each group of the stage: what ShardStageOptions::constraints say. Errors:
// kConfiguration naming the pattern.
std::map<ValueId, ShardingSpec> givenSpecs(const TrainingGraph& training,
                                           const std::vector<StageValue>& values, const LogicalMesh& mesh,
                                           const std::vector<ShardConstraint>& constraints);

}  // namespace pipeshard
