// What a search for a plan has found besides the plan itself: the best plans, what decisions made otherwise
// would have cost, what stages cost. Part of plan.json, for people; nothing that runs a plan reads it.
//
//   "search":       {"complete":true,"objective":"one microbatch through ...","chosen":0}
//   "alternatives": {"step_ns":1200,"memory_bytes":4096,"microbatches":4,"schedule":"1f1b",
//                    "stages":[{"layers":[0,1],"device":0,"submesh":[1,2],"mesh":[2,1],"method":"auto",
//                               "recomputation":"never","pass_ns":90,"step_ns":7,"memory_bytes":4096}]}
//   "reasons":      {"about":"cut 0","chosen":"behind layer 1","instead":"behind layer 2",
//                    "step_ns":1300,"why":""}
//   "stage_costs":  each as an element of "stages"
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/plan/recomputation.h"
#include "ir/plan/schedule_spec.h"
#include "ir/plan/sharding_method.h"

namespace pipeshard {

// A stage as the search sees it.
struct SearchedStage {
  int first_layer = 0;  // inclusive
  int last_layer = 0;
  int first_device = 0;
  int nodes = 1;
  int devices_per_node = 1;
  std::vector<int> mesh = {1};  // the logical mesh
  ShardingMethod method;
  Recomputation recomputation = Recomputation::kNever;
  int64_t pass_ns = 0;  // of a microbatch, forward and backward
  int64_t step_ns = 0;  // once a step: update, synchronisation of gradients
  // in a plan: of its pipeline rank; in the table of costs: with one microbatch in flight
  int64_t memory_bytes = 0;
};

struct SearchedPlan {
  int64_t step_ns = 0;       // predicted
  int64_t memory_bytes = 0;  // of the device that needs the most
  int64_t microbatches = 1;
  ScheduleSpec schedule;
  std::vector<SearchedStage> stages;
};

struct PlanReason {
  std::string about;    // "cut 0", "submeshes 0 and 1", "mesh 2", "microbatches", "schedule", ...
  std::string chosen;   // "behind layer 1"
  std::string instead;  // "behind layer 2"
  int64_t step_ns = 0;  // what the plan would cost; 0: it cannot be
  std::string why;      // it cannot be
};

struct SearchRecord {
  bool complete = true;                    // false: the search was cut short
  std::string objective;                   // what the assignment of stages minimises
  std::vector<SearchedPlan> alternatives;  // the best, best first; the plan itself is `chosen`
  size_t chosen = 0;
  std::vector<PlanReason> reasons;
  // the best way of every run of layers on every kind of submesh, where these are few
  std::vector<SearchedStage> stage_costs;
};

}  // namespace pipeshard
