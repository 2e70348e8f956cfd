// Stage and mesh assignment: layers to stages, stages to submeshes, each with one of its options (logical
// mesh, kept boundary, method, recomputation). Exact: a dynamic program over (stages left, next layer, next
// device, boundary), after Alpa (Zheng et al. 2022, section 5.2) and PipeDream (Narayanan et al. 2019,
// section 3.1), with what they leave out: transfers between stages, gradient synchronisation, unequal
// devices, any number of devices, memory under the schedule. Works on numbers alone, so that brute force can
// check it.
//
// Search space. Devices are taken in order. A submesh is a part of one node (any number of its devices, next
// to each other), or whole nodes next to each other; the next stage begins at the device behind it, or at the
// next node that begins (the rest of a node may stay unused, and so may the last devices). Which sizes are
// allowed is the request's.
//
// Objective, in nanoseconds of one step with B microbatches (t: a pass forward and backward, x: what goes to
// the next stage and comes back per microbatch, u: once a step; e: 1 if transfers hold up the devices, 0 if
// they run beside):
//   kFlush       sum_s (t_s + x_s) + max_s ((B-1) (t_s + e x_s) + u_s)
//                1F1B, GPipe and what does better than they
//   kThroughput  max_s max(t_s + u_s, x_s)
//                asynchronous (PipeDream): u_s per microbatch; of equal ones that of least sum_s (t_s + x_s)
// Memory: fixed + activation * in_flight + transient of an option fits into its devices; in_flight of a stage
// with k stages behind it is min(B, k + 1) under 1F1B, B under GPipe.
//
// How kFlush is minimised. The dynamic program finds the least sum S of the plans whose maximum is at most a
// bound; let G be the maximum of the plan that it finds. Then no plan with a maximum in [G, bound] is better
// than S + G, and plans with a smaller maximum have a sum of S or more. So only bounds below G are left, and
// of these only those where S + the least possible maximum is below the best plan known. They are divided,
// and the program is run again, until none is left.
//
//   two layers of 10 ns on 2 devices, B = 4, no transfers: one stage on one device 20 + 3*20 = 80; on both
//   devices (t = 12, u = 8) 12 + 3*12 + 8 = 56; two stages 20 + 3*10 = 50
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "ir/cluster/cluster.h"
#include "partition/costs/stage_costs.h"

namespace pipeshard {

enum class AssignmentObjective : uint8_t { kFlush, kThroughput };

struct AssignmentRequest {
  const StageCosts& costs;
  const Cluster& cluster;
  AssignmentObjective objective = AssignmentObjective::kFlush;
  int64_t microbatches = 1;
  bool exposed_transfers = true;                             // e
  std::function<int64_t(int stages_behind)> in_flight = {};  // empty: min(B, k + 1)
  std::function<bool(const Submesh&)> allowed = {};          // empty: all
  int least_stages = 1;
  int most_stages = 0;           // 0: any
  bool all_devices = false;      // every device is used
  int64_t bound_ns = INT64_MAX;  // plans of this objective or more are of no interest
  bool any = false;              // one below the bound is enough (kFlush): is there one?
  // asked often, by any thread; once true: the best so far is returned, marked
  std::function<bool()> interrupted = {};
  int threads = 1;  // results do not depend on it
};

struct AssignedStage {
  int first_layer = 0;
  int last_layer = 0;
  Submesh submesh;
  StageOption option;
  int64_t transfer_ns = 0;  // x
};
struct Assignment {
  std::vector<AssignedStage> stages;
  int64_t objective_ns = 0;
};
struct AssignmentResult {
  // The best, then others: for every other number of stages a good one (the best under kThroughput; else ask
  // with least_stages == most_stages), and those met on the way to the best; ascending objective, all
  // different. Empty: nothing fits.
  std::vector<Assignment> assignments;
  bool complete = true;  // false: interrupted
  int64_t states = 0;    // visited, for benchmarks
};
// Deterministic: of equal objective, the plan of fewer stages, then of earlier cuts, smaller submeshes,
// earlier options among those met.
AssignmentResult assignStagesToMeshes(const AssignmentRequest& request);

// All submeshes that can begin at a device; what the search space above means, in one place.
std::vector<Submesh> submeshesAt(const Cluster& cluster, int first_device);

// The objective of stages that are given.
int64_t objectiveOf(const AssignmentRequest& request, const std::vector<AssignedStage>& stages);

}  // namespace pipeshard
