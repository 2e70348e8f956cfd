// Simulates Programs: when each instruction of a step begins and ends, and what each rank holds. The lists of
// instructions are those that the runtime executes; times of what is computed and of links are given; the
// engine is event_engine.h. Nothing here knows of schedules, so chunks, recomputation, split backward passes,
// collectives, background instructions and asynchronous updates need nothing of their own.
//
// Rules of ir/program/program.h: instructions run in order; a send is posted, and what frees or overwrites
// its buffer waits until the peer has it; a collective begins when its whole group has come; the background
// lane runs beside the others, background receives are posted (ir/program/background.h); the step ends when
// everything has ended. Times are nanoseconds.
//
//   link: 2 ns + 50 bytes at 10 bytes per ns
//   rank 0: run forward (10) -> "h"; send "h"; free "h"       0F0@0-10, send@10-17, the free waits until 17
//   rank 1: receive "h"; run forward (10)                     receive@0-17 (waiting until 10), 1F0@17-27
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ir/program/program.h"
#include "ir/trace/trace_event.h"
#include "partition/simulation/event_engine.h"
#include "sharding/specs/cost_model.h"
#include "sharding/spmd/work_count.h"

namespace pipeshard {

// Of one rank.
struct ProgramCosts {
  // By instruction: computing and collectives in turn; an all-reduce is one part. Of sends, receives and
  // frees: nothing.
  std::vector<std::vector<WorkPart>> instructions;
  // by buffer; 0 for one that lives in another's memory. Empty: the buffers' sizes
  std::vector<int64_t> buffer_bytes = {};
};

struct ProgramSimulationRequest {
  const std::vector<Program>& programs;  // verified (verifyPrograms)
  IdVector<RankId, ProgramCosts> costs;
  LinkCost link = {};
  std::function<LinkCost(RankId from, RankId to)> link_between =
      nullptr;  // instead of `link`; called on threads
  // the messages from one rank to another share a link
  bool contention = true;
  // a message travels once it is posted and wanted, as in shared memory; else once it is posted
  bool rendezvous = true;
  // By program: the rank that people know it as, where the programs are a sample (ir/program/program_set.h).
  // Empty: its own.
  std::vector<RankId> known_as = {};
};

struct ProgramSimulation {
  Trace trace;                            // "simulated"; passes verifyTrace
  Ticks makespan = 0;                     // of the step
  IdVector<RankId, Ticks> busy;           // computing and copying in the foreground
  IdVector<RankId, Ticks> span;           // from the first start of that to its last end
  IdVector<RankId, int64_t> peak_memory;  // bytes

  IdVector<RankId, Ticks> idlePerRank() const;  // makespan - busy: waiting, and transfers that nothing hides
  double bubbleOfMakespan() const;
  double bubbleOfUseful() const;
  double bubbleOfSpan() const;  // of the rank with the longest span
};

// " (stages 0, 4)": those that the program works for; "" where there are none.
std::string stagesSuffix(const Program& program);

// Errors: kConfiguration when the programs wait for each other: which rank stands at which instruction.
ProgramSimulation simulatePrograms(const ProgramSimulationRequest& request);

}  // namespace pipeshard
