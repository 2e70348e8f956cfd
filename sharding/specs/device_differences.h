// Along which mesh axes the devices of a stage differ in more than in whom they meet.
//
// Devices run the same nodes up to shapes and constants. Mostly shapes are equal, too, since parts are
// equally large. Then one device's graph is that of all, and it is made once. Where they are not, the
// functions here mark the mesh axes that matter: two devices whose coordinates along all marked axes are
// equal have equal graphs, but for small constants that say which part a device has (DeviceConstant).
//
//   "S0,R" of [8,6] on mesh [4]: nothing is marked; of [9,6]: axis 0, since one device has three rows
//   a slice from "R,R" to "R,S1": nothing is marked; where it starts and ends are DeviceConstants
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ir/base/sharding_spec.h"
#include "ir/graph/graph.h"
#include "sharding/specs/resharding.h"

namespace pipeshard {

// A constant of a device's graph that follows from the device's place in the mesh.
struct DeviceConstant {
  ValueId value;    // of the graph
  std::string key;  // the same words on all devices of the mesh; equal keys are equal constants
  std::function<Constant(DeviceId)> of;  // of any device with equal marked coordinates; stands alone
};
// More bytes than these are not said for every device: their mesh axes are marked.
inline constexpr int64_t kMostDeviceConstantBytes = 256;

using MeshAxes = std::vector<bool>;  // by mesh axis: it is marked

// Marks the axes that cut the tensor into parts of unequal sizes.
void markUneven(const ShardingSpec& spec, const Shape& shape, const LogicalMesh& mesh, MeshAxes& axes);

// Marks those along which the nodes of emitResharding are not the same, but for DeviceConstants.
void markResharding(const Shape& shape, const ShardingSpec& from, const Resharding& resharding,
                    const LogicalMesh& mesh, MeshAxes& axes);

// The device's coordinates along the marked axes, in order.
std::vector<int64_t> markedCoordinates(DeviceId device, const LogicalMesh& mesh, const MeshAxes& axes);

// Of each set of devices with equal marked coordinates the first one, ascending.
std::vector<DeviceId> devicesThatDiffer(const LogicalMesh& mesh, const MeshAxes& axes);

}  // namespace pipeshard
