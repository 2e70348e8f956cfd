#include "partition/boundary_transfers.h"

#include <mutex>

#include "partition/stage_ways.h"
#include "sharding/cross_mesh.h"

namespace pipeshard {
BoundaryTransfers::BoundaryTransfers(const TrainingGraph& training, const LayerPieces& pieces, const Cluster& cluster,
                                     const SubmeshClasses& classes)
    : training_(training), pieces_(pieces), cluster_(cluster), classes_(classes) {
  const LinkCost link = linkBetween(cluster, {0}, {cluster.deviceCount() - 1});
  for (const SharedParameter& shared : pieces.shared) {
    const int64_t once = linkTime(link, static_cast<double>(training.graph.bytes(shared.value)));
    exchanges_.push_back(shared.gradients.empty() ? once : 2 * once);
  }
}

int64_t BoundaryTransfers::cost(int layer, const Submesh& from, int from_boundary, const Submesh& to, int to_boundary) const {
  const Key key(pieces_.cut_kinds[static_cast<size_t>(layer)], classes_.transferClass(from), from_boundary, classes_.transferClass(to),
                to_boundary);
  {
    const std::shared_lock lock(mutex_);
    const auto known = known_.find(key);
    if (known != known_.end()) return known->second;
  }
  const auto parts = [](const Submesh& submesh, int boundary) {
    return boundaryParts(submesh.deviceCount()).at(static_cast<size_t>(boundary));
  };
  const int64_t cost = plan(layer, from, parts(from, from_boundary), to, parts(to, to_boundary));
  const std::unique_lock lock(mutex_);
  return known_.try_emplace(key, cost).first->second;
}

int64_t BoundaryTransfers::plan(int layer, const Submesh& from, int from_parts, const Submesh& to, int to_parts) const {
  const std::vector<int> from_devices = devicesOf(from), to_devices = devicesOf(to);
  const auto side = [&](const std::vector<int>& devices, int parts) {
    const LogicalMesh mesh = meshOfParts(static_cast<int>(devices.size()), parts);
    return CrossMeshSide{mesh, {}, costModelOn(cluster_, devices, mesh)};
  };
  CrossMeshSide early = side(from_devices, from_parts), late = side(to_devices, to_parts);
  const LinkCost there = linkBetween(cluster_, from_devices, to_devices), back = linkBetween(cluster_, to_devices, from_devices);
  int64_t total = 0;
  for (int number : pieces_.at_cut[static_cast<size_t>(layer)]) {
    const CrossingValue& crossing = pieces_.crossings[static_cast<size_t>(number)];
    const Shape& shape = training_.graph.shape(crossing.value);
    early.spec = boundarySpec(shape.size(), from_parts > 1 ? crossing.axis : -1, early.mesh, 1);
    late.spec = boundarySpec(shape.size(), to_parts > 1 ? crossing.axis : -1, late.mesh, 1);
    total += planCrossMesh(shape, training_.graph.dataType(crossing.value), crossing.gradient ? late : early,
                           crossing.gradient ? early : late, crossing.gradient ? back : there)
                 .cost_ns;
  }
  return total;
}

}  // namespace pipeshard
