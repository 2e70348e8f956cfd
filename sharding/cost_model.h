// What work costs on one logical mesh, in nanoseconds, as integers: the same input gives the same plan anywhere.
//
// A collective over a mesh axis of n devices, B bytes being the largest whole tensor that one of them holds before or after:
//   all-gather      latency + (n-1)/n B / bandwidth         B: gathered
//   reduce-scatter  latency + (n-1)/n B / bandwidth         B: before it is scattered
//   all-reduce      latency + 2 (n-1)/n B / bandwidth
//   all-to-all      latency + (n-1)/n B / bandwidth         B: what one device holds (uneven shards: before or after, the larger)
// Local work: max(FLOPs / rate, bytes read and written / memory bandwidth).
// Shards may be uneven; costs are those of the device with the largest, which is always the last one of the mesh.
//
//   all-gather of "S0,R" to "R,R", [8,16] floats, 4 devices: B = 512, 384 bytes travel: 5000 + 384/5 = 5077 ns
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "ir/cluster.h"
#include "ir/graph.h"
#include "ir/profile.h"
#include "ir/sharding_spec.h"

namespace pipeshard {

enum class CollectiveKind : uint8_t { kAllReduce, kAllGather, kReduceScatter, kAllToAll };
std::string_view collectiveName(CollectiveKind kind);  // the operator's name in the pipeshard domain: "AllReduce"
// Of a node; nullopt when it is no collective.
std::optional<CollectiveKind> collectiveKind(const Node& node);
// The B above, from the bytes of the collective's local input and output.
int64_t collectiveBytes(CollectiveKind kind, int64_t input, int64_t output);

struct LinkCost {
  int64_t latency_ns = 5'000;
  double bytes_per_ns = 5;  // of one device along this mesh axis: 5 is 5 GB/s
};

struct CostModel {
  double flops_per_ns = 50;     // of one device: 50 is 50 GFLOP/s
  double bytes_per_ns = 10;     // its memory
  std::vector<LinkCost> links;  // by mesh axis
  // Measured operators (ir/profile.h), used where they know a node's; nullptr: none.
  std::shared_ptr<const OperatorTimes> times = nullptr;
  bool busy = false;  // the node's other devices work meanwhile

  // The same link along every axis. Until there are profiles of machines: two processes of one computer (benchmarks/README.md).
  static CostModel uniform(const LogicalMesh& mesh, LinkCost link = {});
};

// On these devices of a cluster (a stage's, in its mesh's order): rates of the slowest of them, and for every mesh axis the link that its
// groups use: inside a node, or between nodes, with a share of the NICs that all groups of the axis use together.
CostModel costModelOn(const Cluster& cluster, const std::vector<int>& devices, const LogicalMesh& mesh);

// From the devices of one stage to those of another: of one device, to any of the other side.
LinkCost linkBetween(const Cluster& cluster, const std::vector<int>& from, const std::vector<int>& to);

// `bytes`: B. 0 over a mesh axis of one device.
int64_t collectiveCost(const CostModel& model, const LogicalMesh& mesh, CollectiveKind kind, int mesh_axis, int64_t bytes);
int64_t computeCost(const CostModel& model, double flops, int64_t bytes);

}  // namespace pipeshard
