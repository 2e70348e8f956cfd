// The search above all: numbers of microbatches, stages with their submeshes, meshes and recomputation, and
// schedules.
//
//   for each number of microbatches     assignStagesToMeshes (partition/search/stage_assignment.h), bounded
//                                       by what others have reached
//   of all assignments the best 30      simulated (partition/search/plan_prediction.h); beside them equal
//                                       stages (partition/search/equal_stages.h)
//   of these the best few               under every schedule that may be; and cut anew into chunks for
//                                       schedules of several stages per rank
//   the best of all                     as long as a neighbour is better, that one: cuts moved, submeshes of
//                                       other sizes, meshes,
//   recomputation
//
// Numbers of microbatches are tried upwards from the first one and then downwards, each way until two in a
// row are no better, the last of them 32 times the last better one or a quarter of it. One whose least costs
// (CountedCosts::least) rule out that it comes within a 32nd of the best is no better. Everything is counted,
// nothing is timed: the same request gives the same result, with any number of threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ir/cluster/cluster.h"
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
  int64_t bound_ns = INT64_MAX;  // assignments of this objective or more, and a quarter, are of no interest
  std::string schedule = {};     // only this one; empty: every synchronous one that trains
  int updates = 1;               // of a window of an asynchronous schedule
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
  std::string
      about;  // "cut 0", "submesh 1", "mesh 0", "recomputation 2", "microbatches", "schedule", "stages"
  std::string chosen;   // "behind layer 3"
  std::string instead;  // "behind layer 4"
  int64_t step_ns = 0;  // 0: it cannot be
  std::string why;      // it cannot be: "20.1 GB of 16.0 GB"
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
  std::vector<PredictedPlan>
      plans;           // best first: of different stages or microbatches, each with its best schedule
  CountedCosts costs;  // of the best plan's number of microbatches
  std::vector<Neighbour> neighbours;
  std::vector<CountTried> tried;  // in ascending order
  bool complete = true;           // false: interrupted
};

// No plan where nothing fits into memory: leastMemory (below) says what would. Errors: kConfiguration,
// kBadModel as above; kUsage for a schedule that is none.
PlanSearchResult searchPlans(const PlanSearchRequest& request);

// When nothing fits: the least memory of every device with which some plan fits, to within a hundredth, and
// that plan's stages; for people who must choose between more memory, more devices, more microbatches and
// recomputation. With the first and with the largest number of microbatches. Stages are empty where no memory
// would do.
struct LeastMemory {
  int64_t bytes = 0;
  int64_t microbatches = 1;
  std::vector<AssignedStage> stages = {};
};
LeastMemory leastMemory(const PlanSearchRequest& request);

// The request to the dynamic program for one number of microbatches: its objective and what is in flight
// follow from the schedule.
AssignmentRequest assignmentRequest(const PlanSearchRequest& request, const StageCosts& costs,
                                    int64_t microbatches);
// For people: "sum of passes and transfers + ...".
std::string objectiveText(const PlanSearchRequest& request);

}  // namespace pipeshard
