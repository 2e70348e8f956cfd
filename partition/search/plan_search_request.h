// What a search of plans is asked, and what it has found: plain data.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ir/cluster/cluster.h"
#include "ir/plan/schedule_spec.h"
#include "partition/costs/stage_costs.h"
#include "partition/search/plan_prediction.h"

namespace pipeshard {

struct PlanSearchRequest {
  const Cluster& cluster;
  std::vector<int64_t> microbatches;  // that may be, ascending
  size_t first = 0;                   // which of them is tried first
  // Errors of kBadModel, kConfiguration and kOutOfMemory say that a number cannot be; where none can, the
  // first one's is thrown.
  std::function<CountedCosts(int64_t microbatches)> costs;
  // Asked instead where nothing fits with those: more ways to run stages, which take longer to price.
  std::function<CountedCosts(int64_t microbatches)> costs_in_need = {};
  // Asked too where the best assignment would be a 32nd faster on devices of any memory; the better plans of
  // both are returned.
  std::function<CountedCosts(int64_t microbatches)> costs_where_memory_binds = {};
  int64_t bound_ns = INT64_MAX;  // assignments whose objective is 5/4 of this, or more, are of no interest
  // only this one; nothing: every synchronous one that trains
  std::optional<ScheduleSpec> schedule = {};
  int updates = 1;                                   // of a window of an asynchronous schedule
  std::function<bool(const Submesh&)> allowed = {};  // empty: all
  int least_stages = 1;
  int most_stages = 0;  // 0: any
  bool exposed_transfers = false;
  size_t best = 10;        // so many plans are returned
  size_t simulated = 30;   // so many assignments are simulated
  bool neighbours = true;  // look at the best plan's
  int threads = 1;
  const std::atomic<bool>* interrupted = nullptr;  // the best so far is returned, marked
  std::function<void(const std::string&)> progress = {};
};

// What the plan would cost with one decision made otherwise.
struct Neighbour {
  // "cut 0", "submeshes 0 and 1", "stages 0 and 1" (joined), "mesh 0" (with its method and recomputation),
  // "schedule", "microbatches"; "stages" and "layers": how many there are
  std::string about;
  std::string chosen;   // "behind layer 3"
  std::string instead;  // "behind layer 4"
  int64_t step_ns = 0;  // 0: it cannot be
  std::string why;      // it cannot be: "stage 1 needs 18.7 GiB of 14.9 GiB"
};

// Of one number of microbatches.
struct CountTried {
  int64_t microbatches = 1;
  int64_t objective_ns = 0;  // of its best assignment; 0: none, or none below the bound
  int64_t step_ns = 0;       // of its best simulated plan; 0: none
  int64_t states = 0;        // visited by the dynamic program
  std::string reason = {};   // why there is none
};

struct PlanSearchResult {
  // best first: of different stages or microbatches, each with its best schedule
  std::vector<PredictedPlan> plans;
  CountedCosts costs;  // of the best plan's number of microbatches
  std::vector<Neighbour> neighbours;
  std::vector<CountTried> tried;  // in ascending order
  bool complete = true;           // false: interrupted
};

}  // namespace pipeshard
