#include "ir/trace/trace_event.h"

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

using ::testing::HasSubstr;

// Rank 0 computes and sends, rank 1 waits, receives and computes.
Trace twoRanks() {
  Trace trace{
      .source = "simulated", .ranks = 2, .rank_names = {"rank 0", "rank 1"}, .events = {}, .memory = {}};
  TraceEvent compute{.stage = StageId(0), .microbatch = 0, .name = "0F0", .start_ns = 0, .end_ns = 100};
  TraceEvent send{.kind = TraceEventKind::kSend,
                  .name = "send h@0",
                  .start_ns = 100,
                  .end_ns = 150,
                  .peer = RankId(1),
                  .bytes = 64,
                  .message = 0};
  TraceEvent receive = send;
  receive.kind = TraceEventKind::kReceive;
  receive.rank = RankId(1);
  receive.peer = RankId(0);
  receive.start_ns = 20;
  receive.arrived_ns = 100;
  TraceEvent last{
      .rank = RankId(1), .stage = StageId(1), .microbatch = 0, .name = "1F0", .start_ns = 150, .end_ns = 250};
  trace.events = {compute, send, receive, last};
  trace.memory = {{RankId(0), 0, 64}, {RankId(1), 20, 64}};
  return trace;
}

std::string refused(const std::function<void(Trace&)>& change) {
  Trace trace = twoRanks();
  change(trace);
  try {
    verifyTrace(trace);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    return error.message();
  }
  ADD_FAILURE() << "accepted";
  return "";
}

TEST(VerifyTrace, AcceptsASendThatIsReceived) { EXPECT_NO_THROW(verifyTrace(twoRanks())); }

TEST(VerifyTrace, FindsARankOutOfRange) {
  EXPECT_THAT(refused([](Trace& trace) { trace.events[3].rank = RankId(2); }),
              HasSubstr("\"1F0\" from 150 ns to 250 ns: there are 2 ranks"));
  EXPECT_THAT(refused([](Trace& trace) { trace.memory[1].rank = RankId(7); }), HasSubstr("memory of rank 7"));
}

TEST(VerifyTrace, FindsTimesThatRunBackwards) {
  EXPECT_THAT(refused([](Trace& trace) { trace.events[3].end_ns = 149; }),
              HasSubstr("ends before it starts"));
  EXPECT_THAT(refused([](Trace& trace) { trace.events[2].arrived_ns = 151; }),
              HasSubstr("arrived at 151 ns, outside of it"));
  EXPECT_THAT(refused([](Trace& trace) { std::swap(trace.events[0], trace.events[1]); }),
              HasSubstr("in order of rank, then start"));
}

TEST(VerifyTrace, FindsPassesOfNoMicrobatchAndWorkOfWhatDoesNotCompute) {
  EXPECT_NO_THROW([] {
    Trace trace = twoRanks();
    trace.events[0].work = TraceWork::kForward;
    verifyTrace(trace);
  }());
  EXPECT_THAT(refused([](Trace& trace) {
                trace.events[0].work = TraceWork::kRecomputation;
                trace.events[0].microbatch = -1;
              }),
              HasSubstr("a pass is of a stage and a microbatch"));
  EXPECT_THAT(refused([](Trace& trace) { trace.events[1].work = TraceWork::kUpdate; }),
              HasSubstr("computes nothing"));
}

TEST(TraceWork, HasNames) {
  for (size_t work = 0; work < kTraceWorks; ++work) {
    const auto value = static_cast<TraceWork>(work);
    EXPECT_EQ(traceWorkFromName(traceWorkName(value)), value);
  }
  EXPECT_EQ(traceWorkFromName("idle"), std::nullopt);
}

TEST(VerifyTrace, FindsAReceiveWithoutItsSend) {
  EXPECT_THAT(refused([](Trace& trace) { trace.events[1].message = 1; }),
              HasSubstr("rank 0 never sent message 0"));
  EXPECT_THAT(refused([](Trace& trace) { trace.events[1].bytes = 63; }),
              HasSubstr("63 bytes were sent, 64 received"));
  EXPECT_THAT(refused([](Trace& trace) { trace.events[2].peer = RankId(1); }), HasSubstr("its peer is 1"));
  EXPECT_THAT(refused([](Trace& trace) { trace.events.insert(trace.events.begin() + 1, trace.events[1]); }),
              HasSubstr("sent twice"));
}

TEST(VerifyTrace, FindsEventsOfOneTrackThatOverlap) {
  EXPECT_THAT(refused([](Trace& trace) { trace.events[3].start_ns = 149; }),
              HasSubstr("it overlaps rank 1, step 1: receive"));
  Trace beside = twoRanks();
  beside.events[3].start_ns = 149;
  beside.events[2].background = true;
  EXPECT_NO_THROW(verifyTrace(beside));
}

}  // namespace
}  // namespace pipeshard
