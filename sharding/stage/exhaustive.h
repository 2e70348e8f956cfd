// All shardings of the inputs of a small stage, instead of the best one alone.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "sharding/stage/shard_stage.h"

namespace pipeshard {

// Every combination of input shardings (batch inputs and parameters; each replicated, or cut along one axis
// by mesh axis 0), each completed by the solver: dearest first, best last. Error(kConfiguration) when there
// are more than `limit`. `progress`: the share that has been tried, for each.
struct Combination {
  std::vector<std::pair<std::string, ShardingSpec>> inputs;
  int64_t compute_ns = 0;
  int64_t communication_ns = 0;
  int64_t communication_bytes = 0;
  int64_t memory_bytes = 0;
};
std::vector<Combination> exhaustiveSharding(const TrainingGraph& training, const std::vector<NodeId>& nodes,
                                            const LogicalMesh& mesh, const CostModel& model,
                                            const ShardStageOptions& options, int64_t limit,
                                            const std::function<void(double)>& progress = {});

}  // namespace pipeshard
