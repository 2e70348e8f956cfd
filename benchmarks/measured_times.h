// What a measured trace says to the simulator (partition/simulation/simulator.h): how long the passes of each
// stage took, and messages between them. Simulating the schedule with these times tells what a step had to
// take, and thus what waiting is the schedule's and what is not.
#pragma once

#include <vector>

#include "ir/trace/trace_event.h"
#include "partition/simulation/simulator.h"

namespace pipeshard {

struct MeasuredTimes {
  // medians over microbatches, steps and a stage's devices; nanoseconds; no update. A backward pass that runs
  // whole is all in the input half.
  IdVector<StageId, PassTimes> stages;
  Ticks latency = 0;  // median transfer of the messages of microbatches
};

// Error(kConfiguration) when the trace has no pass of some stage.
MeasuredTimes measuredTimes(const Trace& trace, int stages);

// Of one step: from the first start of a pass to the last end of one, over all ranks, and how much of that
// each rank spent in passes (recomputation too). What is beside it (prologues, tied weights, updates) no
// schedule has.
struct MeasuredStep {
  int64_t step = 0;
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  IdVector<RankId, int64_t> busy_ns;
  int64_t makespan() const { return end_ns - start_ns; }
  double bubble() const;  // of the makespan
};
// Whole steps, in order.
std::vector<MeasuredStep> measuredSteps(const Trace& trace);

}  // namespace pipeshard
