// What the report's pictures are drawn from: one step on every rank, predicted or measured, in one form.
//
// A rank's *bars* are what it computes, one after the other. Its *transfers* are what it receives: from
// `start` on it is wanted, until `arrived` the rank waits for its peer, until `end` it travels. What is
// neither computed nor travelling is idle: the bubble.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/plan/plan.h"
#include "ir/program/program_set.h"
#include "ir/trace/trace_event.h"
#include "partition/simulation/simulator.h"

namespace pipeshard {

std::string_view workName(TraceWork work);  // for people: "forward", "backward: inputs"

struct TimelineBar {
  TraceWork work = TraceWork::kOther;  // kOther: prologues, copies
  StageId stage;
  int microbatch = -1;
  int64_t start = 0;
  int64_t end = 0;
};

struct TimelineTransfer {
  int64_t start = 0;
  int64_t arrived = 0;
  int64_t end = 0;
  bool background = false;  // beside what is computed: on a stream of its own
  // Something is to be seen of it.
  bool travels() const { return end > arrived; }
};

struct TimelineRank {
  std::string name;             // "rank 0"
  std::vector<StageId> stages;  // ascending; the first is its chunk 0
  std::vector<TimelineBar> bars;
  std::vector<TimelineTransfer> transfers;
  std::vector<MemoryPoint> memory;
  int64_t memory_limit = 0;  // 0: none known
  int64_t count = 1;         // of ranks that the row stands for

  int64_t peakMemory() const;
};

// All in one unit of time, from 0, the step's beginning.
struct Timeline {
  std::string source;               // "predicted", "measured"
  std::vector<TimelineRank> ranks;  // rows, top to bottom
  int64_t length = 0;               // of the step
  bool nanoseconds = false;         // else times have no unit (FLOPs on equal devices)
  bool memory_in_bytes = false;     // else microbatches of a stage

  int64_t count() const;  // of ranks
  int64_t busy() const;   // sum over the ranks
  // The bubble by the usual conventions: GPipe with p equal stages and m microbatches has (p-1)/(m+p-1) and
  // (p-1)/m.
  double idleOfStep() const;
  double idleOfUseful() const;
  // Of the rank that is busy longest between its first and its last bar: the zero-bubble papers' rate.
  double idleOfSpan() const;
};

// Of one rank, in the timeline's unit; together its length.
struct StepParts {
  int64_t work[kTraceWorks] = {};
  int64_t transfer = 0;  // something travels to the rank, and it computes nothing
  int64_t idle = 0;
};
StepParts stepParts(const TimelineRank& rank, int64_t length);

// The stages of each pipeline rank: those that share their devices, in the order of their first stages.
IdVector<PipelineRankId, std::vector<StageId>> pipelineRanks(const Plan& plan);

// Of a simulated schedule. Names and memory limits come from the plan.
Timeline timelineOf(const Simulation& simulation, const Schedule& schedule, const Plan& plan);

// Of one step of a trace; step 0: its last. Rows are the trace's ranks; `sample`: those of the plan which
// they are, and stand for; null: all. Error(kConfiguration) when the trace has no such step.
Timeline timelineOf(const Trace& trace, const Plan& plan, int64_t step = 0,
                    const RankSample* sample = nullptr);

// Of the last evaluation of held-out data that a trace has, all its batches that are there; nothing: it has
// none.
std::optional<Timeline> evaluationTimeline(const Trace& trace, const Plan& plan);

// Programs run most backward passes in two halves; where the schedule has one whole, they become one kind of
// bar.
void joinHalves(const Schedule& schedule, Timeline& timeline);

// The times that the plan's FLOPs give on equal devices; F=1, I=W=1 for every stage when a stage has no
// FLOPs.
IdVector<StageId, PassTimes> passTimes(const Plan& plan);
bool hasFlops(const Plan& plan);

}  // namespace pipeshard
