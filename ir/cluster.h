// Cluster: the devices that a plan is for, as a description; planning needs none of them. Nodes hold devices; a device belongs to a kind,
// with memory and rates; links join the devices of a node, and nodes by their NICs. Nodes may differ.
//
// Devices have numbers (ranks) 0 to deviceCount()-1, node by node. Every rate has its unit in its name and its source in `source`.
//
// A rate is not one number: small operators are slow. A CostCurve says what amounts of work take, by points between which time is
// interpolated linearly. Presets have curves of a peak and an efficiency; `pipeshard profile` measures them (ir/profile.h).
//
//   {{1000, 50}, {100000, 2050}}:  1000 take 50 ns; 50500 take 1050; 200000, at the last segment's rate, 4070; 0 takes 50 - 20 = 30
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ir/data_type.h"

namespace pipeshard {

struct CostPoint {
  int64_t amount = 0;  // FLOPs, or bytes
  int64_t ns = 0;
  friend bool operator==(const CostPoint&, const CostPoint&) = default;
};
// Points by amount, strictly ascending; ns do not fall. Empty: unknown.
struct CostCurve {
  std::vector<CostPoint> points;
  // Linear between points and beyond them (never below 0, nor falling); one point alone: in proportion. PIPESHARD_CHECK: not empty.
  int64_t at(double amount) const;
  // Of a peak rate per nanosecond of which `half` FLOPs (or bytes) reach one half: latency + (amount + half) / rate.
  static CostCurve ofRate(double per_ns, double half = 0, int64_t latency_ns = 0);
  friend bool operator==(const CostCurve&, const CostCurve&) = default;
};

// What kind of work an operator is: follows from its factor rule, never from its name (sharding/work_count.h).
enum class WorkClass : uint8_t {
  kContraction,  // sums over a factor of a product: matrix products
  kConvolution,  // a contraction over a window
  kReduction,    // reductions and normalisations
  kElementwise,  // one result per element
  kMovement,     // moves data: copies, gathers, transposes
};
inline constexpr int kWorkClassCount = 5;
std::string_view workClassName(WorkClass work_class);  // "contraction"

// How fast a device does one class of work in one type. The roofline: the larger of the two, where both are known.
struct WorkRate {
  WorkClass work_class = WorkClass::kContraction;
  DataType type = DataType::kFloat32;
  CostCurve flops;  // ns by FLOPs
  CostCurve bytes;  // ns by bytes read and written; empty: DeviceKind::memory
};

struct DeviceKind {
  std::string name;          // "V100-SXM2-16GB", "cpu-core"
  int64_t memory_bytes = 0;  // 0: unknown, no limit
  CostCurve memory;          // ns by bytes read and written
  std::vector<WorkRate> rates;
  std::string source;  // where the numbers are from
  // The rate for a class and type; else of the class in float32, scaled by the types' sizes; nullptr: nothing is known of the class.
  const WorkRate* rate(WorkClass work_class, DataType type) const;
};

struct Link {
  int64_t latency_ns = 5'000;
  double bytes_per_ns = 5;  // 5 is 5 GB/s, in one direction
  CostCurve measured = {};  // ns by bytes of one message; empty: latency + bytes / rate
  friend bool operator==(const Link&, const Link&) = default;
};

struct ClusterNode {
  int kind = 0;  // into Cluster::kinds
  int devices = 1;
  Link inside;                 // of one device to another of the node
  Link nic;                    // of one NIC of the node, to any other node
  int nics = 1;                // the devices share them evenly
  bool shared_memory = false;  // the inside link is the memory of one computer: all transfers of the node share its bandwidth
  friend bool operator==(const ClusterNode&, const ClusterNode&) = default;
};

struct Cluster {
  std::string name = "1x1";  // as given: "2x4", "p3.16xlarge:8", the path of a file
  std::vector<DeviceKind> kinds = std::vector<DeviceKind>(1);
  std::vector<ClusterNode> nodes = std::vector<ClusterNode>(1);

  int nodeCount() const { return static_cast<int>(nodes.size()); }
  int deviceCount() const;
  int devicesPerNode() const;  // of the node with the most
  int nodeOf(int device) const;
  int firstDeviceOf(int node) const;
  const DeviceKind& kindOf(int device) const;
  // All nodes are of one kind, with as many devices and the same links.
  bool isUniform() const;
};

// Equal nodes; rates are those of CostModel's defaults (sharding/cost_model.h).
Cluster uniformCluster(int nodes, int devices_per_node);

// "1x4": one node, four devices. Throws Error(kUsage) that shows the accepted forms.
Cluster parseCluster(std::string_view text);

}  // namespace pipeshard
