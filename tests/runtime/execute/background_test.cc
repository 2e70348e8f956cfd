// Background instructions between ranks in threads: against plain loops, with delays, and when something
// fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <future>
#include <random>
#include <thread>

#include "ir/base/ids_format.h"
#include "ir/program/program_verify.h"
#include "runtime/execute/executor.h"
#include "tests/expect_error.h"
#include "tests/ir/program/program_writer.h"
#include "transport/shared/shared_memory.h"
#include "transport/shared/shared_segments.h"

namespace pipeshard {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(BackgroundLane, DoesItsWorkInOrder) {
  std::vector<size_t> seen;
  BackgroundLane lane(
      [&](size_t k) {
        std::this_thread::sleep_for(1ms);
        seen.push_back(k);
      },
      {});
  for (int step = 0; step < 3; ++step) {
    lane.begin();
    for (int i = 0; i < 5; ++i) lane.post();
    lane.waitFor(2, {});
    EXPECT_GE(lane.done(), 2u);
    lane.waitFor(5, {});
    EXPECT_EQ(seen, (std::vector<size_t>{0, 1, 2, 3, 4}));
    EXPECT_GT(lane.seconds(), 0.005);
    seen.clear();
  }
}

TEST(BackgroundLane, ServesTheCallersSendsWhileItWaits) {
  std::promise<void> served;
  BackgroundLane lane([&](size_t) { served.get_future().wait(); }, {});
  lane.begin();
  lane.post();
  int calls = 0;
  lane.waitFor(1, [&] {
    if (++calls == 3) served.set_value();
    return true;
  });
  EXPECT_GE(calls, 3);
}

TEST(BackgroundLane, EndsWithItsFirstError) {
  std::atomic<int> failures{0};
  BackgroundLane lane(
      [](size_t k) {
        if (k == 1) fail(ErrorCode::kHang, "number {}", k);
        if (k == 2) throw std::runtime_error("never reached");
      },
      [&] { ++failures; });
  lane.begin();
  for (int i = 0; i < 3; ++i) lane.post();
  lane.waitFor(1, {});
  EXPECT_ERROR(lane.waitFor(3, {}), ErrorCode::kHang, "number 1");
  lane.settle();
  EXPECT_EQ(failures, 1);
  EXPECT_EQ(lane.done(), 1u);
  EXPECT_THAT(lane.failure()->message(), HasSubstr("number 1"));
}

SharedSegments duplicate(const SharedSegments& segments) {
  std::string text = fmt::format("control={},arenas=", ::dup(segments.controlDescriptor()));
  for (RankId rank : idsBelow<RankId>(segments.size()))
    text += fmt::format("{}{}", rank.index() == 0 ? "" : ":", ::dup(segments.arenaDescriptor(rank)));
  return SharedSegments::inherit(text);
}

// All-reduces begin after a delay.
class DelayedCommunicator : public Communicator {
 public:
  DelayedCommunicator(std::unique_ptr<Communicator> inner, std::function<Clock::duration()> delay)
      : inner_(std::move(inner)), delay_(std::move(delay)) {}
  RankId rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::unique_ptr<SendHandle> send(RankId peer, std::span<const std::byte> data) override {
    return inner_->send(peer, data);
  }
  void receive(RankId peer, std::span<std::byte> data) override { inner_->receive(peer, data); }
  void allReduce(const Group& group, DataType type, Reduction reduction, const void* input, void* output,
                 size_t count) override {
    std::this_thread::sleep_for(delay_());
    inner_->allReduce(group, type, reduction, input, output, count);
  }
  void allGather(const Group& group, DataType type, const void* input, void* output, size_t count) override {
    inner_->allGather(group, type, input, output, count);
  }
  void reduceScatter(const Group& group, DataType type, Reduction reduction, const void* input, void* output,
                     size_t count) override {
    inner_->reduceScatter(group, type, reduction, input, output, count);
  }
  void allToAll(const Group& group, DataType type, const void* input, void* output, size_t count) override {
    inner_->allToAll(group, type, input, output, count);
  }
  void broadcast(const Group& group, DataType type, int root, void* data, size_t count) override {
    inner_->broadcast(group, type, root, data, count);
  }
  void barrier(const Group& group) override { inner_->barrier(group); }
  void interrupt() override { inner_->interrupt(); }
  bool progress() override { return inner_->progress(); }

 private:
  std::unique_ptr<Communicator> inner_;
  std::function<Clock::duration()> delay_;
};

// A rank of a job whose ranks are threads.
struct ThreadRank {
  ThreadRank(const SharedSegments& segments, Program program, std::chrono::milliseconds timeout,
             DataSource* data = nullptr, std::function<Clock::duration()> delay = {})
      : executor({std::move(program), {}, ""}, {}) {
    auto opened = SharedMemoryCommunicator::open(duplicate(segments), executor.program().rank, timeout);
    const std::span<std::byte> arena = opened->createArena(executor.memory().total_bytes);
    second = opened->openSecond();
    if (delay) second = std::make_unique<DelayedCommunicator>(std::move(second), std::move(delay));
    first = std::move(opened);
    executor.attach(arena, first.get(), data, second.get());
  }

  std::unique_ptr<Communicator> first, second;
  Executor executor;
};

std::vector<float> contentOf(const Executor& executor, BufferId id) {
  const std::span<std::byte> bytes = executor.content(id);
  std::vector<float> elements(bytes.size() / sizeof(float));
  std::memcpy(elements.data(), bytes.data(), bytes.size());
  return elements;
}

// ---- random programs ----

constexpr int kRanks = 3;
constexpr int kTensors = 5;

// A list of operations that all ranks know; each does its part in this order. Values are small integers,
// exact in float32.
struct Script {
  std::vector<ProgramWriter> writers;
  std::vector<std::vector<std::vector<float>>> values;  // by rank and tensor, as plain loops have it
  std::vector<std::vector<std::vector<float>>> starts;  // what they were first
  int copies = 0;

  static std::string name(int tensor) { return "t" + std::to_string(tensor); }

  explicit Script(std::mt19937& random) : values(kRanks) {
    for (int rank = 0; rank < kRanks; ++rank) {
      ProgramWriter& writer = writers.emplace_back(rank, kRanks, 1);
      for (const Group& group : {idsAt<RankId>({0, 1, 2}), idsAt<RankId>({0, 1}), idsAt<RankId>({1, 2})}) {
        const RankId own(rank);
        writer.program().groups.push_back(std::count(group.begin(), group.end(), own) > 0 ? group
                                                                                          : Group{own});
      }
      for (int t = 0; t < kTensors; ++t) {
        const int64_t size = shape(t);
        writer.buffer(name(t), BufferKind::kActivation, {size});
        const BufferId id = writer.buffer("start" + std::to_string(t), BufferKind::kWeight, {size});
        Buffer& start = writer.program().buffers[id.index()];
        std::vector<double> numbers;
        for (int64_t i = 0; i < size; ++i) numbers.push_back(static_cast<double>(random() % 5));
        start.source = makeConstant<double>({size}, numbers);
        start.source_type = DataType::kFloat64;
        values[rank].emplace_back(numbers.begin(), numbers.end());
        writer.accumulate("start" + std::to_string(t), name(t), true, -1);
      }
    }
    starts = values;
    for (int i = 0; i < 60; ++i) addOperation(random);
    for (ProgramWriter& writer : writers) {
      for (int t = 0; t < kTensors; ++t)
        writer.result(Result::Kind::kGradient, fmt::format("{} of {}", t, writer.program().rank), name(t));
    }
  }

  static int64_t shape(int tensor) { return tensor % 2 == 0 ? 7 : 3001; }

  std::vector<float>& value(int rank, int tensor) { return values[rank][tensor]; }
  ProgramWriter& writer(int rank) { return writers[rank]; }

  void addOperation(std::mt19937& random) {
    const int tensor = random() % kTensors;
    const int rank = random() % kRanks;
    switch (random() % 4) {
      case 0: return sum(tensor, random() % 3, random() % 4 != 0);
      case 1:
        return pass(tensor, rank, (rank + 1 + static_cast<int>(random() % 2)) % kRanks, random() % 2 == 0);
      case 2: {
        writer(rank).accumulate("start" + std::to_string(tensor), name(tensor), true, -1);
        value(rank, tensor) = starts[rank][tensor];
        return;
      }
      default: {
        const int other = (tensor + 2) % kTensors;
        if (shape(other) != shape(tensor)) return;
        writer(rank).accumulate(name(other), name(tensor), true, -1);
        value(rank, tensor) = value(rank, other);
      }
    }
  }

  void sum(int tensor, size_t group, bool in_background) {
    const std::vector<int> members = group == 0   ? std::vector<int>{0, 1, 2}
                                     : group == 1 ? std::vector<int>{0, 1}
                                                  : std::vector<int>{1, 2};
    std::vector<float> total(shape(tensor));
    for (int rank : members) {
      for (size_t i = 0; i < total.size(); ++i) total[i] += value(rank, tensor)[i];
    }
    if (*std::max_element(total.begin(), total.end()) > 1e6f) return;
    for (int rank : members) {
      value(rank, tensor) = total;
      writer(rank).allReduce(group, name(tensor));
      if (in_background) writer(rank).inBackground();
    }
  }

  // The receiver gets a copy in a buffer of its own, and puts it into its tensor.
  void pass(int tensor, int from, int to, bool in_background) {
    const std::string copy = "copy" + std::to_string(copies++);
    writer(to).buffer(copy, BufferKind::kActivation, {shape(tensor)});
    writer(from).send(to, name(tensor));
    writer(to).receive(from, copy);
    if (in_background) writer(to).inBackground();
    writer(to).accumulate(copy, name(tensor), true, -1);
    writer(to).release(copy);
    value(to, tensor) = value(from, tensor);
  }
};

TEST(Background, RandomProgramsComputeWhatLoopsDoUnderRandomDelays) {
  for (unsigned seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Script script(random);
    std::vector<Program> programs;
    for (ProgramWriter& writer : script.writers) programs.push_back(writer.program());
    ASSERT_NO_THROW(verifyPrograms(programs));
    const SharedSegments segments = SharedSegments::create(kRanks);
    const auto run_rank = [&](int rank) {
      std::mt19937 delays(seed * 7 + static_cast<unsigned>(rank));
      ThreadRank self(segments, programs[rank], 20s, nullptr,
                      [&delays] { return std::chrono::microseconds(delays() % 300); });
      for (int64_t step = 1; step <= 4; ++step) self.executor.runStep(step);
      for (int t = 0; t < kTensors; ++t) {
        EXPECT_EQ(contentOf(self.executor, self.executor.program().results[t].buffer), script.value(rank, t))
            << "rank " << rank << ", tensor " << t;
      }
      self.first->barrier(idsAt<RankId>({0, 1, 2}));
    };
    std::vector<std::thread> others;
    for (int rank = 1; rank < kRanks; ++rank) others.emplace_back(run_rank, rank);
    run_rank(0);
    for (std::thread& other : others) other.join();
  }
}

// ---- time, and failures ----

// Takes its time for each tensor, or fails.
class SlowSource : public DataSource {
 public:
  explicit SlowSource(Clock::duration duration, bool fails = false)
      : DataSource({{"x", DataType::kFloat32, {2, 3}, 0, 0, 0}}), duration_(duration), fails_(fails) {}
  bool isLastBatch(int64_t) const override { return false; }

 private:
  void write(size_t, int64_t, const Shard&, std::span<std::byte> to) override {
    std::this_thread::sleep_for(duration_);
    if (fails_) fail(ErrorCode::kMissingInput, "the source has dried up");
    std::fill(to.begin(), to.end(), std::byte{0});
  }

  Clock::duration duration_;
  bool fails_;
};

// all_reduce "sum" over ranks 0 and 1; load "x"; what `behind` adds; and then "sum" is read.
Program sumThenLoad(int rank, int ranks, bool in_background,
                    const std::function<void(ProgramWriter&)>& behind = {}) {
  ProgramWriter writer(rank, ranks, 1);
  writer.program().groups = {idsAt<RankId>({0, 1})};
  writer.input("x", {2, 3}, 0);
  writer.zero("sum");
  writer.allReduce(0, "sum");
  if (in_background) writer.inBackground();
  writer.load("x@0", 0);
  if (behind) behind(writer);
  writer.accumulate("sum", "x@0", true, -1);
  writer.release("sum");
  writer.result(Result::Kind::kGradient, fmt::format("x of {}", rank), "x@0");
  return writer.program();
}

// Rank 0 loads for 900 ms; rank 1 comes to the sum 750 ms late.
StepReport lateSum(bool in_background) {
  const std::vector<Program> programs{sumThenLoad(0, 2, in_background), sumThenLoad(1, 2, in_background)};
  verifyPrograms(programs);
  const SharedSegments segments = SharedSegments::create(2);
  SlowSource slow(900ms), fast(0ms);
  StepReport report;
  std::thread other([&] {
    ThreadRank self(segments, programs[1], 20s, &fast);
    self.first->barrier(idsAt<RankId>({0, 1}));
    std::this_thread::sleep_for(750ms);
    self.executor.runStep(1);
    self.first->barrier(idsAt<RankId>({0, 1}));
  });
  ThreadRank self(segments, programs[0], 20s, &slow);
  self.first->barrier(idsAt<RankId>({0, 1}));
  report = self.executor.runStep(1);
  self.first->barrier(idsAt<RankId>({0, 1}));
  other.join();
  return report;
}

TEST(Background, TheThreadGoesOnWhileTheLaneWaits) {
  const StepReport beside = lateSum(true);
  const StepReport before = lateSum(false);
  EXPECT_GT(beside.background_seconds, 0.4);
  EXPECT_LT(beside.transfer_seconds, 0.3);
  EXPECT_GT(beside.compute_seconds, 0.89);
  EXPECT_GT(before.transfer_seconds, 0.4);
  EXPECT_EQ(before.background_seconds, 0);
  EXPECT_GT(before.seconds, 1.3);
  EXPECT_LT(beside.seconds, before.seconds - 0.3);
}

TEST(Background, SaysWhatIsAwaited) {
  const std::vector<Program> programs{sumThenLoad(0, 2, true), sumThenLoad(1, 2, true)};
  const SharedSegments segments = SharedSegments::create(2);
  SlowSource fast(0ms);
  ThreadRank self(segments, programs[0], 20s, &fast);
  std::thread step([&] { self.executor.runStep(1); });
  std::string where;
  for (int i = 0; i < 200 && where.find("it waits for") == std::string::npos; ++i) {
    std::this_thread::sleep_for(10ms);
    where = self.executor.describeCurrent();
  }
  EXPECT_THAT(where,
              AllOf(HasSubstr("step 1, rank 0, instruction 3: accumulate overwrite \"sum\" -> \"x@0\""),
                    HasSubstr("it waits for rank 0, instruction 1: all_reduce background group=0 \"sum\"")));
  EXPECT_TRUE(self.executor.progress().waiting);
  EXPECT_TRUE(self.executor.progress().running);
  ThreadRank other(segments, programs[1], 20s, &fast);
  other.executor.runStep(1);
  step.join();
}

// Rank 0 waits for rank 2, which is well and sends nothing, while its lane meets rank 1.
void runUntilError(const std::function<void(SharedSegments&)>& rank_one, std::chrono::milliseconds timeout,
                   ErrorCode code, const std::vector<std::string>& parts) {
  SharedSegments segments = SharedSegments::create(3);
  SlowSource fast(0ms);
  ThreadRank self(segments, sumThenLoad(0, 3, true, [](ProgramWriter& writer) { writer.receive(2, "y"); }),
                  20s, &fast);
  const auto third = SharedMemoryCommunicator::open(duplicate(segments), RankId(2), timeout);
  std::thread other([&] {
    std::this_thread::sleep_for(100ms);
    rank_one(segments);
  });
  const Clock::time_point start = Clock::now();
  try {
    self.executor.runStep(3);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    for (const std::string& part : parts) EXPECT_THAT(error.message(), HasSubstr(part));
  }
  EXPECT_LT(Clock::now() - start, 3s);
  other.join();
}

TEST(Background, ADeadPeerOfTheLaneEndsTheStepWhateverItsThreadDoes) {
  runUntilError([](SharedSegments& segments) { segments.markDead(RankId(1)); }, 20s,
                ErrorCode::kPeerUnavailable,
                {"step 3, rank 0, instruction 1: all_reduce background group=0 \"sum\" -> \"sum\": ",
                 "rank 1 has died"});
}

TEST(Background, APeerThatGivesTheLaneSomethingElseIsNamed) {
  runUntilError(
      [](SharedSegments& segments) {
        const auto first = SharedMemoryCommunicator::open(duplicate(segments), RankId(1), 20s);
        const auto second = first->openSecond();
        EXPECT_ERROR(second->barrier(idsAt<RankId>({0, 1})), ErrorCode::kVersionMismatch,
                     "rank 0 does allReduce");
      },
      20s, ErrorCode::kVersionMismatch,
      {"step 3, rank 0, instruction 1: all_reduce background",
       "rank 1 does barrier where rank 0 does allReduce"});
}

TEST(Background, TheLanesDeadlineHolds) {
  const SharedSegments segments = SharedSegments::create(2);
  SlowSource fast(0ms);
  ThreadRank self(segments, sumThenLoad(0, 2, true), 300ms, &fast);
  EXPECT_ERROR(self.executor.runStep(1), ErrorCode::kHang, "rank 0, instruction 1: all_reduce background");
}

TEST(Background, AnErrorOfTheThreadEndsTheLanesWait) {
  const SharedSegments segments = SharedSegments::create(2);
  SlowSource failing(100ms, true);
  ThreadRank self(segments, sumThenLoad(0, 2, true), 20s, &failing);
  const Clock::time_point start = Clock::now();
  EXPECT_ERROR(self.executor.runStep(1), ErrorCode::kMissingInput,
               "instruction 2: load_input microbatch=0 -> \"x@0\": the source has dried up");
  EXPECT_LT(Clock::now() - start, 2s);
}

TEST(Background, NeedsASecondCommunicator) {
  const SharedSegments segments = SharedSegments::create(2);
  SlowSource fast(0ms);
  Executor executor({sumThenLoad(0, 2, true), {}, ""}, {});
  const auto communicator = SharedMemoryCommunicator::open(duplicate(segments), RankId(0), 20s);
  const std::span<std::byte> arena = communicator->createArena(executor.memory().total_bytes);
  EXPECT_ERROR(executor.attach(arena, communicator.get(), &fast), ErrorCode::kConfiguration,
               "no second communicator of 2 ranks");
}

}  // namespace
}  // namespace pipeshard
