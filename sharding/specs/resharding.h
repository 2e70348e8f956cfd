// From one sharding spec of a tensor to another, inside a mesh: the cheapest sequence of steps, each along
// one mesh axis.
//
//   slice           R -> S   every device keeps its part (no communication)
//   keep one        R -> P   the first device along the axis keeps its content, the others hold zeros
//                            (no communication)
//   all-gather      S -> R   of the innermost (last) mesh axis of a tensor axis
//   all-reduce      P -> R
//   reduce-scatter  P -> S   the mesh axis becomes the innermost one of a tensor axis
//   all-to-all      S -> S   the innermost mesh axis of one tensor axis becomes the innermost one of another
//
//   "S0,R" to "R,S0" of 8x8 floats on 2 devices: one all-to-all; "R,R;P0" to "S0,R": one reduce-scatter
//
// Costs are those of cost_model.h for the device with the largest shard; the two steps without communication
// cost nothing. Paths are found by shortest path over specs; of equally cheap ones that of fewest steps, then
// the first by the order of the list above, mesh axes, tensor axes: always the same. All pairs of specs are
// connected. Shards may be uneven. Along a mesh axis of one device every step is free, and nothing is emitted
// for it. Meshes of up to 4 axes are searched for tensors of up to 11 dimensions, of 5 for up to 4; what is
// beyond 50,000 specs is refused with Error(kConfiguration).
//
// Thread rules: all functions may be called by several threads at once.
#pragma once

#include <vector>

#include "ir/base/data_type.h"
#include "ir/base/sharding_spec.h"
#include "ir/graph/graph.h"
#include "sharding/specs/cost_model.h"

namespace pipeshard {

struct ReshardingStep {
  enum class Kind : uint8_t { kSlice, kKeepOne, kAllGather, kAllReduce, kReduceScatter, kAllToAll };
  Kind kind = Kind::kSlice;
  int mesh_axis = 0;
  int from_axis = -1;  // tensor axis that is gathered: kAllGather, kAllToAll
  int to_axis = -1;    // tensor axis that is cut: kSlice, kReduceScatter, kAllToAll
  ShardingSpec after;
  int64_t cost_ns = 0;
};

struct Resharding {
  std::vector<ReshardingStep> steps;  // empty: the specs are equal
  int64_t cost_ns = 0;
};

// Only specs that the tensor can have (specFault) are passed through.
Resharding planResharding(const Shape& shape, DataType type, const ShardingSpec& from, const ShardingSpec& to,
                          const LogicalMesh& mesh, const CostModel& model);

// The cost alone, of every spec of `from` to every spec of `to`: row-major. Faster than one by one (25 x 25
// specs on a 2x4 mesh, 4 dimensions: 0.03 ms); of tensors with equal shape, type, mesh and model it is the
// same.
std::vector<int64_t> reshardingCosts(const Shape& shape, DataType type, const std::vector<ShardingSpec>& from,
                                     const std::vector<ShardingSpec>& to, const LogicalMesh& mesh,
                                     const CostModel& model);

}  // namespace pipeshard
