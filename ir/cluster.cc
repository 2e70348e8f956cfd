#include "ir/cluster.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "ir/error.h"

namespace pipeshard {
namespace {

// A whole positive number, or 0 when `text` is anything else.
int positiveNumber(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number > 0 ? number : 0;
}

}  // namespace

int64_t CostCurve::at(double amount) const {
  PIPESHARD_CHECK(!points.empty(), "a cost curve without points was asked for {}", amount);
  if (points.size() == 1) {
    return points[0].amount == 0 ? points[0].ns
                                 : std::llround(amount * static_cast<double>(points[0].ns) / static_cast<double>(points[0].amount));
  }
  size_t right = 1;
  while (right + 1 < points.size() && static_cast<double>(points[right].amount) < amount) ++right;
  const CostPoint& a = points[right - 1];
  const CostPoint& b = points[right];
  const double slope = static_cast<double>(b.ns - a.ns) / static_cast<double>(b.amount - a.amount);
  return std::max<int64_t>(0, std::llround(static_cast<double>(a.ns) + slope * (amount - static_cast<double>(a.amount))));
}

CostCurve CostCurve::ofRate(double per_ns, double half, int64_t latency_ns) {
  constexpr int64_t kAmount = 1'000'000'000'000;
  const auto ns = [&](int64_t amount) { return latency_ns + std::llround((static_cast<double>(amount) + half) / per_ns); };
  return {{{0, half == 0 && latency_ns == 0 ? 0 : ns(0)}, {kAmount, ns(kAmount)}}};
}

std::string_view workClassName(WorkClass work_class) {
  constexpr std::array<std::string_view, kWorkClassCount> kNames{"contraction", "convolution", "reduction", "elementwise", "movement"};
  return kNames[static_cast<size_t>(work_class)];
}

const WorkRate* DeviceKind::rate(WorkClass work_class, DataType type) const {
  const WorkRate* other = nullptr;
  for (const WorkRate& rate : rates) {
    if (rate.work_class != work_class) continue;
    if (rate.type == type) return &rate;
    if (rate.type == DataType::kFloat32) other = &rate;
  }
  return other;
}

int Cluster::deviceCount() const {
  int count = 0;
  for (const ClusterNode& node : nodes) count += node.devices;
  return count;
}

int Cluster::devicesPerNode() const {
  int most = 0;
  for (const ClusterNode& node : nodes) most = std::max(most, node.devices);
  return most;
}

int Cluster::nodeOf(int device) const {
  for (int node = 0; node < nodeCount(); ++node) {
    device -= nodes[static_cast<size_t>(node)].devices;
    if (device < 0) return node;
  }
  PIPESHARD_CHECK(false, "the cluster {} has no such device", name);
  return 0;
}

int Cluster::firstDeviceOf(int node) const {
  int first = 0;
  for (int before = 0; before < node; ++before) first += nodes[static_cast<size_t>(before)].devices;
  return first;
}

const DeviceKind& Cluster::kindOf(int device) const { return kinds[static_cast<size_t>(nodes[static_cast<size_t>(nodeOf(device))].kind)]; }

bool Cluster::isUniform() const {
  return std::all_of(nodes.begin(), nodes.end(), [&](const ClusterNode& node) { return node == nodes.front(); });
}

Cluster uniformCluster(int node_count, int devices_per_node) {
  Cluster cluster;
  cluster.name = fmt::format("{}x{}", node_count, devices_per_node);
  cluster.nodes.assign(static_cast<size_t>(node_count), ClusterNode{});
  for (ClusterNode& node : cluster.nodes) node.devices = devices_per_node;
  return cluster;
}

Cluster parseCluster(std::string_view text) {
  constexpr int kMostDevices = 1 << 20;
  const size_t x = text.find('x');
  if (x != std::string_view::npos) {
    const int nodes = positiveNumber(text.substr(0, x));
    const int devices = positiveNumber(text.substr(x + 1));
    if (nodes > 0 && devices > 0 && nodes <= kMostDevices / devices) return uniformCluster(nodes, devices);
  }
  fail(ErrorCode::kUsage, "cluster \"{}\" is not understood; write NODESxDEVICES, for example 1x4 (one node with four devices) or 2x8",
       text);
}

}  // namespace pipeshard
