// Times of a device beside the host, on the host's clock: what a trace has of them.
#include "runtime/execute/device_times.h"

#include <cstring>
#include <thread>

#include <gtest/gtest.h>

#include "ir/trace/trace_breakdown.h"
#include "runtime/device/aligned_memory.h"
#include "runtime/device/cpu_device.h"
#include "runtime/execute/executor.h"
#include "runtime/job/trace_merge.h"
#include "tests/runtime/device/lazy_device.h"
#include "tests/runtime/pipeline_program.h"
#include "tests/transport/rank_threads.h"

namespace pipeshard {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// Of a program of one rank, with its memory.
struct Recorded {
  explicit Recorded(const Program& program, std::vector<int64_t> live = {})
      : recorder(program.rank, {{&program, std::move(live)}}, 3), memory(recorder.bytes()) {
    std::memset(memory.data(), 0, memory.size());
    recorder.place(memory.bytes());
  }
  TraceRecords read() const { return readTraceRecords(memory.bytes()).value(); }

  TraceRecorder recorder;
  AlignedMemory memory;
};

int64_t nsOf(Clock::time_point time) { return time.time_since_epoch().count(); }

TEST(DeviceTimes, TakeThePlaceOfTheHosts) {
  constexpr TraceLane kFront = TraceLane::kForeground;
  const Program program = pipelineImages(1)[0].program;
  Recorded recorded(program);
  const auto queue = cpuDevice().makeQueue(), second = cpuDevice().makeQueue();
  DeviceTimes times(*queue, *second, recorded.recorder);
  Clock::time_point began, met, ended;
  for (int step = 1; step <= 2; ++step) {
    recorded.recorder.beginStep(step, 0, Clock::now());
    times.beginStep(Clock::now());
    recorded.recorder.begin(kFront, 3, Clock::now());
    recorded.recorder.end(kFront, Clock::now());
    recorded.recorder.begin(kFront, 5, Clock::now());
    std::this_thread::sleep_for(milliseconds(60));  // the host is earlier than the device
    began = Clock::now();
    const size_t pair = times.begin(kFront);
    std::this_thread::sleep_for(milliseconds(40));
    met = Clock::now();
    std::this_thread::sleep_for(milliseconds(40));
    times.end(kFront, pair, met);
    ended = Clock::now();
    recorded.recorder.end(kFront, Clock::now() + milliseconds(100));
    times.resolve();
    recorded.recorder.endStep(Clock::now());
  }
  const TraceStepRecords step = recorded.read().steps.at(1);
  ASSERT_EQ(step.lanes[0].size(), 2u);
  const TraceRecord& record = step.lanes[0][1];
  EXPECT_EQ(record.instruction, 5u);
  constexpr double kOff = 2e7;  // ns, on a busy machine
  EXPECT_NEAR(record.start_ns, nsOf(began), kOff);
  EXPECT_NEAR(record.end_ns, nsOf(ended), kOff);
  EXPECT_NEAR(record.waited_ns, (met - began).count(), kOff);
  EXPECT_LT(step.lanes[0][0].end_ns - step.lanes[0][0].start_ns, kOff);  // has no pair, and is as it was
}

// Whoever comes late to a meeting has waited for nobody; nobody waits for longer than it took.
TEST(DeviceTimes, NobodyWaitsOutsideOfARecord) {
  const Program program = pipelineImages(1)[0].program;
  Recorded recorded(program);
  const auto queue = cpuDevice().makeQueue();
  DeviceTimes times(*queue, *queue, recorded.recorder);
  recorded.recorder.beginStep(1, 0, Clock::now());
  times.beginStep(Clock::now());
  for (const milliseconds met : {milliseconds(-1000), milliseconds(1000)}) {
    recorded.recorder.begin(TraceLane::kForeground, 0, Clock::now());
    const size_t pair = times.begin(TraceLane::kForeground);
    times.end(TraceLane::kForeground, pair, Clock::now() + met);
  }
  times.resolve();
  const std::vector<TraceRecord> records = recorded.read().steps.at(0).lanes[0];
  EXPECT_EQ(records.at(0).waited_ns, 0);
  EXPECT_EQ(records.at(1).waited_ns, records[1].end_ns - records[1].start_ns);
}

// Two ranks on a device that works late, in three steps that are recorded.
std::vector<RankRecording> recordOnLazyDevices(const std::vector<RankImage>& images) {
  std::vector<RankRecording> recordings(2);
  testing::runRankThreads(2, [&](Communicator& communicator) {
    const auto device = testing::makeLazyDevice();
    ExecutorOptions options;
    options.device = device.get();
    Executor executor(images[communicator.rank().index()], options);
    const MemoryBlock arena = device->allocate(executor.memory().total_bytes);
    const auto data = makeDataSource({"", 5}, executor.program());
    executor.attach(arena.bytes, &communicator, data.get());
    Recorded recorded(executor.program(), executor.memory().live_bytes);
    executor.record(&recorded.recorder);
    for (int64_t step = 1; step <= 3; ++step) executor.runStep(step);
    executor.record(nullptr);
    executor.runStep(4);
    recordings[communicator.rank().index()] = {recorded.read(), {executor.program()}, {}};
  });
  return recordings;
}

// What is recorded is when it worked.
TEST(DeviceTimes, OfAPipelineAreTheDevices) {
  const std::vector<RankRecording> recordings = recordOnLazyDevices(pipelineImages(2));
  for (const RankRecording& recording : recordings) {
    for (const TraceStepRecords& step : recording.records.steps) {
      int64_t before = step.start_ns;
      for (const TraceRecord& record : step.lanes[0]) {
        EXPECT_GE(record.start_ns, before - 1000) << "step " << step.step;  // the anchors' exactness
        EXPECT_GE(record.end_ns, record.start_ns);
        if (record.part == 0) before = record.end_ns;
      }
      EXPECT_GE(step.end_ns, before - 1000);
    }
  }
  const Trace trace = mergeTrace(2, recordings);  // verified
  const TraceBreakdown parts = breakDown(trace);
  for (const RankBreakdown& part : parts.ranks) {
    EXPECT_GE(part.idle, 0);
    EXPECT_GT(part.compute, 0);
    EXPECT_EQ(part.compute + part.waiting + part.transfer + part.idle, parts.length);
  }
}

// From where the device came to their posting to where what takes them up begins.
TEST(DeviceTimes, OfReceivesPostedEarlyAreTheDevices) {
  std::vector<RankImage> images = pipelineImages(2);
  for (RankImage& image : images) {
    for (Instruction& instruction : image.program.instructions)
      instruction.background = instruction.kind == InstructionKind::kReceive;
  }
  size_t posted = 0;
  for (const RankRecording& recording : recordOnLazyDevices(images)) {
    for (const TraceStepRecords& step : recording.records.steps) {
      for (const TraceRecord& receive : step.lanes[static_cast<size_t>(TraceLane::kPosted)]) {
        ++posted;
        EXPECT_LE(receive.start_ns, receive.end_ns);
        EXPECT_LE(receive.waited_ns, receive.end_ns - receive.start_ns);
        for (const TraceRecord& other : step.lanes[0]) {
          if (other.instruction > receive.instruction) continue;
          EXPECT_GE(receive.start_ns, other.end_ns - 1000) << "step " << step.step;
        }
      }
    }
  }
  EXPECT_GT(posted, 0u);
}

}  // namespace
}  // namespace pipeshard
