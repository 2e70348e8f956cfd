// What a sharding costs, added up as stage_sharding.h says: strategyCost of every node, planResharding
// between every value's specs. Knows nothing of the problem that is solved, which must come to the same sum.
// Internal to shard_stage.
#pragma once

#include <optional>
#include <vector>

#include "ir/graph/training_graph.h"
#include "sharding/specs/resharding.h"
#include "sharding/spmd/strategy_cost.h"
#include "sharding/stage/stage_sharding.h"
#include "sharding/stage/stage_values.h"

namespace pipeshard {

// A resharding of a stage: to what a value is kept in, or to what a node needs.
struct StageResharding {
  ValueId value;
  // invalid: from what its producer gives to what is kept, or from the parts of a gradient to the gradient
  NodeId reader;
  int64_t runs = 1;  // per step
  ShardingSpec from;
  Resharding resharding;
};

struct StagePrice {
  std::vector<StrategyCost> nodes;           // by node index, per step
  std::vector<StageResharding> reshardings;  // those with steps
  int64_t compute_ns = 0;                    // per step
  int64_t communication_ns = 0;
};

StagePrice priceStage(const TrainingGraph& training, const std::vector<NodeId>& nodes,
                      const std::vector<StageValue>& values, const StageSharding& sharding,
                      const CostModel& model, int64_t microbatches);

// What a device sends and receives per step, as cost_model.h counts it: collectives of nodes, and
// reshardings.
int64_t communicationBytes(const TrainingGraph& training, const std::vector<NodeId>& nodes,
                           const StageSharding& sharding, const StagePrice& price, int64_t microbatches);

// The collective that a step is; nullopt: it needs none.
std::optional<CollectiveKind> collectiveOf(ReshardingStep::Kind kind);

}  // namespace pipeshard
