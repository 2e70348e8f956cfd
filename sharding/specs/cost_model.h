// What work costs on one logical mesh, in nanoseconds, as integers: the same input gives the same plan
// anywhere.
//
// A collective over a mesh axis of n devices, B bytes being the largest whole tensor that one of them holds
// before or after:
//   all-gather      latency + (n-1)/n B / bandwidth      B: gathered
//   reduce-scatter  latency + (n-1)/n B / bandwidth      B: before it is scattered
//   all-reduce      latency + 2 (n-1)/n B / bandwidth
//   all-to-all      latency + (n-1)/n B / bandwidth      B: what one device holds (uneven shards: before or
//                                                        after, the larger)
// Local work: of the slowest of the devices, by its kind's rates for the class and type of the work
// (ir/cluster/cluster.h); where nothing is known of them, max(FLOPs / rate, bytes read and written / memory
// bandwidth). Shards may be uneven; costs are those of the device with the largest, which is always the last
// one of the mesh.
//
//   all-gather of "S0,R" to "R,R", [8,16] floats, 4 devices, latency 5000 ns, 5 bytes per ns:
//   B = 512, 384 bytes travel: 5000 + 384/5 = 5077 ns
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ir/base/ids.h"
#include "ir/base/sharding_spec.h"
#include "ir/cluster/cluster.h"
#include "ir/cluster/profile.h"
#include "ir/operators/collectives.h"

namespace pipeshard {

// The B above, from the bytes of the collective's local input and output.
int64_t collectiveBytes(CollectiveKind kind, int64_t input, int64_t output);

// Of a mesh axis: what each of its devices gets when all groups of the axis exchange at once, round a ring.
// Between stages: what each sending device gets when all send.
struct LinkCost {
  int64_t latency_ns = 5'000;
  double bytes_per_ns = 5;             // of one device: 5 is 5 GB/s
  double all_to_all_bytes_per_ns = 0;  // where groups cross nodes, of all-to-alls; 0: the same
  double receive_bytes_per_ns = 0;     // between stages: of a receiving device; 0: the same
  CostCurve measured = {};             // ns by bytes that travel; empty: latency + bytes / rate
  friend bool operator==(const LinkCost&, const LinkCost&) = default;
};

struct CostModel {
  double flops_per_ns = 50;     // of one device: 50 is 50 GFLOP/s
  double bytes_per_ns = 10;     // its memory
  std::vector<LinkCost> links;  // by mesh axis
  // Of the devices; nullptr: nothing is known of them but the two rates above.
  std::shared_ptr<const std::vector<DeviceKind>> kinds = nullptr;
  double devices_per_core = 1;  // more than 1: they wait for each other
  // Measured operators (ir/cluster/profile.h), used where they know a node's; nullptr: none.
  std::shared_ptr<const OperatorTimes> times = nullptr;
  bool busy = false;      // the node's other devices work meanwhile
  bool one_node = false;  // all links are inside a node: measured collectives count

  // The same link along every axis. Until there are profiles of machines: two processes of one computer
  // (benchmarks/README.md).
  static CostModel uniform(const LogicalMesh& mesh, LinkCost link = {});
};

// On these devices of a cluster (a stage's, in its mesh's order). For every mesh axis the slowest link that
// its groups use. Inside a node that is the node's (shared_memory: a share of it for every device of the node
// that is in a group). A ring goes through a node's devices one after another, so a group that crosses nodes
// goes out of each of its nodes once and comes in once: all groups of the axis that do so share the NICs of
// the node; no device uses more than one NIC. In an all-to-all every device of such a group sends each of
// those in other nodes its part.
//
//   2 nodes of 4 devices, 100 GB/s inside, one NIC of 3 GB/s each; the bandwidth is, in GB/s,
//   on mesh [8]:    3
//   on mesh [2,4]:  axis 1: 100;  axis 0: four groups share the NIC: 0.75
//   on mesh [4,2]:  axis 0 (groups 0,2,4,6 and 1,3,5,7): two groups share the NIC: 1.5
CostModel costModelOn(const Cluster& cluster, const std::vector<RankId>& devices, const LogicalMesh& mesh);

// From the devices of one stage to those of another. Inside a node its link; if the two stages lie on several
// nodes, what the NICs give: all devices of a node that send share its NICs, and those that receive.
LinkCost linkBetween(const Cluster& cluster, const std::vector<RankId>& from, const std::vector<RankId>& to);
// The same link as those see it that receive.
LinkCost receivingSide(const LinkCost& between);

// Of so many bytes that travel over a link.
int64_t linkTime(const LinkCost& link, double bytes);

// Of one group of a program's: `model` has one link for all of them, or one for each.
CostModel groupModel(const CostModel& model, GroupId group);

// `bytes`: B. 0 over a mesh axis of one device.
int64_t collectiveCost(const CostModel& model, const LogicalMesh& mesh, CollectiveKind kind, int mesh_axis,
                       int64_t bytes);
// An operator's work; copies and fills are movement. 0 for none.
int64_t computeCost(const CostModel& model, double flops, int64_t bytes,
                    WorkClass work_class = WorkClass::kMovement, DataType type = DataType::kFloat32);

}  // namespace pipeshard
