// What strategies of an operator cost, without running anything.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/base/sharding_spec.h"
#include "ir/graph/graph.h"
#include "sharding/specs/cost_model.h"
#include "sharding/spmd/strategy.h"

namespace pipeshard {

// Time of the node's own work on the device with the largest shard: local compute, and the collectives of
// exchange forms. Not: what brings its inputs into place (resharding.h).
struct StrategyCost {
  int64_t compute_ns = 0;
  int64_t communication_ns = 0;
  int64_t total() const { return compute_ns + communication_ns; }
};
StrategyCost strategyCost(const Graph& graph, const Node& node, const LogicalMesh& mesh,
                          const Strategy& strategy, const CostModel& model);

}  // namespace pipeshard
