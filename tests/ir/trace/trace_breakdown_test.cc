#include "ir/trace/trace_breakdown.h"

#include <gtest/gtest.h>

namespace pipeshard {
namespace {

TraceEvent event(int rank, TraceEventKind kind, int64_t start, int64_t arrived, int64_t end,
                 bool background = false) {
  TraceEvent made;
  made.rank = RankId(rank);
  made.kind = kind;
  made.start_ns = start;
  made.arrived_ns = arrived;
  made.end_ns = end;
  made.background = background;
  const bool message = kind == TraceEventKind::kSend || kind == TraceEventKind::kReceive;
  if (message) made.peer = RankId(1 - rank), made.message = 0;
  return made;
}

// Rank 0 computes 0-10, its message is taken at 40, whose memory it wants back from 20 on; rank 1 computes
// beside an all-reduce.
Trace example() {
  using enum TraceEventKind;
  Trace trace;
  trace.ranks = 2;
  trace.rank_names = {"rank 0 (stage 0)", "rank 1 (stage 1)"};
  trace.events = {event(0, kCompute, 0, 0, 10),
                  event(0, kSend, 10, 10, 40),
                  event(0, kCopy, 12, 12, 20),
                  event(0, kCompute, 40, 40, 60),
                  event(0, kCollective, 70, 80, 85),
                  event(1, kReceive, 5, 30, 40),
                  event(1, kCompute, 40, 40, 90),
                  event(1, kCollective, 50, 52, 70, true),
                  event(1, kCollective, 85, 90, 95, true)};
  verifyTrace(trace);
  return trace;
}

TEST(TraceBreakdown, PartsAddUpAndMessagesUnderWayExplainGaps) {
  const TraceBreakdown parts = breakDown(example());
  EXPECT_EQ(parts.length, 95);
  EXPECT_EQ(parts.ranks[RankId(0)].compute, 38);  // 10 + 8 + 20
  EXPECT_EQ(parts.ranks[RankId(0)].waiting, 32);  // 10-12 and 20-40 for its message, 70-80 for the group
  EXPECT_EQ(parts.ranks[RankId(0)].transfer, 5);  // 80-85
  EXPECT_EQ(parts.ranks[RankId(0)].idle, 20);     // 60-70, 85-95
  EXPECT_EQ(parts.ranks[RankId(0)].hidden, 8);    // of the message, beside the copy
  EXPECT_EQ(parts.ranks[RankId(1)].compute, 50);
  EXPECT_EQ(parts.ranks[RankId(1)].waiting, 30);  // 5-30; 90-95, when only the background works
  EXPECT_EQ(parts.ranks[RankId(1)].transfer, 10);
  EXPECT_EQ(parts.ranks[RankId(1)].idle, 5);
  EXPECT_EQ(parts.ranks[RankId(1)].hidden, 25);
}

// Posted at 5, its message comes from 30 to 60 and is wanted at 50.
TEST(TraceBreakdown, OfAReceivePostedEarlyHidesWhatTravelsBesideCompute) {
  using enum TraceEventKind;
  Trace trace;
  trace.ranks = 1;
  trace.events = {event(0, kReceive, 5, 30, 60, true), event(0, kCompute, 5, 5, 50),
                  event(0, kCompute, 60, 60, 70)};
  const RankBreakdown rank = breakDown(trace).ranks[RankId(0)];
  EXPECT_EQ(rank.compute, 55);
  EXPECT_EQ(rank.hidden, 20);
  EXPECT_EQ(rank.waiting, 10);
  EXPECT_EQ(rank.idle, 0);
}

TEST(TraceBreakdown, IsPrintedAsATable) {
  EXPECT_EQ(printBreakdown(example()),
            "of 0.0 ms             compute  waiting  transfer    idle\n"
            "rank 0 (stage 0)        40.0%    33.7%      5.3%   21.1%\n"
            "rank 1 (stage 1)        52.6%    31.6%     10.5%    5.3%\n");
  EXPECT_EQ(breakDown(Trace()).length, 0);
}

}  // namespace
}  // namespace pipeshard
