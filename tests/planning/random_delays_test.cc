// Whoever is slow, and whenever: programs of every schedule neither hang nor change their results. A thousand
// runs of small programs with random pauses in ranks and links, compared bit by bit with undisturbed ones.
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>

#include "ir/base/error.h"
#include "partition/families/make_schedule.h"
#include "planning/pipeline.h"
#include "runtime/execute/executor.h"
#include "tests/partition/schedules/schedule_from_text.h"
#include "tests/transport/rank_threads.h"
#include "transport/collectives/random_delays.h"
#include "transport/shared/shared_memory.h"

namespace pipeshard {
namespace {

constexpr int64_t kSteps = 8;  // of a program: each is a run, in which other moments are slow

struct Case {
  std::string schedule;
  int ranks = 2;
  int64_t microbatches = 4;
  int devices = 1;  // of each stage: with more, gradients are summed over them
  std::vector<int> stage_devices = {};
  bool overlap_receives = false;
  std::string describe() const {
    return fmt::format("{} on {} ranks of {} devices, {} microbatches{}", schedule, ranks, devices,
                       microbatches, overlap_receives ? ", receives posted" : "");
  }
};

PlannedTraining plan(const Case& of) {
  PlanRequest request;
  request.model_path = std::string(PIPESHARD_SOURCE_DIR) + "/examples/mlp.onnx";
  request.given.optimizer = parseOptimizer("sgd:lr=0.05,momentum=0.9");
  request.microbatches = of.microbatches;
  request.partition.cluster = parseCluster(fmt::format("1x{}", of.ranks * of.devices));
  request.partition.schedule = parseSchedule(of.schedule);
  request.partition.stage_devices = of.stage_devices;
  request.given.overlap_receives = of.overlap_receives ? OverlapReceives::kOn : OverlapReceives::kOff;
  request.partition.stages = uniformStages(of.ranks * chunksOf(of.schedule));
  return planTraining(request, [](const std::string&) {});
}

// By rank and step: the bits of all results, and of what lives on.
using Outcome = std::vector<std::vector<uint64_t>>;

uint64_t digest(const Executor& executor) {
  uint64_t hash = 1469598103934665603;  // FNV-1a
  const auto add = [&](BufferId id) {
    for (const std::byte byte : executor.content(id))
      hash = (hash ^ std::to_integer<uint64_t>(byte)) * 1099511628211;
  };
  for (const Result& result : executor.program().results) add(result.buffer);
  for (size_t b = 0; b < executor.program().buffers.size(); ++b) {
    if (isPersistent(executor.program().buffer(BufferId(b)).kind)) add(BufferId(b));
  }
  return hash;
}

Outcome run(const PlannedTraining& planned, std::optional<uint64_t> seed) {
  Outcome outcome(planned.whole.ranks.size());
  testing::runRankThreads(static_cast<int>(outcome.size()), [&](Communicator& opened) {
    ::prctl(PR_SET_TIMERSLACK, 1UL);  // short sleeps are short
    const size_t rank = opened.rank().index();
    auto& shared = dynamic_cast<SharedMemoryCommunicator&>(opened);
    std::optional<RandomDelays> delays;
    ExecutorOptions options;
    if (seed) options.delays = &delays.emplace(*seed, opened.rank(), std::chrono::microseconds(400));
    const RankProgram program = planned.whole.ranks.of(opened.rank());
    Executor executor({program.program, program.subgraphs, ""}, options);
    const std::span<std::byte> arena = shared.createArena(executor.memory().total_bytes);
    const std::unique_ptr<Communicator> second = shared.openSecond();
    const auto data = makeDataSource({"", 3}, executor.program());
    std::unique_ptr<Communicator> slow[2];
    if (delays) slow[0] = delayCommunicator(opened, *delays), slow[1] = delayCommunicator(*second, *delays);
    executor.attach(arena, delays ? slow[0].get() : &opened, data.get(),
                    delays ? slow[1].get() : second.get());
    for (int64_t step = 1; step <= kSteps; ++step) {
      executor.runStep(step);
      outcome[rank].push_back(digest(executor));
    }
  });
  return outcome;
}

// PipeDream's minibatches are not cut.
int64_t microbatchesOf(const ScheduleFamily& family, int ranks) {
  return family.asynchronous && family.name != "pipedream-2bw" ? 1 : 2 * ranks;
}

std::vector<Case> cases() {
  std::vector<Case> result;
  for (const ScheduleFamily& family : scheduleFamilies()) {
    for (const int ranks : {2, 4}) {
      if (ranks * family.chunks <= 8)
        result.push_back({family.name, ranks, microbatchesOf(family, ranks), 1});
    }
    result.push_back({family.name, 2, microbatchesOf(family, 2), 2});
  }
  for (const std::vector<int>& replicas : {std::vector{3, 1}, std::vector{1, 3}, std::vector{2, 1, 1}}) {
    const int stages = replicas.size();
    result.push_back({"pipedream", stages, 1, 2, replicas});
    result.push_back({"pipedream-vertical", stages, 1, 2, replicas});
    result.push_back({"pipedream-2bw", stages, 6, 2, replicas});
  }
  for (size_t i = 0; i < result.size(); ++i) result[i].overlap_receives = i % 2 == 0;
  return result;
}

TEST(RandomDelays, NeitherHangASchedulesProgramsNorChangeTheirResults) {
  int64_t runs = 0;
  std::map<std::string, std::string> refused;
  std::map<std::string, size_t> done;
  std::vector<std::pair<Case, PlannedTraining>> planned;
  for (const Case& of : cases()) {
    try {
      planned.emplace_back(of, plan(of));
    } catch (const Error& error) {
      ASSERT_NE(error.code(), ErrorCode::kInternal) << of.describe() << ": " << error.message();
      refused[of.describe()] = error.message();
    }
  }
  std::vector<Outcome> expected;
  for (const auto& [of, training] : planned) expected.push_back(run(training, std::nullopt));
  for (uint64_t seed = 1; runs < 1000; ++seed) {
    for (size_t i = 0; i < planned.size(); ++i) {
      SCOPED_TRACE(fmt::format("{}, seed {}", planned[i].first.describe(), seed));
      ASSERT_EQ(run(planned[i].second, seed), expected[i]);
      runs += kSteps;
      ++done[planned[i].first.schedule];
    }
  }
  for (const auto& [what, why] : refused) fmt::print("not run: {}: {}\n", what, why);
  for (const ScheduleFamily& family : scheduleFamilies()) {
    if (family.name == "forward-only") continue;  // nothing is trained
    EXPECT_GT(done[family.name], 0u) << family.name;
  }
  fmt::print("{} runs of {} schedules\n", runs, done.size());
}

TEST(RandomDelays, AreAskedForByAText) {
  EXPECT_EQ(parseRandomDelays("7:300").seed, 7u);
  EXPECT_EQ(parseRandomDelays("7:300").longest, std::chrono::microseconds(300));
  for (const char* text : {"", "7", "7:", ":3", "7:-1", "7:3us", "x:3"})
    EXPECT_THROW(parseRandomDelays(text), Error) << text;
}

}  // namespace
}  // namespace pipeshard
