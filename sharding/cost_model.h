// What work costs on one logical mesh, in nanoseconds, as integers: the same input gives the same plan anywhere.
//
// A collective over a mesh axis of n devices, B bytes being the largest whole tensor that one of them holds before or after:
//   all-gather      latency + (n-1)/n B / bandwidth         B: gathered
//   reduce-scatter  latency + (n-1)/n B / bandwidth         B: before it is scattered
//   all-reduce      latency + 2 (n-1)/n B / bandwidth
//   all-to-all      latency + (n-1)/n B / bandwidth         B: what one device holds
// Local work: max(FLOPs / rate, bytes read and written / memory bandwidth).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "ir/sharding_spec.h"

namespace pipeshard {

enum class CollectiveKind : uint8_t { kAllReduce, kAllGather, kReduceScatter, kAllToAll };
std::string_view collectiveName(CollectiveKind kind);  // the operator's name in the pipeshard domain: "AllReduce"

struct LinkCost {
  int64_t latency_ns = 5'000;
  double bytes_per_ns = 5;  // of one device along this mesh axis: 5 is 5 GB/s
};

struct CostModel {
  double flops_per_ns = 50;     // of one device: 50 is 50 GFLOP/s
  double bytes_per_ns = 10;     // its memory
  std::vector<LinkCost> links;  // by mesh axis

  // The same link along every axis. Until there are profiles of machines: two processes of one computer (benchmarks/README.md).
  static CostModel uniform(const LogicalMesh& mesh, LinkCost link = {});
};

// 0 over a mesh axis of one device.
int64_t collectiveCost(const CostModel& model, const LogicalMesh& mesh, CollectiveKind kind, int mesh_axis, int64_t bytes);
int64_t computeCost(const CostModel& model, double flops, int64_t bytes);

}  // namespace pipeshard
