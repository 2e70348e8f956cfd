// Sharding methods (ir/plan/sharding_method.h) as limits on the one problem; shard_stage.h says what each
// means. Internal to shard_stage.
#pragma once

#include <memory>
#include <vector>

#include "ir/plan/sharding_method.h"
#include "sharding/batch/batch_dependence.h"
#include "sharding/stage/sharding_problem.h"

namespace pipeshard {

// The limits that a method means. `training` must outlive them; `batch` may be empty: it is found. Errors:
// kConfiguration when the mesh or the batch does not fit the method.
ProblemLimits methodLimits(const ShardingMethod& method, const TrainingGraph& training,
                           const std::vector<NodeId>& nodes, const LogicalMesh& mesh,
                           std::shared_ptr<const BatchDependence> batch);

}  // namespace pipeshard
