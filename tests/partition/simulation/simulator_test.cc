#include "partition/simulation/simulator.h"

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "partition/families/make_schedule.h"
#include "tests/partition/schedules/random_schedule.h"
#include "tests/partition/schedules/schedule_from_text.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string timesOf(const std::vector<SimulatedAction>& rank) {
  std::vector<std::string> parts;
  for (const SimulatedAction& timed : rank)
    parts.push_back(fmt::format("{}@{}-{}", actionToString(timed.action), timed.start, timed.end));
  return fmt::format("{}", fmt::join(parts, " "));
}

TEST(Simulator, GivesTheWorkedExampleOfItsHeader) {
  const Schedule schedule = makeSchedule("1f1b", 2, 1);
  const Simulation simulation =
      simulate({.schedule = schedule, .stages = IdVector<StageId, PassTimes>(2), .latency = 1});
  EXPECT_EQ(timesOf(simulation.ranks[PipelineRankId(0)]), "0F0@0-1 0B0@6-8");
  EXPECT_EQ(timesOf(simulation.ranks[PipelineRankId(1)]), "1F0@2-3 1B0@3-5");
  EXPECT_EQ(simulation.makespan, 8);
  EXPECT_THAT(simulation.idlePerRank(), ElementsAre(5, 5));
  EXPECT_EQ(simulation.longestSpan(), 8);
  EXPECT_DOUBLE_EQ(simulation.bubbleOfMakespan(), 10.0 / 16);
  EXPECT_DOUBLE_EQ(simulation.bubbleOfUseful(), 10.0 / 6);
  EXPECT_DOUBLE_EQ(simulation.bubbleOfSpan(), 5.0 / 8);
}

TEST(Simulator, StartsEachPassWhenItsInputsAndItsRankAreReady) {
  const ScheduleOrders orders = {{{StageId(0), ActionKind::kForward, 0},
                                  {StageId(0), ActionKind::kForward, 1},
                                  {StageId(0), ActionKind::kBackwardInput, 0},
                                  {StageId(0), ActionKind::kBackwardWeight, 0},
                                  {StageId(0), ActionKind::kBackward, 1}},
                                 {{StageId(1), ActionKind::kForward, 0},
                                  {StageId(1), ActionKind::kBackwardInput, 0},
                                  {StageId(1), ActionKind::kForward, 1},
                                  {StageId(1), ActionKind::kBackward, 1},
                                  {StageId(1), ActionKind::kBackwardWeight, 0}}};
  const Schedule schedule = scheduleOf(orders, 2);
  const Simulation simulation = simulate({.schedule = schedule, .stages = {{2, 2, 2}, {3, 3, 3}}});
  EXPECT_EQ(timesOf(simulation.ranks[PipelineRankId(0)]), "0F0@0-2 0F1@2-4 0I0@8-10 0W0@10-12 0B1@17-21");
  EXPECT_EQ(timesOf(simulation.ranks[PipelineRankId(1)]), "1F0@2-5 1I0@5-8 1F1@8-11 1B1@11-17 1W0@17-20");
  EXPECT_THAT(simulation.busy, ElementsAre(12, 18));
}

TEST(Simulator, GivesThePublishedBubblesOfGPipeAnd1F1B) {
  for (const char* name : {"gpipe", "1f1b"}) {
    for (int p : {1, 2, 4, 7}) {
      for (int m : {1, 3, 8}) {
        const Schedule schedule = makeSchedule(name, p, m);
        const Simulation simulation =
            simulate({.schedule = schedule, .stages = IdVector<StageId, PassTimes>(p)});
        EXPECT_EQ(simulation.makespan, 3 * (m + p - 1)) << name << " p=" << p << " m=" << m;
        EXPECT_THAT(simulation.idlePerRank(), ::testing::Each(3 * (p - 1)));
        EXPECT_DOUBLE_EQ(simulation.bubbleOfMakespan(), (p - 1.0) / (m + p - 1.0));
        EXPECT_DOUBLE_EQ(simulation.bubbleOfUseful(), (p - 1.0) / m);
      }
    }
  }
}

// Two messages leave rank 0 one tick apart; each holds the link for three.
TEST(Simulator, MessagesOnOneLinkFollowEachOther) {
  const Schedule schedule = makeSchedule("gpipe", 2, 2);
  SimulationRequest request{
      .schedule = schedule, .stages = IdVector<StageId, PassTimes>(2), .latency = 1, .occupancy = 3};
  const Simulation shared = simulate(request);
  EXPECT_EQ(timesOf(shared.ranks[PipelineRankId(1)]), "1F0@5-6 1F1@8-9 1B0@9-11 1B1@11-13");
  EXPECT_EQ(timesOf(shared.ranks[PipelineRankId(0)]), "0F0@0-1 0F1@1-2 0B0@15-17 0B1@18-20");
  ASSERT_EQ(shared.messages.size(), 4u);
  const SimulatedMessage& second = shared.messages[1];
  EXPECT_EQ(actionToString(second.sent), "0SEND_F1");
  EXPECT_EQ(second.posted, 2);
  EXPECT_EQ(second.started, 4);
  EXPECT_EQ(second.arrived, 8);
  EXPECT_EQ(shared.messages[3].from, PipelineRankId(1));
  EXPECT_EQ(shared.messages[3].to, PipelineRankId(0));
  request.contention = false;
  EXPECT_EQ(timesOf(simulate(request).ranks[PipelineRankId(1)]), "1F0@5-6 1F1@6-7 1B0@7-9 1B1@9-11");
}

// Rank 1 must take 0SEND_F1 before it goes on to 1B0, which does not need it.
TEST(Simulator, ExposedMessagesTravelWhileNeitherSideComputes) {
  const Schedule schedule = makeSchedule("1f1b", 2, 2);
  SimulationRequest request{.schedule = schedule, .stages = IdVector<StageId, PassTimes>(2), .latency = 1};
  EXPECT_EQ(timesOf(simulate(request).ranks[PipelineRankId(0)]), "0F0@0-1 0F1@1-2 0B0@6-8 0B1@9-11");
  request.communication = CommunicationModel::kExposed;
  const Simulation exposed = simulate(request);
  EXPECT_EQ(timesOf(exposed.ranks[PipelineRankId(0)]), "0F0@0-1 0F1@2-3 0B0@7-9 0B1@11-13");
  EXPECT_EQ(timesOf(exposed.ranks[PipelineRankId(1)]), "1F0@2-3 1B0@4-6 1F1@7-8 1B1@8-10");
  EXPECT_THAT(exposed.busy, ElementsAre(6, 6));
  for (const SimulatedMessage& message : exposed.messages) {
    for (const PipelineRankId rank : {message.from, message.to}) {
      for (const SimulatedAction& pass : exposed.ranks[rank]) {
        EXPECT_TRUE(pass.end <= message.started || pass.start >= message.arrived)
            << actionToString(pass.action);
      }
    }
  }
  request.latency = 0;
  EXPECT_EQ(simulate(request).makespan, 9);
}

// Stages 0 and 1, each on two ranks' lists in a made-up order: a pair starts when both inputs are there and
// ends together.
TEST(Simulator, PairsOfPassesStartAndEndTogether) {
  Schedule schedule = makeSchedule("gpipe", 2, 2);
  schedule.orders[PipelineRankId(1)] = {{StageId(1), ActionKind::kForward, 0},
                                        {StageId(1), ActionKind::kForward, 1, true},
                                        {StageId(1), ActionKind::kBackward, 0},
                                        {StageId(1), ActionKind::kBackward, 1}};
  SimulationRequest request{.schedule = schedule, .stages = IdVector<StageId, PassTimes>(2)};
  EXPECT_EQ(timesOf(simulate(request).ranks[PipelineRankId(1)]), "1F0@1-2 1F1@2-3 1B0@3-5 1B1@5-7");
  schedule.orders[PipelineRankId(1)] = {{StageId(1), ActionKind::kForward, 0},
                                        {StageId(1), ActionKind::kBackward, 0, true},
                                        {StageId(1), ActionKind::kForward, 1},
                                        {StageId(1), ActionKind::kBackward, 1}};
  // its gradient leaves with the end of 1F1
  EXPECT_EQ(timesOf(simulate(request).ranks[PipelineRankId(0)]), "0F0@0-1 0F1@1-2 0B0@5-7 0B1@7-9");
  request.pairs_together = false;
  EXPECT_EQ(timesOf(simulate(request).ranks[PipelineRankId(0)]), "0F0@0-1 0F1@1-2 0B0@4-6 0B1@7-9");
}

TEST(Simulator, KeepsMemoryFromForwardToBackward) {
  const Schedule schedule = makeSchedule("1f1b", 2, 2);
  const Simulation simulation =
      simulate({.schedule = schedule, .stages = {{.activation = 10}, {.activation = 7}}});
  EXPECT_THAT(simulation.peak_memory, ElementsAre(20, 7));
  std::vector<std::pair<Ticks, int64_t>> points;
  for (const MemoryPoint& point : simulation.memory[PipelineRankId(1)])
    points.emplace_back(point.time, point.held);
  EXPECT_EQ(timesOf(simulation.ranks[PipelineRankId(1)]), "1F0@1-2 1B0@2-4 1F1@4-5 1B1@5-7");
  EXPECT_THAT(points, ElementsAre(std::pair(1, 7), std::pair(4, 7), std::pair(7, 0)));
}

TEST(Simulator, FreesWhatTheInputPartFreesBeforeTheWeightPart) {
  const ScheduleOrders orders = {{{StageId(0), ActionKind::kForward, 0},
                                  {StageId(0), ActionKind::kBackwardInput, 0},
                                  {StageId(0), ActionKind::kForward, 1},
                                  {StageId(0), ActionKind::kBackwardInput, 1},
                                  {StageId(0), ActionKind::kBackwardWeight, 0},
                                  {StageId(0), ActionKind::kBackwardWeight, 1}}};
  const Schedule schedule = scheduleOf(orders, 2);
  const auto peak = [&](int64_t input_memory) {
    return simulate({.schedule = schedule, .stages = {{.activation = 10, .input_memory = input_memory}}})
        .peak_memory[PipelineRankId(0)];
  };
  EXPECT_EQ(peak(0), 20);
  EXPECT_EQ(peak(-4), 16);  // 6 left of the first, 10 of the second
  EXPECT_EQ(peak(3), 26);
}

// GPipe with recomputation: a backward pass takes as long as three forward passes; held are the boundaries
// and one whole.
TEST(Simulator, RecomputationCostsTimeAndHoldsOneMicrobatch) {
  const Schedule schedule = makeSchedule("gpipe", 4, 8);
  const PassTimes times = {.recomputation = 1, .activation = 1, .recomputed = 100};
  const Simulation simulation =
      simulate({.schedule = schedule, .stages = IdVector<StageId, PassTimes>(4, times)});
  EXPECT_EQ(simulation.makespan, 44);
  EXPECT_THAT(simulation.idlePerRank(), ::testing::Each(12));
  EXPECT_THAT(simulation.peak_memory, ::testing::Each(108));
  for (const auto& memory : simulation.memory) EXPECT_EQ(memory.back().held, 0);
}

TEST(Simulator, UpdatesAtTheEndOfTheStepTakeTime) {
  const Schedule schedule = makeSchedule("1f1b", 2, 2);
  const Simulation simulation =
      simulate({.schedule = schedule, .stages = IdVector<StageId, PassTimes>(2, PassTimes{.update = 5})});
  EXPECT_EQ(timesOf(simulation.ranks[PipelineRankId(1)]), "1F0@1-2 1B0@2-4 1F1@4-5 1B1@5-7 1UPDATE1@7-12");
  EXPECT_EQ(simulation.makespan, 14);
}

TEST(Simulator, RefusesOrdersThatWaitForEachOther) {
  const Schedule schedule = scheduleOf({{{StageId(0), ActionKind::kForward, 0},
                                         {StageId(0), ActionKind::kBackward, 0},
                                         {StageId(0), ActionKind::kForward, 1},
                                         {StageId(0), ActionKind::kBackward, 1}},
                                        {{StageId(1), ActionKind::kForward, 0},
                                         {StageId(1), ActionKind::kForward, 1},
                                         {StageId(1), ActionKind::kBackward, 0},
                                         {StageId(1), ActionKind::kBackward, 1}}},
                                       2);
  try {
    simulate({.schedule = schedule, .stages = IdVector<StageId, PassTimes>(2)});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfiguration);
    EXPECT_THAT(error.what(), HasSubstr("rank 0 at 0B0"));
  }
}

}  // namespace
}  // namespace pipeshard
