// What a search of stages may try, as Alpa names it (AutoStageOption,
// alpa/pipeline_parallel/stage_construction.py): which submeshes, and which logical meshes on them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "partition/costs/sharded_stage_costs.h"
#include "partition/costs/stage_costs.h"
#include "partition/search/stage_assignment.h"

namespace pipeshard {

// Which submeshes a stage may get: --submeshes.
enum class SubmeshLimit : uint8_t {
  kAll,              // "all": any number of devices of a node, any number of whole nodes
  kPowerOfTwo,       // "power-of-two": of both
  kSmallPowerOfTwo,  // "small-power-of-two": that, and at most four nodes
};
// Alpa's spellings with _ are taken, too. Error(kUsage) that lists them.
SubmeshLimit parseSubmeshLimit(const std::string& text);
// For AssignmentRequest::allowed; empty for kAll.
std::function<bool(const Submesh&)> allowedSubmeshes(SubmeshLimit limit);

// What is tried where nobody says: all on clusters of at most 16 devices, and where nodes do not have a power
// of two of them; else kPowerOfTwo, which takes a quarter of the time on 64 devices.
SubmeshLimit usualSubmeshes(const Cluster& cluster);

// Which logical meshes are tried on them: --logical-meshes.
enum class LogicalMeshLimit : uint8_t {
  kAll,  // "all": one axis, and all products of two
  // "single-node-model-parallel": as all inside a node; on several nodes the second axis has at most the
  // devices of a node
  kSingleNodeModelParallel,
  kSameAsPhysical,  // "same-as-physical": nodes x devices of each
  // "data-parallel-only": one axis, methods data-parallel, zero2 and zero3 (of these, those that
  // StageCostOptions::methods has, if any)
  kDataParallelOnly,
  kModelParallelOnly,  // "model-parallel-only": one axis, method tensor-parallel
};
// Errors as parseSubmeshLimit.
LogicalMeshLimit parseLogicalMeshLimit(const std::string& text);
// Into options.meshes and, where one way alone is left, options.methods.
void limitLogicalMeshes(LogicalMeshLimit limit, StageCostOptions& options);

}  // namespace pipeshard
