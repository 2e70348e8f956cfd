// The steps of a resharding as nodes of one device's graph.
//
// Thread rules: as resharding.h.
#pragma once

#include <vector>

#include "ir/base/sharding_spec.h"
#include "ir/graph/graph.h"
#include "sharding/specs/device_differences.h"
#include "sharding/specs/resharding.h"

namespace pipeshard {

// Where the devices of the mesh stand in the program: the group (one of Program::groups) of a device's
// line along each mesh axis.
struct MeshGroups {
  std::vector<GroupId> group_of_axis;  // by mesh axis; invalid along an axis of one device
};

// Appends the steps to a device's local graph: Slice (slice), Where (keep one: the tensor, or zeros of its
// shape), and the collectives of docs/operators.md, pipeshard::AllGather, AllReduce, ReduceScatter, AllToAll,
// with the attributes `group` and where it applies `axis` (that is gathered; of a ReduceScatter: cut),
// `to_axis` (AllToAll: that is cut), `sizes` and `to_sizes` (of every member's part along the two). The nodes
// of all devices are alike up to shapes and constants. `local` is the device's shard under `from`; returns
// that under the last step's spec, which is `local` itself where nothing has to be done. `shape` is the whole
// tensor's. Types: those that reductions between workers support where a partial sum is resolved, any of 1 to
// 8 bytes elsewhere. `own`, if given, gets the constants that follow from the device's place.
ValueId emitResharding(GraphBuilder& builder, ValueId local, const Shape& shape, const ShardingSpec& from,
                       const Resharding& resharding, const LogicalMesh& mesh, DeviceId device,
                       const MeshGroups& groups, std::vector<DeviceConstant>* own = nullptr);

}  // namespace pipeshard
