// What is recorded, how it is merged, and whose clock is right.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>

#include "ir/base/ids_format.h"
#include "ir/trace/trace_breakdown.h"
#include "runtime/device/aligned_memory.h"
#include "runtime/execute/executor.h"
#include "runtime/job/trace_merge.h"
#include "runtime/trace/clock_alignment.h"
#include "runtime/trace/trace_memory.h"
#include "runtime/trace/trace_recorder.h"
#include "tests/expect_error.h"
#include "tests/ir/program/program_writer.h"
#include "tests/runtime/pipeline_program.h"
#include "tests/transport/rank_threads.h"

namespace pipeshard {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

TraceRecorder::Time at(int64_t ns) { return TraceRecorder::Time(nanoseconds(ns)); }

// Rank 0 of a pair: computes, sends, receives; a collective inside a run.
Program firstProgram() {
  ProgramWriter writer(0, 2, 1);
  writer.program().groups = {idsAt<RankId>({0, 1})};
  writer.subgraph("forward", Phase::kForward, {"x"}, {"h"}, {0});
  writer.run(0, 0, {"x@0"}, {"h@0"});
  writer.send(1, "h@0", 0);
  writer.receive(1, "dh@0", 0);
  for (Instruction& instruction : writer.program().instructions) instruction.stage = StageId(0);
  return writer.program();
}

Program secondProgram() {
  ProgramWriter writer(1, 2, 1);
  writer.receive(0, "h@0", 0);
  writer.send(0, "dh@0", 0);
  for (Instruction& instruction : writer.program().instructions) instruction.stage = StageId(1);
  return writer.program();
}

// A recorder with its memory.
struct Recorded {
  explicit Recorded(const Program& program, int64_t steps = 3, std::vector<int64_t> live = {})
      : recorder(program.rank, {{&program, std::move(live)}}, steps), memory(recorder.bytes()) {
    std::memset(memory.data(), 0, memory.size());
    recorder.place(memory.bytes());
  }
  TraceRecords read() const { return readTraceRecords(memory.bytes()).value(); }

  TraceRecorder recorder;
  AlignedMemory memory;
};

constexpr TraceLane kFront = TraceLane::kForeground;

TEST(TraceRecorder, KeepsTheLastSteps) {
  const Program program = secondProgram();
  Recorded recorded(program, 2);
  for (int64_t step = 1; step <= 5; ++step) {
    recorded.recorder.beginStep(step, 0, at(1000 * step));
    recorded.recorder.begin(kFront, 0, at(1000 * step + 1));
    recorded.recorder.end(kFront, at(1000 * step + 5), nanoseconds(3));
    recorded.recorder.endStep(at(1000 * step + 9));
  }
  const TraceRecords records = recorded.read();
  ASSERT_EQ(records.steps.size(), 2u);
  EXPECT_EQ(records.rank, RankId(1));
  EXPECT_EQ(records.steps[0].step, 4);
  EXPECT_EQ(records.steps[1].step, 5);
  EXPECT_EQ(records.steps[1].end_ns, 5009);
  ASSERT_EQ(records.steps[1].lanes[0].size(), 1u);
  EXPECT_EQ(records.steps[1].lanes[0][0].start_ns, 5001);
  EXPECT_EQ(records.steps[1].lanes[0][0].end_ns, 5005);
  EXPECT_EQ(records.steps[1].lanes[0][0].waited_ns, 3);
}

// Batches overwrite batches, and steps steps.
TEST(TraceRecorder, EvaluationsHaveARingOfTheirOwn) {
  const Program program = secondProgram();
  TraceRecorder recorder(RankId(1), {{&program, {}}, {&program, {}, true}}, 2);
  AlignedMemory memory(recorder.bytes());
  std::memset(memory.data(), 0, memory.size());
  recorder.place(memory.bytes());
  int64_t time = 0;
  const auto record = [&](int64_t number, uint32_t which) {
    recorder.beginStep(number, which, at(++time));
    recorder.endStep(at(++time));
  };
  const auto found = [&] {
    std::vector<std::tuple<int64_t, int64_t, uint32_t>> steps;
    const std::span<const std::byte> whole = memory.bytes();
    const auto records = readTraceRecords(whole.first(usedTraceBytes(whole)));
    for (const TraceStepRecords& step : records.value().steps)
      steps.emplace_back(step.step, step.batch, step.program);
    return steps;
  };
  using Steps = std::vector<std::tuple<int64_t, int64_t, uint32_t>>;
  record(1, 1);  // before the first step
  EXPECT_EQ(found(), (Steps{{0, 1, 1}}));
  for (const int64_t step : {1, 2, 3}) record(step, 0);
  EXPECT_EQ(found(), (Steps{{0, 1, 1}, {2, 0, 0}, {3, 0, 0}}));
  for (const int64_t batch : {1, 2, 3}) record(batch, 1);
  record(4, 0);
  EXPECT_EQ(found(), (Steps{{3, 0, 0}, {3, 2, 1}, {3, 3, 1}, {4, 0, 0}}));
  recorder.goOnAfter(7);  // from a checkpoint
  record(1, 1);
  EXPECT_EQ(found().back(), (std::tuple<int64_t, int64_t, uint32_t>{7, 1, 1}));
}

TEST(TraceRecorder, MemoryThatWasNeverUsedIsNoRecordingAndABrokenOneIsRefused) {
  std::vector<std::byte> zeros(4096);
  EXPECT_FALSE(readTraceRecords({}).has_value());
  EXPECT_FALSE(readTraceRecords(zeros).has_value());
  const Program program = secondProgram();
  Recorded recorded(program);
  recorded.recorder.beginStep(1, 0, at(1));
  const std::span<const std::byte> whole = recorded.memory.bytes();
  EXPECT_TRUE(readTraceRecords(whole.first(usedTraceBytes(whole))).has_value());
  EXPECT_ERROR(readTraceRecords(whole.first(usedTraceBytes(whole) - 1)), ErrorCode::kConfiguration,
               "cut off");
  std::memset(zeros.data(), 7, zeros.size());
  EXPECT_ERROR(readTraceRecords(zeros), ErrorCode::kConfiguration, "does not begin as one");
}

TEST(TraceMemory, KeepsWhatWasRecorded) {
  const Program program = secondProgram();
  const Descriptor memory = makeTraceMemory();
  EXPECT_TRUE(readTraceMemory(memory).empty());
  TraceRecorder recorder(RankId(1), {{&program, {}}}, 1000);
  {
    const shm::Mapping mapping = openTraceMemory(memory.get(), recorder.bytes());
    recorder.place(mapping.span());
    recorder.beginStep(7, 0, at(1));
  }
  const std::vector<std::byte> bytes = readTraceMemory(memory);
  EXPECT_LT(bytes.size(), 4096u);  // not the 999 steps that never were
  EXPECT_EQ(readTraceRecords(bytes).value().steps.at(0).step, 7);
}

// Two steps of both ranks; rank 1's clock is `ahead` of rank 0's.
Trace mergedPair(int64_t ahead, ClockAlignment clock) {
  const Program first = firstProgram(), second = secondProgram();
  Recorded a(first, 3, {100, 250, 250}), b(second, 3, {10, 10});
  for (int64_t step = 1; step <= 2; ++step) {
    const int64_t t = 1'000'000 + 1000 * step;
    a.recorder.beginStep(step, 0, at(t));
    a.recorder.begin(kFront, 0, at(t));
    a.recorder.beginPart(kFront, at(t + 10));
    a.recorder.endPart(kFront, at(t + 20), nanoseconds(4));
    a.recorder.end(kFront, at(t + 100));
    a.recorder.begin(kFront, 1, at(t + 100));
    a.recorder.end(kFront, at(t + 101));
    a.recorder.begin(kFront, 2, at(t + 110));
    a.recorder.end(kFront, at(t + 300), nanoseconds(150));
    a.recorder.endStep(at(t + 310));
    b.recorder.beginStep(step, 0, at(t + 50 + ahead));
    b.recorder.begin(kFront, 0, at(t + 60 + ahead));
    b.recorder.end(kFront, at(t + 130 + ahead), nanoseconds(41));
    b.recorder.begin(kFront, 1, at(t + 240 + ahead));
    if (step == 2) break;  // and then it died
    b.recorder.end(kFront, at(t + 241 + ahead));
    b.recorder.endStep(at(t + 320 + ahead));
  }
  return mergeTrace(2, {{a.read(), {first}, {}}, {b.read(), {second}, clock}});
}

std::string describe(const TraceEvent& event) {
  return fmt::format("{} {}: {} {} {}-{}-{}{}", event.rank, event.step, traceEventKindName(event.kind),
                     event.name, event.start_ns, event.arrived_ns, event.end_ns,
                     event.message < 0 ? "" : fmt::format(" #{} of {}", event.message, event.bytes));
}

const std::vector<std::string> kMerged = {
    "0 1: compute 0F0 0-0-10",
    "0 1: collective 0F0 10-14-20",
    "0 1: compute 0F0 20-20-100",
    "0 1: send send h@0 100-100-130 #0 of 24",
    "0 1: receive receive dh@0 110-260-300 #0 of 24",
    "0 2: compute 0F0 1000-1000-1010",
    "0 2: collective 0F0 1010-1014-1020",
    "0 2: compute 0F0 1020-1020-1100",
    "0 2: send send h@0 1100-1100-1130 #1 of 24",
    "0 2: receive receive dh@0 1110-1260-1300 #1 of 24",
    "1 1: receive receive h@0 60-101-130 #0 of 24",
    "1 1: send send dh@0 240-240-300 #0 of 24",
    "1 2: receive receive h@0 1060-1101-1130 #1 of 24",
    "1 2: send send dh@0 (unfinished) 1240-1240-1300 #1 of 24",
};

TEST(MergeTrace, NamesInstructionsSplitsRunsAndJoinsMessages) {
  const Trace trace = mergedPair(0, {});
  std::vector<std::string> events;
  for (const TraceEvent& event : trace.events) events.push_back(describe(event));
  EXPECT_EQ(events, kMerged);
  EXPECT_EQ(trace.source, "measured");
  EXPECT_EQ(trace.rank_names, (IdVector<RankId, std::string>{"rank 0 (stage 0)", "rank 1 (stage 1)"}));
  std::vector<std::pair<int64_t, int64_t>> memory;
  for (const TraceMemory& point : trace.memory) {
    if (point.rank == RankId(0)) memory.emplace_back(point.time_ns, point.bytes);
  }
  EXPECT_EQ(memory,
            (std::vector<std::pair<int64_t, int64_t>>{{0, 100}, {100, 250}, {1000, 100}, {1100, 250}}));
}

TEST(MergeTrace, PutsRanksOfAnotherHostOnOneClock) {
  constexpr int64_t kAhead = 7'000'000'000'000;
  ClockAlignment clock;
  clock.add({.asked = 500, .theirs = 600 + kAhead, .answered = 700});
  clock.add({.asked = 800, .theirs = 1600 + kAhead, .answered = 1800});  // slower, and uneven: does not count
  clock.beginAfter();
  clock.add({.asked = 2'000'000, .theirs = 2'000'010 + kAhead, .answered = 2'000'020});
  const Trace trace = mergedPair(kAhead, clock);
  std::vector<std::string> events;
  for (const TraceEvent& event : trace.events) events.push_back(describe(event));
  EXPECT_EQ(events, kMerged);
}

TEST(MergeTrace, KeepsReceivesOfARankThatLeftNothing) {
  const Program second = secondProgram();
  Recorded b(second);
  b.recorder.beginStep(1, 0, at(100));
  b.recorder.begin(kFront, 0, at(100));
  b.recorder.end(kFront, at(200), nanoseconds(50));
  b.recorder.begin(kFront, 1, at(210));
  const Trace trace = mergeTrace(2, {{b.read(), {second}, {}}});
  ASSERT_EQ(trace.events.size(), 2u);
  EXPECT_EQ(describe(trace.events[0]), "1 1: receive receive h@0 0-50-100");
  EXPECT_EQ(describe(trace.events[1]), "1 1: send send dh@0 (unfinished) 110-110-110 #0 of 24");
  EXPECT_EQ(mergeTrace(2, {}).events.size(), 0u);
}

// Two ranks whose devices do not say how long they waited.
Trace mergedWithoutWaiting(bool all) {
  std::vector<RankRecording> recordings;
  for (const int rank : {0, 1}) {
    ProgramWriter writer(rank, 2, 1);
    writer.program().groups = {idsAt<RankId>({0, 1})};
    writer.subgraph("backward", Phase::kBackwardWeight, {"x"}, {"d"}, {0});
    writer.run(0, 0, {"x@0"}, {"d@0"});
    writer.run(0, 1, {"x@1"}, {"d@1"});
    if (rank == 0)
      writer.send(1, "h@0", 0);
    else
      writer.receive(0, "h@0", 0);
    const Program program = writer.program();
    Recorded recorded(program);
    const int64_t t = 100 + 30 * rank;  // rank 1 comes later to the first, rank 0 to all else
    recorded.recorder.beginStep(1, 0, at(100));
    recorded.recorder.begin(kFront, 0, at(t));
    recorded.recorder.beginPart(kFront, at(t));
    recorded.recorder.endPart(kFront, at(150), nanoseconds(0));
    recorded.recorder.end(kFront, at(150));
    recorded.recorder.begin(kFront, 1, at(210 - 30 * rank));
    recorded.recorder.beginPart(kFront, at(210 - 30 * rank));
    recorded.recorder.endPart(kFront, at(250), nanoseconds(0));
    recorded.recorder.end(kFront, at(250));
    recorded.recorder.begin(kFront, 2, at(320 - 50 * rank));
    recorded.recorder.end(kFront, at(330 + 20 * rank), nanoseconds(0));
    recorded.recorder.endStep(at(400));
    if (all || rank == 1) recordings.push_back({recorded.read(), {program}, {}});
  }
  return mergeTrace(2, recordings);
}

std::string describeTransfers(const Trace& trace, RankId rank) {
  std::string text;
  for (const TraceEvent& event : trace.events) {
    if (event.rank == rank && event.kind != TraceEventKind::kCompute)
      text += fmt::format("{}-{}-{} ", event.start_ns, event.arrived_ns, event.end_ns);
  }
  return text;
}

TEST(MergeTrace, FindsWaitingInTheRecordingsOfThePeers) {
  const Trace trace = mergedWithoutWaiting(true);
  EXPECT_EQ(describeTransfers(trace, RankId(0)), "0-30-50 110-110-150 220-220-250 ");
  EXPECT_EQ(describeTransfers(trace, RankId(1)), "30-30-50 80-110-150 170-220-250 ");
  EXPECT_EQ(describeTransfers(mergedWithoutWaiting(false), RankId(1)), "30-30-50 80-80-150 170-170-250 ");
}

TEST(MergeTrace, RefusesARecordingOfAnotherPlan) {
  const Program first = firstProgram(), second = secondProgram();
  Recorded a(first);
  a.recorder.beginStep(1, 0, at(1));
  a.recorder.begin(kFront, 2, at(1));
  EXPECT_ERROR(mergeTrace(2, {{a.read(), {second}, {}}}), ErrorCode::kConfiguration, "of another plan");
}

// A clock that began elsewhere and runs faster or slower, asked over links of random delay: never further off
// than it says.
TEST(ClockAlignment, IsWithinHalfARoundTripOfAnyOffsetAndDrift) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](int64_t limit) {
      return static_cast<int64_t>(random() % static_cast<uint64_t>(limit));
    };
    const int64_t offset = below(2'000'000'000'000) - 1'000'000'000'000;
    const double drift = static_cast<double>(below(200'001) - 100'000) * 1e-9;  // up to 100 ppm
    const auto theirs = [&](int64_t own) {
      return own + offset + std::llround(static_cast<double>(own) * drift);
    };
    ClockAlignment clock;
    int64_t fastest_before = INT64_MAX, fastest_after = INT64_MAX;
    const int64_t end = 3'600'000'000'000;  // an hour later
    for (const int64_t begin : {int64_t{0}, end}) {
      if (begin > 0) clock.beginAfter();
      for (int64_t i = 0; i < 20; ++i) {
        const int64_t asked = begin + i * 10'000'000;
        const int64_t there = asked + 20'000 + below(500'000);
        const int64_t answered = there + 20'000 + below(500'000);
        clock.add({asked, theirs(there), answered});
        (begin == 0 ? fastest_before : fastest_after) =
            std::min(begin == 0 ? fastest_before : fastest_after, answered - asked);
      }
    }
    EXPECT_EQ(clock.uncertainty(), (std::max(fastest_before, fastest_after) + 1) / 2);
    for (int64_t t = 0; t <= end; t += end / 50) {
      EXPECT_LE(std::abs(clock.toOwn(theirs(t)) - t), clock.uncertainty() + 50)
          << "seed " << seed << " at " << t;
    }
  }
  EXPECT_EQ(ClockAlignment().toOwn(123), 123);
}

// The real thing: two ranks, of which the first is late.
TEST(TracedExecution, TellsWaitingForAPeerFromTransfer) {
  const std::vector<RankImage> images = pipelineImages(2);
  std::vector<RankRecording> recordings(2);
  testing::runRankThreads(2, [&](Communicator& communicator) {
    const size_t rank = communicator.rank().index();
    Executor executor(images[rank], {});
    AlignedMemory arena(executor.memory().total_bytes);
    const auto data = makeDataSource({"", 5}, executor.program());
    executor.attach(arena.bytes(), &communicator, data.get());
    TraceRecorder recorder(communicator.rank(), {{&executor.program(), executor.memory().live_bytes}}, 3);
    AlignedMemory memory(recorder.bytes());
    std::memset(memory.data(), 0, memory.size());
    recorder.place(memory.bytes());
    executor.record(&recorder);
    for (int64_t step = 1; step <= 3; ++step) {
      if (rank == 0 && step == 2) std::this_thread::sleep_for(milliseconds(400));
      executor.runStep(step);
    }
    executor.record(nullptr);
    executor.runStep(4);
    const std::vector<int64_t> live = executor.memory().live_bytes;
    EXPECT_LE(*std::max_element(live.begin(), live.end()), executor.memory().total_bytes);
    EXPECT_GE(*std::max_element(live.begin(), live.end()),
              executor.memory().total_bytes - executor.memory().parts.padding);
    recordings[rank] = {*readTraceRecords(memory.bytes()), {executor.program()}, {}};
  });
  const Trace trace = mergeTrace(2, recordings);  // verified
  for (int rank = 0; rank < 2; ++rank) {
    for (int64_t step = 1; step <= 3; ++step) {
      size_t events = 0, expected = 0;
      for (const TraceEvent& event : trace.events)
        events += event.rank == RankId(rank) && event.step == step ? 1 : 0;
      for (const Instruction& instruction : images[rank].program.instructions) {
        const bool shown =
            instruction.kind != InstructionKind::kFree && instruction.kind != InstructionKind::kAccumulate;
        expected += shown ? 1 : 0;
      }
      EXPECT_GE(events, expected);  // and accumulations that are no kernel's
    }
  }
  int64_t waited = 0, others = 0;
  for (const TraceEvent& event : trace.events) {
    if (event.kind != TraceEventKind::kReceive || event.step != 2) continue;
    waited = std::max(waited, event.rank == RankId(1) ? event.arrived_ns - event.start_ns : 0);
    others = std::max(others, event.end_ns - event.arrived_ns);
  }
  EXPECT_GE(waited, 300'000'000);
  EXPECT_LT(others, 200'000'000);
  const TraceBreakdown parts = breakDown(trace);
  EXPECT_GE(parts.ranks[RankId(1)].waiting, 300'000'000);
  for (const RankBreakdown& part : parts.ranks) {
    EXPECT_GE(part.idle, 0);
    EXPECT_GT(part.compute, 0);
    EXPECT_EQ(part.compute + part.waiting + part.transfer + part.idle, parts.length);
  }
}

}  // namespace
}  // namespace pipeshard
