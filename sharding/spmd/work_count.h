// How much work nodes are (FLOPs, bytes, time): a single node (nodeWork), all of a device's piece together
// (countWork), and the piece in its order, from collective to collective (workParts). strategyCost counts by
// nodeWork too, so that what was predicted and what is counted agree. Internal to sharding.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ir/base/sharding_spec.h"
#include "ir/graph/graph.h"
#include "sharding/rules/factor_rule.h"
#include "sharding/specs/cost_model.h"
#include "sharding/specs/resharding_emit.h"

namespace pipeshard {

struct NodeWork {
  double flops = 0;
  int64_t bytes = 0;  // read and written
  WorkClass work_class = WorkClass::kElementwise;
  // the widest floating-point type that it reads or makes; without one, what it makes
  DataType type = DataType::kFloat32;
};
int64_t computeCost(const CostModel& model, const NodeWork& work);

// Of a node that is no collective; `rule` is its factorRule. Views move no data.
NodeWork nodeWork(const Graph& graph, const Node& node, const std::optional<FactorRule>& rule);

// A node that only brings a value into place (resharding, the share of a mean): its cost is that of its
// collectives.
void markPlacing(Node& node);
bool isPlacing(const Node& node);

// What running a device's piece once takes, counted from its nodes: on the last device of the mesh, which has
// the largest shards, that is strategyCost and planResharding, summed. `groups` are the device's. What
// exchange forms of several nodes share is counted once.
struct WorkCount {
  double flops = 0;
  int64_t compute_ns = 0;
  int64_t communication_ns = 0;
  // by CollectiveKind: the B of cost_model.h
  std::vector<int64_t> collective_bytes = std::vector<int64_t>(4);
  std::vector<int64_t> collectives = std::vector<int64_t>(4);  // how many
};
WorkCount countWork(const Graph& local, const LogicalMesh& mesh, const MeshGroups& groups,
                    const CostModel& model);

// The work in its order: computing, the collective behind it, and so on. The last part has no collective.
// What a device does takes time, so this has what brings values into place, too, which no strategy is charged
// for (countWork).
struct WorkPart {
  int64_t compute = 0;   // nanoseconds
  GroupId group = {};    // of the program's; invalid: no collective follows
  int64_t exchange = 0;  // nanoseconds
  int64_t bytes = 0;     // of the collective
};
// group_sizes[g]: the members of group g. The model's links: groupModel.
std::vector<WorkPart> workParts(const Graph& local, const IdVector<GroupId, int>& group_sizes,
                                const CostModel& model);

}  // namespace pipeshard
