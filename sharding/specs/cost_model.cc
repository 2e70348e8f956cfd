#include "sharding/specs/cost_model.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"

namespace pipeshard {
namespace {

int64_t nanoseconds(double amount, double per_ns) { return std::llround(amount / per_ns); }

}  // namespace

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

namespace {

const ClusterNode& nodeAt(const Cluster& cluster, int node) { return cluster.nodes[node]; }

// Of every device of a stage; Cluster::nodeOf goes through all nodes.
IdVector<DeviceId, int> nodesOf(const Cluster& cluster, const std::vector<RankId>& devices) {
  std::vector<int> begins(1);
  for (const ClusterNode& node : cluster.nodes) begins.push_back(begins.back() + node.devices);
  IdVector<DeviceId, int> nodes;
  for (RankId device : devices) {
    PIPESHARD_CHECK(device < RankId(begins.back()), "the cluster {} has no device {}", cluster.name, device);
    const int position = device.index();
    nodes.push_back(std::upper_bound(begins.begin(), begins.end(), position) - begins.begin() - 1);
  }
  return nodes;
}

// How many devices each node has.
std::map<int, int> countNodes(const std::vector<int>& nodes) {
  std::map<int, int> count;
  for (int node : nodes) ++count[node];
  return count;
}

// Amounts of the curve travel over a part of the link.
CostCurve sharedCurve(const CostCurve& curve, double part) {
  CostCurve result = curve;
  for (CostPoint& point : result.points)
    point.amount = std::max<int64_t>(1, std::llround(static_cast<double>(point.amount) * part));
  const auto same = [](const CostPoint& a, const CostPoint& b) { return a.amount == b.amount; };
  result.points.erase(std::unique(result.points.begin(), result.points.end(), same), result.points.end());
  return result;
}

// The slowest of the links that are added. Which measured curve is slower, the time of 16 MiB tells.
class SlowestLink {
 public:
  void add(const Link& link, double part, double all_to_all_part) {
    LinkCost next;
    next.latency_ns = link.latency_ns;
    next.bytes_per_ns = link.bytes_per_ns * part;
    next.all_to_all_bytes_per_ns = link.bytes_per_ns * all_to_all_part;
    if (!link.measured.points.empty()) next.measured = sharedCurve(link.measured, part);
    if (!slowest_) {
      slowest_ = std::move(next);
      return;
    }
    constexpr int64_t kBytes = 16 << 20;
    const int64_t latency = std::max(slowest_->latency_ns, next.latency_ns);
    const double all_to_all = std::min(slowest_->all_to_all_bytes_per_ns, next.all_to_all_bytes_per_ns);
    if (linkTime(next, static_cast<double>(kBytes)) > linkTime(*slowest_, static_cast<double>(kBytes)))
      slowest_ = std::move(next);
    slowest_->latency_ns = latency;
    slowest_->all_to_all_bytes_per_ns = all_to_all;
  }

  LinkCost cost() const {
    LinkCost cost = slowest_.value_or(LinkCost{});
    if (cost.all_to_all_bytes_per_ns == cost.bytes_per_ns) cost.all_to_all_bytes_per_ns = 0;
    return cost;
  }

 private:
  std::optional<LinkCost> slowest_;
};

// Of one mesh axis: its groups, and what they do in the nodes.
class AxisGroups {
 public:
  AxisGroups(const Cluster& cluster, const IdVector<DeviceId, int>& nodes, const LogicalMesh& mesh, int axis)
      : cluster_(cluster), size_(mesh.axisSize(axis)) {
    for (const DeviceId first : mesh.devices()) {
      if (mesh.coordinate(first, axis) != 0) continue;
      std::vector<int> group;
      for (const DeviceId member : mesh.lineOf(first, axis)) group.push_back(nodes[member]);
      addGroup(countNodes(group));
    }
  }

  LinkCost link() const {
    SlowestLink slowest;
    for (const std::map<int, int>& group : groups_) {
      for (const auto& [index, count] : group) {
        const ClusterNode& node = nodeAt(cluster_, index);
        const NodeUse& use = uses_.at(index);
        if (count > 1) {
          const double part = node.shared_memory ? 1.0 / use.exchanging : 1;
          slowest.add(node.insideOf(count), part, part);
        }
        if (group.size() > 1) {
          const double others = size_ - count;
          slowest.add(node.nic,
                      std::min(static_cast<double>(node.nics) / use.crossing_groups,
                               static_cast<double>(std::min(count, node.nics))),
                      (size_ - 1) * std::min(node.nics / use.crossing_pairs, 1 / others));
        }
      }
    }
    return slowest.cost();
  }

 private:
  struct NodeUse {
    int exchanging = 0;  // devices that are in a group with another of the node
    int crossing_groups = 0;
    double crossing_pairs = 0;  // of a device here and one elsewhere, of one group
  };

  void addGroup(std::map<int, int> group) {
    for (const auto& [node, count] : group) {
      NodeUse& use = uses_[node];
      if (count > 1) use.exchanging += count;
      if (group.size() == 1) continue;
      ++use.crossing_groups;
      use.crossing_pairs += static_cast<double>(count) * (size_ - count);
    }
    groups_.push_back(std::move(group));
  }

  const Cluster& cluster_;
  int size_;
  std::vector<std::map<int, int>> groups_;  // devices by node
  std::map<int, NodeUse> uses_;             // by node
};

// Of each of the devices that send, or receive, through their nodes' NICs: the least.
LinkCost nicShare(const Cluster& cluster, const std::vector<RankId>& devices) {
  SlowestLink slowest;
  for (const auto& [index, count] : countNodes(nodesOf(cluster, devices))) {
    const ClusterNode& node = nodeAt(cluster, index);
    const double part = std::min(1.0, static_cast<double>(node.nics) / count);
    slowest.add(node.nic, part, part);
  }
  return slowest.cost();
}

}  // namespace

int64_t linkTime(const LinkCost& link, double bytes) {
  if (!link.measured.points.empty()) return link.measured.at(bytes);
  return link.latency_ns + nanoseconds(bytes, link.bytes_per_ns);
}

CostModel costModelOn(const Cluster& cluster, const std::vector<RankId>& devices, const LogicalMesh& mesh) {
  PIPESHARD_CHECK(std::ssize(devices) == mesh.deviceCount(), "{} devices for mesh {}", devices.size(),
                  printMesh(mesh));
  CostModel model;
  const IdVector<DeviceId, int> nodes = nodesOf(cluster, devices);
  std::vector<int> kinds;
  for (const auto& [index, count] : countNodes(nodes)) {
    const ClusterNode& node = nodeAt(cluster, index);
    model.busy = model.busy || node.devices > 1;
    if (node.cores > 0)
      model.devices_per_core =
          std::max(model.devices_per_core, static_cast<double>(node.devices) / node.cores);
    const bool is_new = std::find(kinds.begin(), kinds.end(), node.kind) == kinds.end();
    if (is_new && cluster.kinds[node.kind].isKnown()) kinds.push_back(node.kind);
  }
  if (!kinds.empty()) {
    auto known = std::make_shared<std::vector<DeviceKind>>();
    for (int kind : kinds) known->push_back(cluster.kinds[kind]);
    model.times = kinds.size() == 1 ? known->front().measured : nullptr;
    model.kinds = std::move(known);
  }
  model.one_node = countNodes(nodes).size() == 1;
  for (int axis = 0; axis < mesh.rank(); ++axis)
    model.links.push_back(AxisGroups(cluster, nodes, mesh, axis).link());
  return model;
}

LinkCost linkBetween(const Cluster& cluster, const std::vector<RankId>& from, const std::vector<RankId>& to) {
  const int node_index = cluster.nodeOf(from.front().index());
  const auto isThere = [&](RankId device) { return cluster.nodeOf(device.index()) == node_index; };
  if (std::all_of(from.begin(), from.end(), isThere) && std::all_of(to.begin(), to.end(), isThere)) {
    const ClusterNode& node = nodeAt(cluster, node_index);
    const Link pair = node.insideOf(2);
    LinkCost link{
        .latency_ns = pair.latency_ns, .bytes_per_ns = pair.bytes_per_ns, .measured = pair.measured};
    if (node.shared_memory) {
      link.receive_bytes_per_ns = link.bytes_per_ns / static_cast<double>(to.size());
      link.bytes_per_ns /= static_cast<double>(from.size());
      link.measured = sharedCurve(link.measured, 1.0 / static_cast<double>(from.size()));
    }
    if (link.receive_bytes_per_ns == link.bytes_per_ns) link.receive_bytes_per_ns = 0;
    return link;
  }
  LinkCost link = nicShare(cluster, from);
  const LinkCost receiving = nicShare(cluster, to);
  link.all_to_all_bytes_per_ns = 0;
  link.latency_ns = std::max(link.latency_ns, receiving.latency_ns);
  if (receiving.bytes_per_ns != link.bytes_per_ns) link.receive_bytes_per_ns = receiving.bytes_per_ns;
  return link;
}

LinkCost receivingSide(const LinkCost& between) {
  LinkCost link = between;
  if (between.receive_bytes_per_ns == 0) return link;
  link.bytes_per_ns = between.receive_bytes_per_ns;
  link.measured = sharedCurve(between.measured, between.receive_bytes_per_ns / between.bytes_per_ns);
  return link;
}

CostModel groupModel(const CostModel& model, GroupId group) {
  CostModel result = model;
  if (model.links.size() > 1) result.links = {model.links.at(group.index())};
  return result;
}

int64_t collectiveCost(const CostModel& model, const LogicalMesh& mesh, CollectiveKind kind, int mesh_axis,
                       int64_t bytes) {
  const int64_t devices = mesh.axisSize(mesh_axis);
  if (devices == 1) return 0;
  PIPESHARD_CHECK(model.links.size() == mesh.shape.size(), "{} links for mesh {}", model.links.size(),
                  printMesh(mesh));
  if (model.times && model.one_node) {
    if (const auto measured = model.times->collectiveTime(collectiveName(kind), devices, bytes))
      return *measured;
  }
  const LinkCost& link = model.links[mesh_axis];
  const int64_t share = bytes - bytes / devices;  // (n-1)/n, rounded up
  const int64_t travelling = kind == CollectiveKind::kAllReduce ? 2 * share : share;
  const bool slower = kind == CollectiveKind::kAllToAll && link.all_to_all_bytes_per_ns > 0;
  return linkTime(link, static_cast<double>(travelling) *
                            (slower ? link.bytes_per_ns / link.all_to_all_bytes_per_ns : 1));
}

int64_t computeCost(const CostModel& model, double flops, int64_t bytes, WorkClass work_class,
                    DataType type) {
  if (flops == 0 && bytes == 0) return 0;
  const auto moved = static_cast<double>(bytes);
  int64_t ns = 0;
  if (model.kinds == nullptr)
    ns = std::max(nanoseconds(flops, model.flops_per_ns), nanoseconds(moved, model.bytes_per_ns));
  if (model.kinds != nullptr) {
    for (const DeviceKind& kind : *model.kinds) ns = std::max(ns, kind.time(work_class, type, flops, moved));
  }
  return model.devices_per_core == 1 ? ns : nanoseconds(static_cast<double>(ns) * model.devices_per_core, 1);
}

}  // namespace pipeshard
