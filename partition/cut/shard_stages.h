// Which sharding each stage of several devices gets: every mesh tried, what crosses stages weighed; and why
// it is the best.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ir/base/sharding_spec.h"
#include "ir/graph/training_graph.h"
#include "ir/plan/plan.h"
#include "ir/plan/sharding_method.h"
#include "sharding/stage/blocks.h"
#include "sharding/stage/exhaustive.h"
#include "sharding/stage/explain.h"

namespace pipeshard {

// How the operators of stages with several devices are sharded (sharding/stage/shard_stage.h).
struct ShardingRequest {
  std::optional<ShardingMethod> method;  // nothing: the devices share the rows of every microbatch
  std::optional<LogicalMesh> mesh;       // nothing: the best of the logical meshes that have as many devices
  std::vector<ShardConstraint> constraints;
  int64_t memory_bytes = 0;  // of each device, as given; 0: what the cluster says of each
  // By what devices have: what is planned for them instead, where more or less is needed than was foreseen.
  std::map<int64_t, int64_t> planned_memory = {};

  // Of a stage on these devices: what the least of them has; 0: no limit.
  int64_t memoryOf(const Cluster& cluster, const std::vector<RankId>& devices) const;
  // The same, or what is planned instead.
  int64_t plannedMemory(const Cluster& cluster, const std::vector<RankId>& devices) const;
};

// Fills in the shardings that partitionTraining has asked for (StagePlan::sharding with a method): for each
// stage the best logical mesh and, on it, the best sharding. `progress` is called per stage and mesh. Errors:
// kUsage, kConfiguration (a method, mesh or constraint that cannot be), kOutOfMemory (nothing fits). With the
// method exhaustive (on one mesh, by default that of one axis) a stage takes the best of all combinations
// of its inputs' shardings; they are returned, by stage.
struct StageCombinations {
  StageId stage;
  std::vector<Combination> combinations;  // dearest first, best last
};
std::vector<StageCombinations> shardStages(const TrainingGraph& training, const ShardingRequest& request,
                                           Plan& plan,
                                           const std::function<void(const std::string&)>& progress = {});

// Why a sharded stage is sharded as it is.
struct StageExplanation {
  StageId stage;
  int64_t total_ns = 0;             // predicted, of a step
  BlockSummary blocks;              // what its repeated blocks do
  std::vector<Decision> decisions;  // dearest first
};
// Of every sharded stage; the second best of the `alternatives` dearest decisions of each.
std::vector<StageExplanation> explainStages(const TrainingGraph& training, const Plan& plan, int alternatives,
                                            const std::function<void(const std::string&)>& progress = {});

}  // namespace pipeshard
