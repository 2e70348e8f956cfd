// Programs of asynchronous schedules compute what the definition of versions says, and keep no more versions
// than they need.
#include <algorithm>
#include <map>
#include <numeric>
#include <random>

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/graph/training_graph.h"
#include "partition/cut/node_stages.h"
#include "partition/emit/emit_programs.h"
#include "partition/families/plan_schedule.h"
#include "partition/stages/partition_training.h"
#include "tests/expect_error.h"
#include "tests/partition/emit/symbolic_execution.h"
#include "tests/partition/training_builder.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Plan planOf(const TrainingGraph& training, const std::string& schedule, int stages, int window) {
  PartitionOptions options;
  options.schedule = parseSchedule(schedule);
  options.cluster = uniformCluster(1, stages);
  options.stages = uniformStages(stages);
  options.window = window;
  Plan plan;
  plan.microbatches = training.microbatches;
  partitionTraining(training, options, plan);
  return plan;
}

// By name of each trained parameter the version that each microbatch of a window reads, as the schedule says
// of its owner's stage.
std::map<std::string, std::vector<int>> readsOf(const TrainingGraph& training, const Plan& plan) {
  const Schedule schedule = scheduleOf(plan);
  const std::vector<StageId> owners = parameterOwners(training, nodeStages(training, plan));
  std::map<std::string, std::vector<int>> reads;
  for (size_t p = 0; p < owners.size(); ++p) {
    if (!isTrained(training.parameters[p])) continue;
    reads[training.graph.value(training.parameters[p].value).name] = schedule.versions[owners[p]];
  }
  return reads;
}

TrainingGraph randomTraining(std::mt19937& random, int64_t microbatches) {
  TrainingBuilder builder(microbatches);
  std::vector<ValueId> values = {builder.input("x"), builder.input("mask", -1), builder.constant("c"),
                                 builder.weight("frozen")};
  if (random() % 2) values.push_back(builder.total("count", values[random() % 2]));
  const size_t first = values.size();
  const size_t nodes = 4 + random() % 8;
  for (size_t i = 0; i < nodes; ++i) {
    const std::string name = std::to_string(i);
    if (values.size() > first && random() % 4 == 0) {
      values.push_back(builder.bias("h" + name, values.back(), builder.parameter("b" + name)));
      continue;
    }
    std::vector<ValueId> inputs = {values.back(), values[random() % values.size()]};
    if (random() % 3)
      inputs.push_back(random() % 2 ? builder.parameter("w" + name) : builder.smallParameter("w" + name));
    values.push_back(builder.op("h" + name, inputs));
  }
  return builder.finish({values.back(), values[first]}, random() % 3);
}

// "" where they are equal; else the first that differs.
std::string difference(const std::vector<Symbols>& got, const std::vector<Symbols>& want) {
  if (got.size() != want.size()) return "number of steps";
  for (size_t step = 0; step < got.size(); ++step) {
    for (const auto& [name, symbol] : want[step]) {
      const auto found = got[step].find(name);
      if (found == got[step].end() || found->second != symbol)
        return name + (found == got[step].end() ? " is missing" : " differs");
    }
    if (got[step].size() != want[step].size()) return "something else is there";
  }
  return "";
}

TEST(AsynchronousEmission, ProgramsComputeTheDefinitionOnManyDevicesAndOnOne) {
  for (unsigned seed = 0; seed < 150; ++seed) {
    std::mt19937 random(seed);
    const int stages = 1 + random() % 4;
    const int window = 1 + random() % 7;
    const char* schedule = std::array{"pipedream", "pipedream-vertical", "pipedream-2bw"}[random() % 3];
    const bool two_buffers = std::string(schedule) == "pipedream-2bw";
    const TrainingGraph training =
        randomTraining(random, two_buffers ? stages + static_cast<int64_t>(random() % 3) : 1);
    const Plan plan = planOf(training, schedule, stages, window);
    std::vector<Symbols> expected = executeWindows(training, window, readsOf(training, plan), 2);
    if (window == 1) expected = executeDefinition(training, 2);
    ASSERT_EQ(difference(executePrograms(emitOneSize(training, plan), 2), expected), "")
        << seed << " " << schedule << " " << stages << " " << window;
    std::vector<RankProgram> alone;
    alone.push_back(emitOnOneDevice(TrainingFamily(training), plan, scheduleOf(plan)));
    ASSERT_EQ(difference(executePrograms(alone, 2), expected), "") << seed << " " << schedule << " alone";
  }
}

// What the passes of one stage read, found in its program by following the contents of its buffers.
struct ReadVersions {
  std::vector<int> forward, backward;  // by microbatch
  size_t most_alive = 1;
};

ReadVersions readVersions(const Program& program, const std::string& parameter) {
  ReadVersions found;
  found.forward.resize(program.microbatches, -1);
  found.backward = found.forward;
  std::map<size_t, int> holds;  // version by buffer
  int made = 0;
  for (size_t b = 0; b < program.buffers.size(); ++b) {
    if (program.buffers.plain()[b].kind == BufferKind::kParameter &&
        program.buffers.plain()[b].value == parameter)
      holds[b] = 0;
  }
  for (const Instruction& instruction : program.instructions) {
    if (instruction.kind == InstructionKind::kRun && instruction.microbatch >= 0) {
      const bool forward = program.subgraphs[instruction.subgraph.index()].phase == Phase::kForward;
      for (BufferId input : instruction.inputs) {
        const auto version = holds.find(input.index());
        if (version == holds.end()) continue;
        (forward ? found.forward : found.backward)[instruction.microbatch] = version->second;
      }
    }
    if (instruction.kind == InstructionKind::kFree) holds.erase(instruction.inputs[0].index());
    if (instruction.kind != InstructionKind::kUpdate) continue;
    for (BufferId output : instruction.outputs) {
      const Buffer& buffer = program.buffer(output);
      const bool weight = buffer.kind == BufferKind::kParameter || buffer.kind == BufferKind::kWeightVersion;
      if (weight && buffer.value == parameter) holds[output.index()] = ++made;
    }
    found.most_alive = std::max(found.most_alive, holds.size());
  }
  return found;
}

TEST(AsynchronousEmission, PassesReadTheVersionsOfTheReferenceAndNoMoreLive) {
  const std::vector<std::vector<int>> stashed = {
      {0, 0, 0, 0, 1, 2, 3, 4}, {0, 0, 0, 1, 2, 3, 4, 5}, {0, 0, 1, 2, 3, 4, 5, 6}, {0, 1, 2, 3, 4, 5, 6, 7}};
  const std::vector<std::vector<int>> vertical(4, stashed[0]);
  const std::vector<std::vector<int>> doubled(4, {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1});
  struct Case {
    const char* schedule;
    int64_t microbatches;
    int window;
    std::vector<std::vector<int>> reads;
    std::vector<size_t> alive;
  };
  for (const Case& c : {Case{"pipedream", 1, 8, stashed, {4, 3, 2, 1}},
                        Case{"pipedream-vertical", 1, 8, vertical, {4, 4, 4, 4}},
                        Case{"pipedream-2bw", 4, 3, doubled, {2, 2, 2, 2}}}) {
    const TrainingGraph training = chainTraining(4, c.microbatches);
    const std::vector<RankProgram> ranks = emitOneSize(training, planOf(training, c.schedule, 4, c.window));
    for (size_t stage = 0; stage < 4; ++stage) {
      const Program& program = ranks[stage].program;
      EXPECT_EQ(program.updates_per_step, c.window);
      const ReadVersions found = readVersions(program, "w" + std::to_string(stage));
      EXPECT_EQ(found.forward, c.reads[stage]) << c.schedule << " stage " << stage;
      EXPECT_EQ(found.backward, c.reads[stage]) << c.schedule << " stage " << stage;
      EXPECT_EQ(found.most_alive, c.alive[stage]) << c.schedule << " stage " << stage;
    }
  }
}

// PipeDream's replicas: who has which minibatch, what it reads, and between whom values travel.
TEST(AsynchronousEmission, ReplicasTakeWholeMinibatchesInTurn) {
  struct Case {
    std::vector<int> replicas;
    std::vector<std::vector<int>> reads;
    std::vector<size_t> alive;
  };
  for (const Case& c :
       {Case{{3, 1}, {{0, 0, 0, 0, 0, 0}, {0, 1, 2, 3, 4, 5}}, {2, 1}},
        Case{{1, 3}, {{0, 0, 0, 0, 1, 2}, {0, 0, 0, 1, 1, 1}}, {4, 1}},
        Case{{2, 1, 1}, {{0, 0, 0, 0, 1, 1}, {0, 0, 1, 2, 3, 4}, {0, 1, 2, 3, 4, 5}}, {2, 2, 1}}}) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(c.replicas, "-")));
    const int stages = c.replicas.size();
    const TrainingGraph training = chainTraining(stages, 1);
    PartitionOptions options;
    options.schedule = ScheduleSpec{"pipedream"};
    options.cluster = uniformCluster(1, 4);
    for (int stage = 0; stage + 1 < stages; ++stage)
      options.boundaries.push_back("h" + std::to_string(stage));
    options.stage_devices = c.replicas;
    options.window = 6;
    Plan plan;
    plan.microbatches = 1;
    partitionTraining(training, options, plan);
    const std::vector<RankProgram> ranks = emitOneSize(training, plan);
    size_t rank = 0;
    for (size_t stage = 0; stage < c.replicas.size(); ++stage) {
      size_t most_alive = 0;
      for (int replica = 0; replica < c.replicas[stage]; ++replica, ++rank) {
        std::vector<int> expected = c.reads[stage];
        for (int i = 0; i < 6; ++i) {
          if (i % c.replicas[stage] != replica) expected[i] = -1;  // elsewhere
        }
        const ReadVersions found = readVersions(ranks[rank].program, "w" + std::to_string(stage));
        EXPECT_EQ(found.forward, expected) << "stage " << stage;
        EXPECT_EQ(found.backward, expected) << "stage " << stage;
        most_alive = std::max(most_alive, found.most_alive);
        for (const Instruction& instruction : ranks[rank].program.instructions) {
          if (instruction.kind != InstructionKind::kSend) continue;
          const bool forward = instruction.peer > RankId(rank);
          const size_t other = forward ? stage + 1 : stage - 1;
          const int first = std::accumulate(c.replicas.begin(), c.replicas.begin() + other, 0);
          EXPECT_EQ(instruction.peer, RankId(first + instruction.microbatch % c.replicas[other]));
        }
      }
      EXPECT_EQ(most_alive, c.alive[stage]) << "stage " << stage;
    }
    EXPECT_EQ(
        readVersions(emitOnOneDevice(TrainingFamily(training), plan, scheduleOf(plan)).program, "w0").forward,
        c.reads[0]);
  }
}

TEST(AsynchronousEmission, RowsOfAWindowFollowEachOther) {
  const TrainingGraph training = chainTraining(2, 2);
  const std::vector<RankProgram> ranks = emitOneSize(training, planOf(training, "pipedream-2bw", 2, 3));
  std::vector<int64_t> offsets;
  for (const Instruction& instruction : ranks[0].program.instructions) {
    if (instruction.kind == InstructionKind::kLoadInput) offsets.push_back(instruction.offset);
  }
  std::sort(offsets.begin(), offsets.end());
  const int64_t rows = ranks[0].program.inputs[0].shape[0];
  ASSERT_EQ(offsets.size(), 6u);
  for (size_t k = 0; k < 6; ++k) EXPECT_EQ(offsets[k], static_cast<int64_t>(k) * rows / 6);
}

TEST(AsynchronousEmission, WeightsOfSeveralStagesAndRunningStatisticsAreRefusedByName) {
  TrainingBuilder tied(1);
  const ValueId shared = tied.parameter("embedding");
  ValueId h = tied.op("h0", {tied.input("x"), shared});
  h = tied.op("h1", {h, tied.parameter("w1")});
  const TrainingGraph tied_training = tied.finish({tied.op("h2", {h, shared})});
  EXPECT_ERROR(emitOneSize(tied_training, planOf(tied_training, "pipedream", 3, 4)),
               ErrorCode::kConfiguration, "the weight 'embedding' belongs to stages 0 and 2");
  // one stage: one version
  EXPECT_NO_THROW(emitOneSize(tied_training, planOf(tied_training, "pipedream", 1, 4)));

  TrainingBuilder statistics(1);
  const ValueId x = statistics.input("x");
  const TrainingGraph normalized =
      statistics.finish({statistics.op("h1", {statistics.stateful("norm", {x, statistics.parameter("w")})})});
  EXPECT_ERROR(emitOneSize(normalized, planOf(normalized, "pipedream", 2, 4)), ErrorCode::kConfiguration,
               "'norm_state' is a running statistic");
}

TEST(AsynchronousEmission, AWindowNeedsAnAsynchronousSchedule) {
  const TrainingGraph training = chainTraining(2, 1);
  EXPECT_ERROR(planOf(training, "1f1b", 2, 4), ErrorCode::kUsage,
               "--window 4: the schedule 1f1b updates once per step");
  Plan plan = planOf(training, "1f1b", 2, 0);
  plan.updates_per_step = 2;
  EXPECT_ERROR(scheduleOf(plan), ErrorCode::kConfiguration, "found 2 updates in a step; expected one");
  EXPECT_EQ(planOf(training, "pipedream", 2, 0).updates_per_step, kDefaultWindow);
}

}  // namespace
}  // namespace pipeshard
