// Along which mesh axes the devices of a stage differ in more than in whom they meet.
//
// Devices run the same nodes up to shapes and constants. Mostly these are equal, too: parts are equally
// large, and nothing asks a device which part it has. Then one device's graph is that of all, and it is made
// once. Where they are not, the functions here mark the mesh axes that matter: two devices whose coordinates
// along all marked axes are equal have equal graphs.
//
//   "S0,R" of [8,6] on mesh [4]: nothing is marked; of [9,6]: axis 0, since one device has three rows
//   a slice from "R,R" to "R,S1": axis 1, since each device begins elsewhere
#pragma once

#include <vector>

#include "ir/base/sharding_spec.h"
#include "sharding/specs/resharding.h"

namespace pipeshard {

using MeshAxes = std::vector<bool>;  // by mesh axis: it is marked

// Marks the axes that cut the tensor into parts of unequal sizes.
void markUneven(const ShardingSpec& spec, const Shape& shape, const LogicalMesh& mesh, MeshAxes& axes);

// Marks those along which the nodes of emitResharding are not the same.
void markResharding(const Shape& shape, const ShardingSpec& from, const Resharding& resharding,
                    const LogicalMesh& mesh, MeshAxes& axes);

// The device's coordinates along the marked axes, in order.
std::vector<int64_t> markedCoordinates(DeviceId device, const LogicalMesh& mesh, const MeshAxes& axes);

// Of each set of devices with equal marked coordinates the first one, ascending.
std::vector<DeviceId> devicesThatDiffer(const LogicalMesh& mesh, const MeshAxes& axes);

}  // namespace pipeshard
