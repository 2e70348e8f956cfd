#include "partition/costs/boundary_transfers.h"

#include <mutex>

#include "partition/costs/stage_ways.h"
#include "sharding/specs/cross_mesh.h"

namespace pipeshard {
BoundaryTransfers::BoundaryTransfers(const TrainingGraph& training, const LayerPieces& pieces,
                                     const Cluster& cluster, const SubmeshClasses& classes)
    : training_(training), pieces_(pieces), cluster_(cluster), classes_(classes) {
  link_ = linkBetween(cluster, {RankId(0)}, {RankId(cluster.deviceCount() - 1)});
}

int64_t BoundaryTransfers::exchange(int64_t parameter_bytes, int64_t part_bytes) const {
  return linkTime(link_, static_cast<double>(parameter_bytes)) +
         (part_bytes == 0 ? 0 : linkTime(link_, static_cast<double>(part_bytes)));
}

int64_t BoundaryTransfers::cost(int layer, const Submesh& from, int from_boundary, const Submesh& to,
                                int to_boundary) const {
  const Key key(pieces_.cut_kinds[layer], classes_.transferClass(from), from_boundary,
                classes_.transferClass(to), to_boundary);
  {
    const std::shared_lock lock(mutex_);
    const auto known = known_.find(key);
    if (known != known_.end()) return known->second;
  }
  const int64_t cost = plan(layer, from, from_boundary, to, to_boundary);
  const std::unique_lock lock(mutex_);
  return known_.try_emplace(key, cost).first->second;
}

std::shared_ptr<const CrossMeshEnd> BoundaryTransfers::endOf(const CrossingValue& crossing,
                                                             const Submesh& submesh, int boundary,
                                                             bool is_sender) const {
  const Shape& shape = training_.graph.shape(crossing.value);
  const DataType type = training_.graph.dataType(crossing.value);
  const EndKey key(shape, type, crossing.axis, classes_.shape(submesh), boundary, is_sender);
  {
    const std::shared_lock lock(mutex_);
    const auto known = ends_.find(key);
    if (known != ends_.end()) return known->second;
  }
  const int parts = boundaryParts(submesh.deviceCount()).at(boundary);
  const LogicalMesh mesh = meshOfParts(submesh.deviceCount(), parts);
  const ShardingSpec spec = boundarySpec(shape.size(), parts > 1 ? crossing.axis : -1, mesh, 1);
  std::shared_ptr<const CrossMeshEnd> end;
  if (specFault(spec, shape, mesh).empty()) {
    const CrossMeshSide side{mesh, spec, costModelOn(cluster_, devicesOf(submesh), mesh)};
    end = std::make_shared<const CrossMeshEnd>(crossMeshEnd(shape, type, side, is_sender));
  }
  const std::unique_lock lock(mutex_);
  return ends_.try_emplace(key, std::move(end)).first->second;
}

int64_t BoundaryTransfers::plan(int layer, const Submesh& from, int from_boundary, const Submesh& to,
                                int to_boundary) const {
  const std::vector<RankId> from_devices = devicesOf(from), to_devices = devicesOf(to);
  const LinkCost there = linkBetween(cluster_, from_devices, to_devices),
                 back = linkBetween(cluster_, to_devices, from_devices);
  int64_t total = 0;
  for (int number : pieces_.at_cut[layer]) {
    const CrossingValue& crossing = pieces_.crossings[number];
    const auto early = endOf(crossing, from, from_boundary, !crossing.gradient);
    const auto late = endOf(crossing, to, to_boundary, crossing.gradient);
    if (early == nullptr || late == nullptr) return kNever;
    total += crossing.gradient ? crossMeshCost(*late, *early, back) : crossMeshCost(*early, *late, there);
  }
  return total;
}

}  // namespace pipeshard
