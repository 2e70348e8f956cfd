#include "sharding/specs/device_differences.h"

namespace pipeshard {

void markUneven(const ShardingSpec& spec, const Shape& shape, const LogicalMesh& mesh, MeshAxes& axes) {
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    int64_t parts = 1;
    for (const int mesh_axis : spec.axes[axis]) parts *= mesh.axisSize(mesh_axis);
    if (parts == 1 || shape[axis] / mesh.unit(shape[axis]) % parts == 0) continue;
    for (const int mesh_axis : spec.axes[axis]) axes[mesh_axis] = true;
  }
}

void markResharding(const Shape& shape, const ShardingSpec& from, const Resharding& resharding,
                    const LogicalMesh& mesh, MeshAxes& axes) {
  markUneven(from, shape, mesh, axes);
  for (const ReshardingStep& step : resharding.steps) markUneven(step.after, shape, mesh, axes);
}

std::vector<int64_t> markedCoordinates(DeviceId device, const LogicalMesh& mesh, const MeshAxes& axes) {
  std::vector<int64_t> coordinates;
  for (int axis = 0; axis < mesh.rank(); ++axis) {
    if (axes[axis]) coordinates.push_back(mesh.coordinate(device, axis));
  }
  return coordinates;
}

std::vector<DeviceId> devicesThatDiffer(const LogicalMesh& mesh, const MeshAxes& axes) {
  std::vector<DeviceId> result;
  for (const DeviceId device : mesh.devices()) {
    bool first = true;
    for (int axis = 0; axis < mesh.rank(); ++axis)
      first = first && (axes[axis] || mesh.coordinate(device, axis) == 0);
    if (first) result.push_back(device);
  }
  return result;
}

}  // namespace pipeshard
