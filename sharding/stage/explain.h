// Why a stage is sharded as it is: every decision, what it costs, and the best other choice.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sharding/stage/shard_stage.h"

namespace pipeshard {

// One alternative of one decision.
struct Alternative {
  std::string text;     // a spec, or uses
  int64_t cost_ns = 0;  // of the whole step, everything else chosen anew as well as it can be
};
struct Decision {
  std::string name;  // of the value or node
  std::string chosen;
  int64_t compute_ns = 0;  // per step, of the node itself
  // its own collectives and the reshardings that bring its inputs into place
  int64_t communication_ns = 0;
  std::optional<Alternative> second;  // the best other choice
};

// The decisions of a result, dearest first; `second` of the `alternatives` dearest ones (each is a solve with
// the choice forbidden).
std::vector<Decision> explainSharding(const TrainingGraph& training, const std::vector<NodeId>& nodes,
                                      const CostModel& model, const ShardStageOptions& options,
                                      const ShardingResult& result, int alternatives);

}  // namespace pipeshard
