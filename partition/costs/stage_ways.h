// A *way* to run a stage on a submesh: the logical mesh that the devices form, the sharding method, and how
// the values that cross the stage's two ends are kept. This file lists the ways that there are; what they
// cost is said by way_pricer.h. Internal to partition/.
//
// A value that crosses an end (an activation, or its gradient) is cut along its batch axis in one of three
// ways, of which the number is StageConfig::boundary:
//
//   0  over all axes of the mesh           on mesh [2,4]: 8 parts
//   1  over the first axis of the mesh                    2 parts
//   2  not at all: replicated                             1 part
//
// What a transfer between stages takes depends on the number of parts, not on which axes make them. So
// StageOption::boundary is another number: the place of the parts in boundaryParts.
#pragma once

#include <vector>

#include "ir/base/sharding_spec.h"
#include "partition/costs/sharded_stage_costs.h"
#include "partition/costs/stage_costs.h"

namespace pipeshard {

struct StageWay {
  LogicalMesh mesh;
  ShardingMethod method;
  int boundary = 0;  // StageConfig::boundary: 0, 1 or 2, as above
  int parts = 1;     // into so many parts that cuts what crosses the ends
  int shared = 0;    // StageConfig::shared: how parameters that several layers read are kept
  friend bool operator==(const StageWay&, const StageWay&) = default;
};

// The ways to try on a submesh: by method, then mesh, then boundary, in the order of the options. Boundaries
// that a method cannot have are left out (data-parallel has 0 alone), and so are those that give as many
// parts as an earlier one: on mesh [8] there are 0 and 2. One device has one way. `shared` is 0 in all.
std::vector<StageWay> waysOn(const Submesh& submesh, const StageCostOptions& options);

// The one way that a config names. Empty where there is none: its mesh does not have so many devices, its
// boundary is not 0 to 2, or its method needs a mesh of two axes (megatron).
std::vector<StageWay> wayOf(const StageConfig& config, int devices);

// The spec of a value that crosses an end, of a tensor with `rank` axes: its axis `batch_axis` is cut as the
// boundary says; replicated where that is -1 (the value does not depend on the batch).
//   boundarySpec(2, 0, [2,4], 0) is "S01,R";  with boundary 1 "S0,R";  with boundary 2 "R,R"
ShardingSpec boundarySpec(size_t rank, int batch_axis, const LogicalMesh& mesh, int boundary);

// Into how many parts so many devices may cut what crosses their ends: the divisors, ascending. Of more than
// kMostBoundaries divisors the smallest ones and the number of devices itself.
//   boundaryParts(8) is {1, 2, 4, 8}: mesh [2,4] with boundary 1 makes 2 parts, StageOption::boundary 1
std::vector<int> boundaryParts(int devices);

// A mesh of so many devices whose first axis has `parts` places, so that a value cut over that axis alone has
// so many parts; [devices] where one axis will do.
LogicalMesh meshOfParts(int devices, int parts);

}  // namespace pipeshard
