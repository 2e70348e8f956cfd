// A stage's sharding between its two forms: ids (stage_sharding.h), and names in plan.json (ir/plan/plan.h),
// where people read and edit it.
//
// In plan.json a node is called by its first output, and only what is not replicated is listed:
//   "strategies": {"matmul_1": "0:j"},  "specs": {"w1": "R,S0"}
#pragma once

#include <string>
#include <vector>

#include "ir/plan/plan.h"
#include "sharding/stage/stage_sharding.h"

namespace pipeshard {

// The name of the node's first present output.
const std::string& nodeKey(const Graph& graph, NodeId node);

// Fills mesh, strategies and specs of `plan`. `nodes`: the stage's.
void describeSharding(const TrainingGraph& training, const std::vector<NodeId>& nodes,
                      const StageSharding& sharding, ShardingPlan& plan);

// `rows`, `rowless`: as the mesh shall have them (LogicalMesh); the plan says only how devices are arranged.
// Errors: kConfiguration naming the entry: a name that the stage does not have, uses or a spec that do not
// fit, a partial sum where none may be.
StageSharding shardingOfPlan(const TrainingGraph& training, const std::vector<NodeId>& nodes,
                             const ShardingPlan& plan, int64_t rows = 0,
                             const std::vector<int64_t>& rowless = {});

// The plan's strategies for the same nodes at another size: where an axis of one row has no factor, others
// have other names (a Reshape's r3 is r2). A factor is found again by the axes that hold it; a strategy whose
// factor is not found stays as it is. What the plan says of nodes and values that `to` does not have (one row
// needs no sum over rows) goes.
void renameFactors(const Graph& from, const Graph& to, ShardingPlan& plan);

// Everything for which shardingOfPlan would refuse it, a message each; empty: nothing.
std::vector<std::string> shardingFaults(const TrainingGraph& training, const std::vector<NodeId>& nodes,
                                        const ShardingPlan& plan);

}  // namespace pipeshard
