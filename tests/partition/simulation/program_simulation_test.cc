#include "partition/simulation/program_simulation.h"

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "partition/emit/emit_programs.h"
#include "partition/families/make_schedule.h"
#include "partition/simulation/simulator.h"
#include "partition/stages/partition_training.h"
#include "tests/ir/program/program_writer.h"
#include "tests/partition/schedules/schedule_from_text.h"
#include "tests/partition/training_builder.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Runs take as long as their phase; nothing else takes time.
ProgramCosts costsOf(const Program& program, const std::map<Phase, Ticks>& times) {
  ProgramCosts costs;
  for (const Instruction& instruction : program.instructions) {
    costs.instructions.emplace_back();
    if (!instruction.subgraph.valid()) continue;
    const auto found = times.find(program.subgraphs[instruction.subgraph.index()].phase);
    costs.instructions.back().push_back({.compute = found == times.end() ? 0 : found->second});
  }
  return costs;
}

constexpr Ticks kWeightPart = 7;
const std::map<Phase, Ticks> kPhases = {{Phase::kForward, 10},
                                        {Phase::kBackward, kWeightPart},
                                        {Phase::kBackwardInput, 11},
                                        {Phase::kBackwardWeight, kWeightPart}};
constexpr LinkCost kFree = {0, 1e30};

IdVector<RankId, ProgramCosts> costsOf(const std::vector<Program>& programs,
                                       const std::map<Phase, Ticks>& times = kPhases) {
  IdVector<RankId, ProgramCosts> costs;
  for (const Program& program : programs) costs.push_back(costsOf(program, times));
  return costs;
}

std::string textOf(const Trace& trace, int rank) {
  std::vector<std::string> parts;
  for (const TraceEvent& event : trace.events) {
    if (event.rank != RankId(rank)) continue;
    const bool waited = event.kind == TraceEventKind::kReceive || event.kind == TraceEventKind::kCollective;
    parts.push_back(fmt::format("{}@{}-{}{}", event.name, event.start_ns,
                                waited ? fmt::format("{}-", event.arrived_ns) : "", event.end_ns));
  }
  return fmt::format("{}", fmt::join(parts, " "));
}

// Two ranks that hand a buffer of 24 bytes on; rank 0 frees it and goes on.
std::vector<Program> relay() {
  ProgramWriter first(0, 2, 1), second(1, 2, 1);
  first.subgraph("forward", Phase::kForward, {}, {"h"});
  first.run(0, 0, {}, {"h"});
  first.send(1, "h", 0);
  first.release("h");
  first.run(0, 0, {}, {"other"});
  second.subgraph("forward", Phase::kForward, {"h"}, {"y"});
  second.receive(0, "h", 0);
  second.run(0, 0, {"h"}, {"y"});
  return {first.program(), second.program()};
}

TEST(ProgramSimulation, GivesTheWorkedExampleOfItsHeader) {
  const std::vector<Program> programs = relay();
  const ProgramSimulation simulation =
      simulatePrograms({.programs = programs, .costs = costsOf(programs), .link = {2, 24.0 / 5}});
  EXPECT_EQ(textOf(simulation.trace, 0), "forward@0-10 send h@10-17 forward@17-27");
  EXPECT_EQ(textOf(simulation.trace, 1), "receive h@0-10-17 forward@17-27");
  EXPECT_EQ(simulation.makespan, 27);
  EXPECT_THAT(simulation.idlePerRank(), ElementsAre(7, 17));
  EXPECT_DOUBLE_EQ(simulation.bubbleOfSpan(), 7.0 / 27);
  EXPECT_NO_THROW(verifyTrace(simulation.trace));
}

// In shared memory the receiver copies; over a network the message is under way before it is wanted.
TEST(ProgramSimulation, AMessageStartsWhenItIsWantedOrWhenItIsPosted) {
  std::vector<Program> programs = relay();
  ProgramWriter late(1, 2, 1);
  late.subgraph("forward", Phase::kForward, {"h"}, {"y"});
  late.run(0, 0, {}, {"z"});
  late.run(0, 0, {}, {"u"});
  late.receive(0, "h", 0);
  programs[1] = late.program();
  ProgramSimulationRequest request{.programs = programs, .costs = costsOf(programs), .link = {2, 24.0 / 5}};
  EXPECT_THAT(textOf(simulatePrograms(request).trace, 1), HasSubstr("receive h@20-20-27"));
  EXPECT_THAT(textOf(simulatePrograms(request).trace, 0), HasSubstr("send h@10-27 forward@27-37"));
  request.rendezvous = false;
  EXPECT_THAT(textOf(simulatePrograms(request).trace, 1), HasSubstr("receive h@20-20-20"));
  EXPECT_THAT(textOf(simulatePrograms(request).trace, 0), HasSubstr("send h@10-20 forward@20-30"));
}

TEST(ProgramSimulation, ABackgroundInstructionRunsBesideUntilItsBufferIsNeeded) {
  std::vector<Program> programs;
  for (int rank = 0; rank < 2; ++rank) {
    ProgramWriter writer(rank, 2, 1);
    writer.program().groups = {idsAt<RankId>({0, 1})};
    writer.subgraph("backward", Phase::kBackwardWeight, {}, {"g"});
    writer.subgraph("update", Phase::kUpdate, {"g"}, {"w"});
    writer.run(0, 0, {}, {"g"});
    writer.allReduce(0, "g");
    writer.program().instructions.back().background = true;
    writer.run(0, 0, {}, {"other"});
    writer.update(1, {"g"}, {"w"});
    programs.push_back(writer.program());
  }
  IdVector<RankId, ProgramCosts> costs =
      costsOf(programs, {{Phase::kBackwardWeight, 10}, {Phase::kUpdate, 1}});
  for (ProgramCosts& cost : costs)
    cost.instructions[1] = {{.group = GroupId(0), .exchange = 25, .bytes = 24}};
  costs[RankId(1)].instructions[0][0].compute = 14;
  const ProgramSimulation simulation = simulatePrograms({.programs = programs, .costs = costs});
  EXPECT_EQ(textOf(simulation.trace, 0), "backward@0-10 all_reduce g@10-14-39 backward@10-20 update@39-40");
  EXPECT_EQ(textOf(simulation.trace, 1), "backward@0-14 all_reduce g@14-14-39 backward@14-24 update@39-40");
  EXPECT_NO_THROW(verifyTrace(simulation.trace));
}

TEST(ProgramSimulation, CollectivesInsideASubgraphMeet) {
  std::vector<Program> programs;
  for (int rank = 0; rank < 2; ++rank) {
    ProgramWriter writer(rank, 2, 1);
    writer.program().groups = {idsAt<RankId>({0, 1})};
    writer.subgraph("forward", Phase::kForward, {}, {"h"}, {0});
    writer.run(0, 0, {}, {"h"});
    programs.push_back(writer.program());
  }
  IdVector<RankId, ProgramCosts> costs(2);
  costs[RankId(0)].instructions = {
      {{.compute = 3, .group = GroupId(0), .exchange = 5, .bytes = 8}, {.compute = 2}}};
  costs[RankId(1)].instructions = {
      {{.compute = 9, .group = GroupId(0), .exchange = 5, .bytes = 8}, {.compute = 1}}};
  const ProgramSimulation simulation = simulatePrograms({.programs = programs, .costs = costs});
  EXPECT_EQ(textOf(simulation.trace, 0), "forward@0-3 forward@3-9-14 forward@14-16");
  EXPECT_THAT(simulation.busy, ElementsAre(5, 10));
}

TEST(ProgramSimulation, HoldsBuffersFromTheirFirstWriterToTheirFree) {
  const std::vector<Program> programs = twoRankPrograms();
  const ProgramSimulation simulation = simulatePrograms(
      {.programs = programs, .costs = costsOf(programs, {{Phase::kForward, 10}}), .link = kFree});
  // Rank 0: w and the step throughout; x and h of two microbatches; then dh of one, and in the place of its h
  // and x: dw, and its sum.
  const int64_t base = 24 + 8;
  EXPECT_EQ(simulation.peak_memory[RankId(0)], base + 5 * 24);
  EXPECT_EQ(simulation.trace.memory.front().bytes, base + 2 * 24);
  int64_t last = 0;
  for (const TraceMemory& memory : simulation.trace.memory) {
    if (memory.rank == RankId(0)) last = memory.bytes;
  }
  EXPECT_EQ(last, base + 24);
}

TEST(ProgramSimulation, NamesTheInstructionsThatWaitForEachOther) {
  std::vector<Program> programs;
  for (int rank = 0; rank < 2; ++rank) {
    ProgramWriter writer(rank, 2, 1);
    writer.receive(1 - rank, "a", 0);
    writer.send(1 - rank, "a", 0);
    programs.push_back(writer.program());
  }
  try {
    simulatePrograms({.programs = programs, .costs = costsOf(programs)});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfiguration);
    EXPECT_THAT(error.message(), HasSubstr("rank 0 at instruction 0: receive"));
    EXPECT_THAT(error.message(), HasSubstr("rank 1 at instruction 0: receive"));
  }
}

std::vector<Program> emitted(const std::string& schedule, int stages, int microbatches) {
  const TrainingGraph training = chainTraining(stages, microbatches);
  PartitionOptions options;
  options.schedule = parseSchedule(schedule);
  options.cluster = uniformCluster(1, stages);
  options.stages = uniformStages(stages);
  Plan plan;
  plan.microbatches = microbatches;
  partitionTraining(training, options, plan);
  std::vector<Program> programs;
  for (const RankProgram& rank : emitOneSize(training, plan)) programs.push_back(rank.program);
  return programs;
}

// Programs send the gradient on before they compute that of the weights, so a backward pass is I, then W; but
// that of the first stage, which sends none.
Schedule halved(Schedule schedule) {
  for (std::vector<Action>& order : schedule.orders) {
    std::vector<Action> halves;
    for (const Action& action : order) {
      if (action.kind != ActionKind::kBackward || action.stage == StageId(0)) {
        halves.push_back(action);
        continue;
      }
      halves.push_back({action.stage, ActionKind::kBackwardInput, action.microbatch});
      halves.push_back({action.stage, ActionKind::kBackwardWeight, action.microbatch});
    }
    order = halves;
  }
  return schedule;
}

TEST(ProgramSimulation, OfEmittedProgramsIsThatOfTheirSchedule) {
  for (const char* name : {"sequential", "gpipe", "1f1b"}) {
    for (int p : {1, 2, 4}) {
      for (int m : {1, 2, 5, 8}) {
        const std::vector<Program> programs = emitted(name, p, m);
        const ProgramSimulation simulation =
            simulatePrograms({.programs = programs, .costs = costsOf(programs), .link = kFree});
        EXPECT_NO_THROW(verifyTrace(simulation.trace));
        const Schedule schedule = halved(makeSchedule(name, p, m));
        IdVector<StageId, PassTimes> stages(p, PassTimes{10, 11, kWeightPart});
        stages[StageId(0)].backward_input = 0;  // nobody needs the gradient of the batch
        const Simulation expected = simulate({.schedule = schedule, .stages = stages});
        EXPECT_EQ(simulation.busy, expected.busy) << name << " p=" << p << " m=" << m;
        EXPECT_EQ(simulation.makespan, expected.makespan) << name << " p=" << p << " m=" << m;
      }
    }
  }
}

}  // namespace
}  // namespace pipeshard
