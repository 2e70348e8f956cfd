// What a step of a plan takes and what its devices hold, predicted: the schedule's passes with the stages'
// own times, simulated (partition/simulation/simulator.h), and what each pipeline rank holds at the most.
//
// A pass takes what its stage's parts say (partition/costs/sharded_stage_costs.h). What crosses a cut takes
// half of its transfer in each direction, on the link between the two ranks, beside their passes. A rank
// holds what its stages keep (weights, gradients, optimizer states), the activations of the microbatches in
// flight under the schedule, and what its neediest pass holds for itself.
//
//   two stages of F = 10, I = W = 10, two microbatches, no transfers, 1f1b: 30 + 2 * 30 = 90 ns
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "partition/costs/sharded_stage_costs.h"
#include "partition/costs/stage_costs.h"
#include "partition/schedules/schedule.h"
#include "partition/search/stage_assignment.h"

namespace pipeshard {

// What stages cost with one number of microbatches.
struct CountedCosts {
  std::shared_ptr<const StageCosts> costs;
  // of StageOption::config
  std::function<StageConfig(int config)> config;
  // of a stage
  std::function<StageCostParts(int first_layer, int last_layer, const Submesh&, const StageOption&)> parts =
      {};
  // none of `costs` is below these, which are sooner known; may be missing
  std::shared_ptr<const StageCosts> least = {};
};

CountedCosts countedCosts(std::shared_ptr<const ShardedStageCosts> costs);

struct PredictedPlan {
  std::vector<AssignedStage> stages;  // stages on one submesh are the chunks of one pipeline rank
  int64_t microbatches = 1;
  ScheduleSpec schedule;
  int64_t step_ns = 0;  // of one update
  // by stage: of its pipeline rank, on the device with the largest shards
  std::vector<int64_t> memory_bytes = {};
  ScheduleCosts schedule_costs = {};  // what an automatic schedule was made for
  int64_t peakMemory() const;
};

// Schedules that were made, by what was asked for, ranks and microbatches.
struct MadeSchedule {
  Schedule schedule;
  ScheduleCosts costs;
};
using MadeSchedules = std::map<std::tuple<ScheduleSpec, int, int64_t>, MadeSchedule>;

struct PredictionOptions {
  int updates = 1;                 // asynchronous schedules: of the window
  bool exposed_transfers = false;  // transfers hold up both ranks
  // looked up, and added to: of an automatic schedule, the one that was made for other costs is used
  MadeSchedules* made = nullptr;
};

// The stages' transfer_ns are filled in. Nothing where the schedule does not exist for so many ranks and
// microbatches, or places stages otherwise. Errors: kUsage as makeSchedule.
std::optional<PredictedPlan> predictPlan(const CountedCosts& costs, std::vector<AssignedStage> stages,
                                         int64_t microbatches, const ScheduleSpec& schedule,
                                         const PredictionOptions& options);

// All devices of the plan have the memory.
bool fitsDevices(const PredictedPlan& plan, const StageCosts& costs);

}  // namespace pipeshard
