// Cluster: the devices that a plan is for, as a description; planning needs none of them. Nodes hold devices;
// a device belongs to a kind, with memory and rates; links join the devices of a node, and nodes by their
// NICs. Nodes may differ.
//
// Devices have numbers (ranks) 0 to deviceCount()-1, node by node. Every rate has its unit in its name and
// its source in `source`.
//
// A rate is not one number: small operators are slow. A CostCurve says what amounts of work take, by points
// between which time is interpolated linearly. Presets have curves of a peak and a start-up time; `pipeshard
// profile` measures them (ir/cluster/profile.h). docs/clusters.md has the forms of --cluster, the files, and
// the source of every number of the presets.
//
//   {{1000, 50}, {100000, 2050}}:  1000 take 50 ns, 50500 take 1050;
//                                  200000, at the last segment's rate, 4070; 0 takes 50 - 20 = 30
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ir/base/data_type.h"
#include "ir/base/ids.h"

namespace pipeshard {

class OperatorTimes;  // ir/cluster/profile.h

struct CostPoint {
  int64_t amount = 0;  // FLOPs, or bytes
  int64_t ns = 0;
  friend bool operator==(const CostPoint&, const CostPoint&) = default;
};
// Points by amount, strictly ascending; ns do not fall. Empty: unknown.
struct CostCurve {
  std::vector<CostPoint> points;
  // Linear between points and beyond them (never below 0, nor falling); one point alone: in proportion.
  // PIPESHARD_CHECK: not empty.
  int64_t at(double amount) const;
  // Of a peak rate per nanosecond of which `half` FLOPs (or bytes) reach one half: latency + (amount + half)
  // / rate.
  static CostCurve ofRate(double per_ns, double half = 0, int64_t latency_ns = 0);
  friend bool operator==(const CostCurve&, const CostCurve&) = default;
};

// What kind of work an operator is: follows from its factor rule, never from its name
// (sharding/spmd/work_count.h).
enum class WorkClass : uint8_t {
  kContraction,  // sums over a factor of a product: matrix products
  kConvolution,  // a contraction over a window
  kReduction,    // reductions and normalisations
  kElementwise,  // one result per element
  kMovement,     // moves data: copies, gathers, transposes
};
inline constexpr int kWorkClassCount = 5;
std::string_view workClassName(WorkClass work_class);  // "contraction"

// How fast a device does one class of work in one type. The roofline: the larger of the two, where both are
// known.
struct WorkRate {
  WorkClass work_class = WorkClass::kContraction;
  DataType type = DataType::kFloat32;
  CostCurve flops;  // ns by FLOPs
  CostCurve bytes;  // ns by bytes read and written; empty: DeviceKind::memory
  friend bool operator==(const WorkRate&, const WorkRate&) = default;
};

struct DeviceKind {
  std::string name = "default";  // "V100-SXM2-16GB", "cpu-core"
  int64_t memory_bytes = 0;      // 0: unknown, no limit
  CostCurve memory;              // ns by bytes read and written
  std::vector<WorkRate> rates;
  // By class: the part of its rates that it reaches; times are divided by it. Above 1 where a compiler fuses
  // operators.
  std::array<double, kWorkClassCount> efficiency = {1, 1, 1, 1, 1};
  std::string source;  // where the numbers are from
  // Operators that were measured on it (ir/cluster/profile.h); they go before the rates. Not in files: a plan
  // has the profile's digest.
  std::shared_ptr<const OperatorTimes> measured = nullptr;

  // The rate for a class and type; else of the class in float32; nullptr: nothing is known of the class.
  const WorkRate* rate(WorkClass work_class, DataType type) const;
  bool isKnown() const { return !rates.empty() || !memory.points.empty(); }
  // Nanoseconds of an operator that computes and moves so much: the longer of the two, by what is known.
  // Where the type's rate is unknown, float32's counts, in proportion to the sizes if the type is wider.
  // PIPESHARD_CHECK: isKnown().
  int64_t time(WorkClass work_class, DataType type, double flops, double bytes) const;
  friend bool operator==(const DeviceKind&, const DeviceKind&) = default;
};

struct Link {
  int64_t latency_ns = 5'000;
  double bytes_per_ns = 5;  // 5 is 5 GB/s, in one direction
  CostCurve measured = {};  // ns by bytes of one message; empty: latency + bytes / rate
  friend bool operator==(const Link&, const Link&) = default;
};

// What a device exchanges with the others of a small group in its node.
struct GroupRate {
  int devices = 2;  // of the group, at most
  double bytes_per_ns = 5;
  friend bool operator==(const GroupRate&, const GroupRate&) = default;
};

struct ClusterNode {
  int kind = 0;  // into Cluster::kinds
  int devices = 1;
  Link inside;  // of one device to all others of the node
  // Where links join pairs of devices, without a switch (NVLink of V100), smaller groups use a part of a
  // device's links. Ascending by devices; of larger groups, and where there are none: inside.
  std::vector<GroupRate> inside_groups = {};
  Link nic;      // of one NIC of the node, to any other node
  int nics = 1;  // the devices share them evenly; each uses one at a time
  // devices beyond so many wait for each other (workers of one computer); 0: each computes for itself
  int cores = 0;
  // the inside link is the memory of one computer: all transfers of the node share its bandwidth
  bool shared_memory = false;
  friend bool operator==(const ClusterNode&, const ClusterNode&) = default;

  // The inside link as a group of so many of the node's devices has it; of a message from one device to
  // another: 2.
  //   inside 150, groups {2: 25}, {4: 100}: 2 devices 25; 3 and 4 devices 100; 5 and more 150
  Link insideOf(int group) const;
};

struct Cluster {
  std::string name = "1x1";  // as given: "2x4", "p3.16xlarge:8", the path of a file
  std::vector<DeviceKind> kinds = std::vector<DeviceKind>(1);
  std::vector<ClusterNode> nodes = std::vector<ClusterNode>(1);

  int nodeCount() const { return nodes.size(); }
  int deviceCount() const;
  int devicesPerNode() const;  // of the node with the most
  int nodeOf(int device) const;
  int firstDeviceOf(int node) const;
  const DeviceKind& kindOf(int device) const;
  // What the least of these devices is known to have; 0: unknown.
  int64_t leastMemory(const std::vector<RankId>& devices) const;
  // All nodes are of one kind, with as many devices and the same links.
  bool isUniform() const;
  friend bool operator==(const Cluster&, const Cluster&) = default;
};

// Equal nodes, a NIC for every device; rates are those of CostModel's defaults (sharding/specs/cost_model.h).
// Named "2x4".
Cluster uniformCluster(int nodes, int devices_per_node);

// "2x4": two nodes of four devices each. Or a preset (ir/cluster/cluster_presets.h): NAME, one node; NAME:N,
// so many; NAME:NxD, N nodes with D of their devices each. A preset of a device has one, up to as many as
// nodes of it have: "v100" is one, "v100:8" one node of eight, "v100:2x4" two of four. Throws Error(kUsage)
// that shows the accepted forms and near names.
//   "p3.16xlarge:8" is 8 nodes of 8 V100 each, 25 Gbit/s between them
Cluster parseCluster(std::string_view text);

// Clusters like this one with more devices, as parseCluster makes them, in ascending size: of "2x4" with more
// devices in each node, of "NAME:N" with more of what N counts. One or two more, half as many more, twice and
// four times as many, as far as there are such; none for other names, which cannot be made larger.
//   "2x4" gives 2x5, 2x6, 2x8, 2x16; "v100:6" gives v100:7 and v100:8: a node has no more
std::vector<Cluster> largerClusters(const Cluster& cluster);

// "2 x 4 devices"; "p3.16xlarge:8, 8 x 8 devices V100-SXM2-16GB"; "lab, 11 devices: 1 x 8 V100-SXM2-16GB, 1 x
// 3 old-card".
std::string printCluster(const Cluster& cluster);

}  // namespace pipeshard
