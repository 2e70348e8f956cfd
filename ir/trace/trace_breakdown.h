// What each rank of a trace spent its time on: where a pipeline's bubble is, and whether ranks wait for each
// other or for the link.
//
//   rank 0: 0F0@0-10, receive@10-30 (the message came at 28), 0B0@30-50; length 50
//   compute 30, waiting 18, transfer 2, idle 0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/trace/trace_event.h"

namespace pipeshard {

// Nanoseconds; compute + waiting + transfer + idle = the trace's length.
struct RankBreakdown {
  int64_t compute = 0;  // in the foreground: passes, updates, copies
  // for peers: receives and collectives until the others had come; memory whose message a peer has not taken
  int64_t waiting = 0;
  int64_t transfer = 0;  // the rest of receives and collectives in the foreground
  int64_t idle = 0;      // nothing of these: between steps, before the first, after the last
  // of sends, messages on their way and background work: the time that lies beside compute
  int64_t hidden = 0;
};

struct TraceBreakdown {
  int64_t length = 0;  // from the first event's start to the last one's end
  IdVector<RankId, RankBreakdown> ranks;
};

TraceBreakdown breakDown(const Trace& trace);

// A table of percentages, one line per rank:
//   of 152.1 ms             compute  waiting  transfer   idle
//   rank 0 (stage 0)          91.2%     8.1%      0.3%   0.4%
std::string printBreakdown(const Trace& trace);

}  // namespace pipeshard
