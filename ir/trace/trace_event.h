// One schema of events for what was simulated and what was measured, so that both overlay in one picture.
// Times are nanoseconds from the beginning of the trace, on one clock for all ranks.
//
// Chrome/Perfetto JSON is written from it by tools/simulation/trace_file.h: a process per rank, its compute,
// its communication and its memory as tracks, flow arrows from sends to receives.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/base/ids.h"

namespace pipeshard {

enum class TraceEventKind : uint8_t {
  kCompute,  // a subgraph: a pass, a prologue, a recomputation, an update
  kSend,     // [start, end]: posted until the peer has it
  // [start, end]: wanted until it is there; of that, [start, arrived] was waiting for the peer, the rest
  // transfer
  kReceive,
  kCollective,  // likewise; `arrived`: when the last of the group had come
  kCopy,        // accumulation, slices, loading inputs
};
std::string_view traceEventKindName(TraceEventKind kind);

// What is computed: passes, each of a microbatch through a stage; and the rest. A backward pass is whole or
// in halves.
enum class TraceWork : uint8_t {
  kForward,
  kBackward,
  kBackwardInput,
  kBackwardWeight,
  kRecomputation,  // of a forward pass, for a backward pass
  kUpdate,
  kOther,
};
inline constexpr size_t kTraceWorks = 7;
std::string_view traceWorkName(TraceWork work);  // "forward", "backward_input", as trace files have it
std::optional<TraceWork> traceWorkFromName(std::string_view name);
bool isPass(TraceWork work);  // neither kUpdate nor kOther

struct TraceEvent {
  TraceEventKind kind = TraceEventKind::kCompute;
  TraceWork work = TraceWork::kOther;  // kCompute; else kOther
  RankId rank = RankId(0);
  int64_t step = 1;
  int64_t batch = 0;    // of held-out data that are evaluated behind the step; 0: of the step itself
  StageId stage = {};   // invalid: none
  int microbatch = -1;  // -1: the whole step
  // For people: "0F3", "recompute 0F3", "update", "send h@3"; as schedules name actions where there is one
  std::string name;
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  int64_t arrived_ns = 0;  // kReceive, kCollective; else start_ns
  RankId peer = {};        // kSend, kReceive
  int64_t bytes = 0;       // of messages and collectives
  int64_t message =
      -1;  // kSend, kReceive: its number between the ordered pair of ranks, over all steps: both ends have
           // the same; -1: a receive whose send was not recorded, or was still to come
  bool background = false;  // ran beside compute
  bool unfinished = false;  // when recording ended; `end_ns` is then
};

// Bytes that a rank holds from a moment on.
struct TraceMemory {
  RankId rank = RankId(0);
  int64_t time_ns = 0;
  int64_t bytes = 0;
};

struct Trace {
  std::string source;  // "measured", "simulated"
  int ranks = 0;
  IdVector<RankId, std::string> rank_names;  // "rank 0 (stages 0, 4)"
  std::vector<TraceEvent> events;            // by rank, then start
  std::vector<TraceMemory> memory;
};

// Throws Error(kInternal) naming the event: ranks in range, start <= arrived <= end, every receive with a
// send of the same number and bytes between the same ranks, events of one track that do not overlap, passes
// that are computing of a stage and a microbatch.
void verifyTrace(const Trace& trace);

}  // namespace pipeshard
