// Simulates schedules: when each pass begins and ends, if every rank runs its list in order and waits no
// longer than it must. Events are handled by the engine of event_engine.h, which program_simulation.h uses,
// too. All times are integers (ticks), so results are exact; decimal times of users become ticks of a common
// unit.
//
// Worked example, 1f1b with p=2, m=1, F=1, I=W=1 tick, latency 1:
//   rank 0  0F0@0-1                  0B0@6-8      makespan 8; both ranks are busy for 3 and idle for 5
//   rank 1          1F0@2-3 1B0@3-5
//   spans: rank 0 from 0 to 8, rank 1 from 2 to 5
//   bubble: of makespan (16-6)/16, of useful 10/6, of span (8-3)/8
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/trace/trace_event.h"
#include "partition/schedules/schedule.h"
#include "partition/simulation/event_engine.h"

namespace pipeshard {

// What an action is in a trace.
TraceWork traceWorkOf(ActionKind kind);

// Of one microbatch on one stage.
struct PassTimes {
  Ticks forward = 1;
  Ticks backward_input = 1;  // B takes backward_input + backward_weight
  Ticks backward_weight = 1;
  Ticks recomputation = 0;  // before B or I, as part of it
  Ticks update = 0;         // kUpdate, and the end of a synchronous step, as a kUpdate of the last microbatch
  // Memory, in any unit (bytes; shares): F adds `activation` when it starts; I adds `input_memory`, or frees
  // that much of it when it ends (negative); B or W frees the rest when it ends. A pass of evaluation frees
  // everything when it ends.
  int64_t activation = 1;
  int64_t input_memory = 0;
  int64_t recomputed = 0;  // held besides, from the recomputation to the end of B, or of W
};

enum class CommunicationModel : uint8_t {
  kOverlapped,  // transfers run beside compute: a message arrives `latency + occupancy` after its pass ended
  // A message travels while neither of its two ranks computes: it waits until its receiver's pass ends,
  // whether the next one needs it or not, and both ranks wait until it has arrived. Messages that take no
  // time are as if overlapped.
  kExposed,
};

struct SimulationRequest {
  const Schedule& schedule;
  IdVector<StageId, PassTimes> stages;
  Ticks latency = 0;  // of every message between pipeline ranks
  // how long a message holds the link between its two ranks (one link per ordered pair)
  Ticks occupancy = 0;
  CommunicationModel communication = CommunicationModel::kOverlapped;
  bool contention = true;  // messages on one link follow each other; else each has the link for itself
  // Passes that a device may overlap (Action::overlaps_next) start together, when the inputs of both are
  // there, and hand their results on together, at the end of both. Else one after the other, as the runtime
  // here runs them.
  bool pairs_together = true;
  // of every message over the cut behind the stage, forth or back; empty: `occupancy`
  IdVector<StageId, Ticks> occupancies = {};
};

struct SimulatedAction {
  Action action;
  Ticks start = 0;
  Ticks end = 0;
};

struct SimulatedMessage {
  Action sent;  // kSendForward or kSendBackward
  PipelineRankId from, to;
  Ticks posted = 0, started = 0, arrived = 0;
};

struct Simulation {
  IdVector<PipelineRankId, std::vector<SimulatedAction>> ranks;  // passes and updates
  std::vector<SimulatedMessage> messages;                        // in order of `posted`
  IdVector<PipelineRankId, std::vector<MemoryPoint>> memory;     // in order of time
  IdVector<PipelineRankId, int64_t> peak_memory;
  IdVector<PipelineRankId, Ticks> busy;  // passes and updates
  Ticks makespan = 0;

  IdVector<PipelineRankId, Ticks> idlePerRank() const;  // makespan - busy
  Ticks longestSpan() const;                            // of a rank, from its first start to its last end
  // The bubble by the three usual conventions: 1 - busy/makespan over all ranks; idle/useful; and (span -
  // useful)/span for the rank with the longest span (the zero-bubble papers' rate).
  double bubbleOfMakespan() const;
  double bubbleOfUseful() const;
  double bubbleOfSpan() const;
};

// Errors: kConfiguration, as verifySchedule, when the orders wait for each other, be it only because of pairs
// that start together.
Simulation simulate(const SimulationRequest& request);

// Equal shares: `share` is of a pipeline rank's whole share, and each of its v stages takes 1/v of it. Ticks
// and memory must divide by v (PIPESHARD_CHECK).
IdVector<StageId, PassTimes> equalStages(const Schedule& schedule, const PassTimes& share);

}  // namespace pipeshard
