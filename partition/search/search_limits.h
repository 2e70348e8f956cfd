// What a search of stages may try, as Alpa names it (AutoStageOption,
// alpa/pipeline_parallel/stage_construction.py): which submeshes, and which logical meshes on them.
#pragma once

#include <functional>
#include <string>

#include "partition/costs/sharded_stage_costs.h"
#include "partition/costs/stage_costs.h"
#include "partition/search/stage_assignment.h"

namespace pipeshard {

// --submeshes: "all" (any number of devices of a node, any number of whole nodes), "power-of-two" (of both),
// "small-power-of-two" (that, and at most four nodes). Alpa's spellings with _ are taken, too. For
// AssignmentRequest::allowed; empty for "all". Error(kUsage) that lists them.
std::function<bool(const Submesh&)> allowedSubmeshes(const std::string& text);

// What is tried where nobody says: all on clusters of at most 16 devices, and where nodes do not have a power
// of two of them; else "power-of-two", which takes a quarter of the time on 64 devices.
std::string usualSubmeshes(const Cluster& cluster);

// --logical-meshes, into options.meshes and, where one way alone is left, options.methods:
//   all                         one axis, and all products of two
//   single-node-model-parallel  as all inside a node; on several nodes the second axis has at most the
//                               devices of a node
//   same-as-physical            nodes x devices of each
//   data-parallel-only          one axis, methods data-parallel, zero2 and zero3 (of these, those that
//                               options.methods has, if any)
//   model-parallel-only         one axis, method tensor-parallel
// Error(kUsage) that lists them.
void limitLogicalMeshes(const std::string& text, StageCostOptions& options);

}  // namespace pipeshard
