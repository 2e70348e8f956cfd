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
//   kFlush       sum_s (t_s + x_s) + max_s ((B-1) (t_s + e x_s) + u_s)     1F1B, GPipe and what does better
//                                                                          than they
//   kThroughput  max_s max(t_s + u_s, x_s)                                 asynchronous (PipeDream): u_s per
//                                                                          microbatch; of equal ones that of
//                                                                          the least sum_s (t_s + x_s)
// Memory: fixed + activation * in_flight + transient of an option fits into its devices; in_flight of a stage
// with k stages behind it is min(B, k + 1) under 1F1B, B under GPipe.
//
// Of kFlush the program minimises the sum under a bound on the maximum. That of (S, G) under a bound proves
// that no plan with a maximum in [G, bound] is better than S + G, and that those below G have a sum of S or
// more: the bounds where S + least maximum stays below the best plan known are divided until none is left.
//
//   two layers of 10 ns on 2 devices, B = 4, no transfers: one stage on one device 80; on both (t = 12, u =
//     8): 12 + 3*12 + 8 = 56;
//   two stages: 20 + 30 = 50
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "ir/cluster/cluster.h"

namespace pipeshard {

struct Submesh {
  int first_device = 0;
  int nodes = 1;
  int devices_per_node = 1;  // of each; nodes > 1: all that each has, and they have equally many
  int deviceCount() const { return nodes * devices_per_node; }
  friend auto operator<=>(const Submesh&, const Submesh&) = default;
};

struct StageOption {
  int config = 0;       // the caller's
  int boundary = 0;     // 0..kMostBoundaries-1: what transfer() depends on
  int64_t pass_ns = 0;  // t
  int64_t step_ns = 0;  // u
  int64_t fixed_bytes = 0;
  int64_t activation_bytes = 0;  // per microbatch in flight
  int64_t transient_bytes = 0;
};
inline constexpr int kMostBoundaries = 16;
inline constexpr int64_t kNever = INT64_MAX / 4;  // of a time: it cannot be; sums of two stay numbers

// What stages cost. Const members may be called by several threads.
class StageCosts {
 public:
  virtual ~StageCosts() = default;
  virtual int layers() const = 0;
  // Submeshes of equal class have equal options and memory; transfers depend on the two classes and on
  // whether the second submesh begins on the node on which the first ends.
  virtual int submeshClass(const Submesh& submesh) const = 0;
  // Of layers first..last, inclusive. Empty: it cannot be. The reference stays valid.
  virtual const std::vector<StageOption>& options(int first_layer, int last_layer,
                                                  const Submesh& submesh) const = 0;
  // Nanoseconds per microbatch, forward and backward together, that what crosses the cut behind `layer`
  // takes. kNever: a boundary cannot be there, so no stage that ends there has it.
  virtual int64_t transfer(int layer, const Submesh& from, int from_boundary, const Submesh& to,
                           int to_boundary) const = 0;
  virtual int64_t memoryBytes(
      const Submesh& submesh) const = 0;  // of its smallest device; INT64_MAX: no limit
};

// Costs like others, which are kept by reference, but for what a class overrides.
class OtherStageCosts : public StageCosts {
 public:
  explicit OtherStageCosts(const StageCosts& costs) : costs_(costs) {}
  int layers() const override { return costs_.layers(); }
  int submeshClass(const Submesh& submesh) const override { return costs_.submeshClass(submesh); }
  const std::vector<StageOption>& options(int first_layer, int last_layer,
                                          const Submesh& submesh) const override {
    return costs_.options(first_layer, last_layer, submesh);
  }
  int64_t transfer(int layer, const Submesh& from, int from_boundary, const Submesh& to,
                   int to_boundary) const override {
    return costs_.transfer(layer, from, from_boundary, to, to_boundary);
  }
  int64_t memoryBytes(const Submesh& submesh) const override { return costs_.memoryBytes(submesh); }

 protected:
  const StageCosts& costs_;
};

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
  std::function<bool()> interrupted =
      {};           // asked often, by any thread; once true: the best so far is returned, marked
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

// The objective of stages that are given, and whether each fits: what the search and brute force both go by.
int64_t objectiveOf(const AssignmentRequest& request, const std::vector<AssignedStage>& stages);
bool fitsMemory(const AssignmentRequest& request, const AssignedStage& stage, int stages_behind);

}  // namespace pipeshard
