#include "ir/cluster/cluster.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "ir/base/near_matches.h"
#include "ir/cluster/cluster_presets.h"

namespace pipeshard {
namespace {

// A whole positive number, or 0 when `text` is anything else.
int positiveNumber(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number > 0 ? number : 0;
}

// "2x4"
std::optional<std::pair<int, int>> nodesAndDevices(std::string_view text) {
  constexpr int kMostDevices = 1 << 20;
  const size_t x = text.find('x');
  if (x == std::string_view::npos) return std::nullopt;
  const int nodes = positiveNumber(text.substr(0, x));
  const int devices = positiveNumber(text.substr(x + 1));
  if (nodes == 0 || devices == 0 || nodes > kMostDevices / devices) return std::nullopt;
  return std::pair(nodes, devices);
}

const ClusterPreset& findPreset(std::string_view text, std::string_view name) {
  std::string lower(name);
  for (char& c : lower) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  std::vector<std::string> names;
  for (const ClusterPreset& preset : clusterPresets()) {
    if (preset.name == lower) return preset;
    names.push_back(preset.name);
  }
  const std::vector<std::string> near = nearMatches(lower, names);
  fail(ErrorCode::kUsage,
       "cluster \"{}\" is not understood; write NODESxDEVICES, for example 1x4 (one node with four devices) "
       "or 2x8; a preset with a number of nodes, for example p3.16xlarge:8; or a JSON file "
       "(docs/clusters.md){}. The presets are {}",
       text, near.empty() ? "" : fmt::format("; did you mean {}?", fmt::join(near, " or ")),
       fmt::join(names, ", "));
}

Cluster presetCluster(std::string_view text, std::string_view name, std::string_view counts) {
  const ClusterPreset& preset = findPreset(text, name);
  const int most = preset.one.nodes[0].devices;
  constexpr int kMostNodes = 1 << 16;
  std::pair<int, int> size{1, preset.of_device ? 1 : most};
  if (name.size() < text.size()) {
    const int number = positiveNumber(counts);
    const auto both = nodesAndDevices(counts);
    if (both) size = *both;
    if (number > 0) (preset.of_device ? size.second : size.first) = number;
    if (number == 0 && !both) {
      fail(ErrorCode::kUsage,
           "cluster \"{}\": found \"{}\"; expected a number of {}, as in {}:4, or nodes x devices, as in "
           "{}:2x{}",
           text, counts, preset.of_device ? "devices of one node" : "nodes", name, name, most);
    }
  }
  if (size.second > most || size.first > kMostNodes) {
    fail(ErrorCode::kUsage,
         "cluster \"{}\": found {} nodes of {} devices; expected at most {} nodes, and a node of {} has {} "
         "devices: {}:{}x{}",
         text, size.first, size.second, kMostNodes, preset.name, most, preset.name,
         std::max(2, (size.second + most - 1) / most), most);
  }
  Cluster cluster = preset.one;
  cluster.name = text;
  cluster.nodes[0].devices = size.second;
  cluster.nodes.resize(size.first, ClusterNode(cluster.nodes[0]));
  return cluster;
}

}  // namespace

int64_t CostCurve::at(double amount) const {
  PIPESHARD_CHECK(!points.empty(), "a cost curve without points was asked for {}", amount);
  if (points.size() == 1) {
    return points[0].amount == 0 ? points[0].ns
                                 : std::llround(amount * static_cast<double>(points[0].ns) /
                                                static_cast<double>(points[0].amount));
  }
  size_t right = 1;
  while (right + 1 < points.size() && static_cast<double>(points[right].amount) < amount) ++right;
  const CostPoint& a = points[right - 1];
  const CostPoint& b = points[right];
  const double slope = static_cast<double>(b.ns - a.ns) / static_cast<double>(b.amount - a.amount);
  return std::max<int64_t>(
      0, std::llround(static_cast<double>(a.ns) + slope * (amount - static_cast<double>(a.amount))));
}

CostCurve CostCurve::ofRate(double per_ns, double half, int64_t latency_ns) {
  constexpr int64_t kAmount = 1'000'000'000'000;
  const auto ns = [&](int64_t amount) {
    return latency_ns + std::llround((static_cast<double>(amount) + half) / per_ns);
  };
  return {{{0, half == 0 && latency_ns == 0 ? 0 : ns(0)}, {kAmount, ns(kAmount)}}};
}

std::string_view workClassName(WorkClass work_class) {
  constexpr std::array<std::string_view, kWorkClassCount> kNames{"contraction", "convolution", "reduction",
                                                                 "elementwise", "movement"};
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

int64_t DeviceKind::time(WorkClass work_class, DataType type, double flops, double bytes) const {
  PIPESHARD_CHECK(isKnown(), "nothing is known of device kind {}", name);
  const WorkRate* found = rate(work_class, type);
  int64_t ns = 0;
  if (found != nullptr && !found->flops.points.empty()) {
    const bool wider = found->type != type && dataTypeSize(type) > dataTypeSize(found->type);
    const double work = wider ? flops * static_cast<double>(dataTypeSize(type)) /
                                    static_cast<double>(dataTypeSize(found->type))
                              : flops;
    ns = found->flops.at(work);
  }
  const CostCurve& moving = found != nullptr && !found->bytes.points.empty() ? found->bytes : memory;
  if (!moving.points.empty()) ns = std::max(ns, moving.at(bytes));
  return std::llround(static_cast<double>(ns) / efficiency[static_cast<size_t>(work_class)]);
}

Link ClusterNode::insideOf(int group) const {
  Link link = inside;
  const auto rate = std::find_if(inside_groups.begin(), inside_groups.end(),
                                 [&](const GroupRate& g) { return group <= g.devices; });
  if (rate != inside_groups.end()) link.bytes_per_ns = rate->bytes_per_ns;
  return link;
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
    device -= nodes[node].devices;
    if (device < 0) return node;
  }
  PIPESHARD_CHECK(false, "the cluster {} has no such device", name);
  return 0;
}

int Cluster::firstDeviceOf(int node) const {
  int first = 0;
  for (int before = 0; before < node; ++before) first += nodes[before].devices;
  return first;
}

const DeviceKind& Cluster::kindOf(int device) const { return kinds[nodes[nodeOf(device)].kind]; }

int64_t Cluster::leastMemory(const std::vector<RankId>& devices) const {
  int64_t least = 0;
  for (const RankId device : devices) {
    const int64_t memory = kindOf(device.index()).memory_bytes;
    if (memory > 0 && (least == 0 || memory < least)) least = memory;
  }
  return least;
}

bool Cluster::isUniform() const {
  return std::all_of(nodes.begin(), nodes.end(),
                     [&](const ClusterNode& node) { return node == nodes.front(); });
}

Cluster uniformCluster(int node_count, int devices_per_node) {
  Cluster cluster;
  cluster.name = fmt::format("{}x{}", node_count, devices_per_node);
  ClusterNode node;
  node.devices = node.nics = devices_per_node;
  cluster.nodes.assign(node_count, node);
  return cluster;
}

Cluster parseCluster(std::string_view text) {
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos) {
    if (const auto counts = nodesAndDevices(text)) return uniformCluster(counts->first, counts->second);
  }
  return presetCluster(text, text.substr(0, colon),
                       colon == std::string_view::npos ? "" : text.substr(colon + 1));
}

std::vector<Cluster> largerClusters(const Cluster& cluster) {
  const std::string_view name = cluster.name;
  const size_t colon = name.find(':');
  const size_t before = colon == std::string_view::npos ? name.find('x') : colon;
  std::vector<Cluster> clusters;
  const int size = before == std::string_view::npos ? 0 : positiveNumber(name.substr(before + 1));
  if (size == 0) return clusters;
  const std::set<int64_t> sizes = {int64_t{size} + 1, int64_t{size} + 2, int64_t{size} * 3 / 2,
                                   int64_t{size} * 2, int64_t{size} * 4};
  for (const int64_t larger : sizes) {
    if (larger <= size) continue;
    try {
      clusters.push_back(parseCluster(fmt::format("{}{}", name.substr(0, before + 1), larger)));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUsage) throw;
      break;  // there is none so large
    }
  }
  return clusters;
}

std::string printCluster(const Cluster& cluster) {
  if (cluster == uniformCluster(cluster.nodeCount(), cluster.devicesPerNode())) {
    return fmt::format("{} x {} devices", cluster.nodeCount(), cluster.devicesPerNode());
  }
  std::vector<std::string> parts;
  for (size_t n = 0; n < cluster.nodes.size();) {
    const ClusterNode& node = cluster.nodes[n];
    size_t count = 0;
    while (n < cluster.nodes.size() && cluster.nodes[n].kind == node.kind &&
           cluster.nodes[n].devices == node.devices)
      ++n, ++count;
    parts.push_back(fmt::format("{} x {} {}", count, node.devices, cluster.kinds[node.kind].name));
  }
  if (parts.size() > 1)
    return fmt::format("{}, {} devices: {}", cluster.name, cluster.deviceCount(), fmt::join(parts, ", "));
  return fmt::format("{}, {} x {} devices {}", cluster.name, cluster.nodeCount(), cluster.nodes[0].devices,
                     cluster.kindOf(0).name);
}

}  // namespace pipeshard
