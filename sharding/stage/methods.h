// Methods of choosing shardings, as limits on the one problem (shard_stage.h says what each means). Internal
// to shard_stage.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sharding/batch/batch_dependence.h"
#include "sharding/stage/sharding_problem.h"

namespace pipeshard {

struct ShardingMethod {
  enum class Kind : uint8_t { kAuto, kDataParallel, kZero2, kZero3, kTensorParallel, kMegatron, kManual };
  Kind kind = Kind::kAuto;
  int data = 1;              // kMegatron
  int tensor = 1;            // kMegatron
  bool cut_updates = false;  // kMegatron: over the data axis, too
};
// Error(kConfiguration) that lists the methods, the nearest first.
ShardingMethod parseMethod(std::string_view text);

// The limits that a method means. `training` must outlive them; `batch` may be empty: it is found. Errors:
// kConfiguration when the mesh or the batch does not fit the method.
ProblemLimits methodLimits(const ShardingMethod& method, const TrainingGraph& training,
                           const std::vector<NodeId>& nodes, const LogicalMesh& mesh,
                           std::shared_ptr<const BatchDependence> batch);

}  // namespace pipeshard
