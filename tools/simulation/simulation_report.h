// What `simulate` shows, of a bare schedule and of a plan alike.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ir/program/program.h"
#include "ir/program/program_set.h"
#include "ir/trace/trace_event.h"
#include "partition/schedules/schedule.h"
#include "partition/simulation/simulator.h"
#include "tools/simulation/gantt_text.h"

namespace pipeshard {

struct SimulationReport {
  std::string title;
  std::vector<std::vector<std::string>> table;  // a row per rank that is shown, heading first
  Ticks makespan = 0;
  std::string makespan_text;  // with its unit
  double bubble_of_makespan = 0;
  double bubble_of_useful = 0;
  double bubble_of_span = 0;
  std::vector<std::vector<GanttBar>> gantt;
  double ticks_per_unit = 1;  // of the texts and the JSON
  std::string unit;           // "ms"; "": times have none
  std::string json;           // all of it, as --json writes it, where it was asked for
  ScheduleOrders orders;      // of all ranks
  // Of a plan: the ranks that were simulated; trace and programs have them by their place in it.
  RankSample sample = {};
  Trace trace;
  IdVector<RankId, Program> programs;  // of a plan
};

struct BareRequest {
  std::string schedule;  // as parseSchedule takes it, or a .csv file
  int ranks = 0;
  int microbatches = 0;
  int chunks = 0;  // 0: as the schedule says
  std::string limit;
  std::string times = "F=1,I=1,W=1";
  std::string communication = "0";
  std::string occupancy = "0";
  std::string memory_model = "F=1,I=0,W=-1";
  bool exposed = false;
  bool split_pairs = false;
  bool no_contention = false;
};
// Errors: kUsage for an option that is wrong, kMissingInput, and what makeSchedule and simulate throw.
SimulationReport simulateBare(const BareRequest& request);

struct PlanSimulationRequest {
  std::string directory;
  // Without them, what the plan's cluster says. A device rate that is given takes the place of all that is
  // known of devices.
  std::optional<double> device_gflops = std::nullopt;
  std::optional<double> device_gbytes = std::nullopt;
  std::optional<double> link_gbytes = std::nullopt;
  std::optional<double> link_us = std::nullopt;
  std::string profile = {};   // as chooseProfile takes it
  std::string measured = {};  // a trace whose durations are taken; "": all by the cost model
  // The directory's of whole batches, verified, which are then not read; null or none: they are read.
  const ProgramSet* programs = nullptr;
  // of a worker: its kernels' workspace depends on them; 0: as `run` starts it on this machine
  int threads = 0;
  bool eager = false;
  bool no_contention = false;
  // Up to so many ranks are shown each; of more, some that stand for all (sampleOf).
  size_t most_ranks = 64;
  // These have rows of their own all the same, with those that they exchange messages with: they stand for
  // nobody. Error(kUsage) for one that the plan does not have.
  std::vector<RankId> shown = {};
  // Where each is shown, each is simulated, as a trace of all of them needs it. Else some that stand for all,
  // with the same results.
  bool each_simulated = true;
  bool with_json = true;
};
// Errors: kMissingInput, kConfiguration, kVersionMismatch, kBadModel, naming the file.
SimulationReport simulatePlan(const PlanSimulationRequest& request);

}  // namespace pipeshard
