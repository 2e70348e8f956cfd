#include "sharding/cost_model.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "ir/error.h"

namespace pipeshard {
namespace {

constexpr std::array<std::string_view, 4> kNames{"AllReduce", "AllGather", "ReduceScatter", "AllToAll"};

int64_t nanoseconds(double amount, double per_ns) { return std::llround(amount / per_ns); }

}  // namespace

std::string_view collectiveName(CollectiveKind kind) { return kNames[static_cast<size_t>(kind)]; }

std::optional<CollectiveKind> collectiveKind(const Node& node) {
  if (node.domain != kPipeshardDomain) return std::nullopt;
  const auto found = std::find(kNames.begin(), kNames.end(), node.op_type);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<CollectiveKind>(found - kNames.begin());
}

int64_t collectiveBytes(CollectiveKind kind, int64_t input, int64_t output) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduceScatter: return input;
    case CollectiveKind::kAllGather: return output;
    case CollectiveKind::kAllToAll: return std::max(input, output);
  }
  PIPESHARD_CHECK(false, "collective {}", static_cast<int>(kind));
}

CostModel CostModel::uniform(const LogicalMesh& mesh, LinkCost link) {
  CostModel model;
  model.links.assign(mesh.shape.size(), link);
  return model;
}

CostModel costModelOn(const Cluster& cluster, const std::vector<int>& devices, const LogicalMesh& mesh) {
  const bool inside = cluster.nodeOf(devices.front()) == cluster.nodeOf(devices.back());
  const ClusterNode& node = cluster.nodes[static_cast<size_t>(cluster.nodeOf(devices.front()))];
  const Link& link = inside ? node.inside : node.nic;
  return CostModel::uniform(mesh, {link.latency_ns, link.bytes_per_ns});
}

LinkCost linkBetween(const Cluster& cluster, const std::vector<int>& from, const std::vector<int>& to) {
  const ClusterNode& node = cluster.nodes[static_cast<size_t>(cluster.nodeOf(from.front()))];
  const Link& link = cluster.nodeOf(from.front()) == cluster.nodeOf(to.front()) ? node.inside : node.nic;
  return {link.latency_ns, link.bytes_per_ns};
}

int64_t collectiveCost(const CostModel& model, const LogicalMesh& mesh, CollectiveKind kind, int mesh_axis, int64_t bytes) {
  const int64_t devices = mesh.axisSize(mesh_axis);
  if (devices == 1) return 0;
  PIPESHARD_CHECK(model.links.size() == mesh.shape.size(), "{} links for mesh {}", model.links.size(), printMesh(mesh));
  const LinkCost& link = model.links[static_cast<size_t>(mesh_axis)];
  const int64_t share = bytes - bytes / devices;  // (n-1)/n, rounded up
  const int64_t travelling = kind == CollectiveKind::kAllReduce ? 2 * share : share;
  return link.latency_ns + nanoseconds(static_cast<double>(travelling), link.bytes_per_ns);
}

int64_t computeCost(const CostModel& model, double flops, int64_t bytes) {
  return std::max(nanoseconds(flops, model.flops_per_ns), nanoseconds(static_cast<double>(bytes), model.bytes_per_ns));
}

}  // namespace pipeshard
