#include "tools/report/report_timeline.h"
#include "tests/partition/schedules/schedule_from_text.h"
#include "tools/report/report_gantt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "partition/families/make_schedule.h"
#include "partition/families/plan_schedule.h"
#include "partition/schedules/schedule.h"
#include "tests/expect_error.h"
#include "tests/tools/report/report_samples.h"

namespace pipeshard {
namespace {

Timeline timelineOfEqualStages(const Schedule& schedule) {
  const int chunks = schedule.stages / schedule.ranks();
  Plan plan = chunkedPlan(schedule.ranks(), chunks, schedule.microbatches);
  for (StagePlan& stage : plan.stages) {
    stage.forward_flops = 10;
    stage.backward_flops = 20;
  }
  return timelineOf(simulate({.schedule = schedule, .stages = passTimes(plan)}), schedule, plan);
}

// With equal stages, what is simulated is what the papers' formulas say, for every schedule that has one.
TEST(BubbleFormula, IsWhatSimulationGives) {
  size_t checked = 0;
  for (const std::string& name : scheduleNames()) {
    for (int p : {1, 2, 4, 8}) {
      for (int m : {p, 2 * p, 4 * p}) {
        Schedule schedule;
        try {
          schedule = makeSchedule(name, p, m);
        } catch (const Error&) {
          continue;  // does not exist for so many
        }
        const BubbleFormula formula = bubbleFormula(schedule);
        if (formula.of_step.empty()) continue;
        const Timeline timeline = timelineOfEqualStages(schedule);
        EXPECT_NEAR(timeline.idleOfStep(), formula.step, 1e-12)
            << schedule.name() << " p=" << p << " m=" << m;
        EXPECT_NEAR(timeline.idleOfUseful(), formula.useful, 1e-12)
            << schedule.name() << " p=" << p << " m=" << m;
        ++checked;
      }
    }
  }
  EXPECT_GE(checked, 3u * 4 * 3);
}

TEST(BubbleFormula, IsUnknownForOrdersFromAFile) {
  Schedule schedule = makeSchedule("gpipe", 4, 8);
  schedule.spec = ScheduleSpec::ofFile();
  EXPECT_EQ(bubbleFormula(schedule).of_step, "");
}

TEST(StepParts, FillTheStep) {
  TimelineRank rank;
  rank.bars = {{TraceWork::kForward, StageId(0), 0, 10, 30}, {TraceWork::kBackward, StageId(0), 0, 50, 70}};
  rank.transfers = {{0, 5, 15}, {30, 60, 65}, {70, 80, 90}};  // hidden from 10 on; wholly hidden; not hidden
  const StepParts parts = stepParts(rank, 100);
  EXPECT_EQ(parts.work[static_cast<size_t>(TraceWork::kForward)], 20);
  EXPECT_EQ(parts.work[static_cast<size_t>(TraceWork::kBackward)], 20);
  EXPECT_EQ(parts.transfer, 5 + 10);
  EXPECT_EQ(parts.idle, 100 - 40 - 15);
}

TEST(TimelineOfSchedule, HasTheStagesOfEachRankAndRecomputationApart) {
  Plan plan = chunkedPlan(2, 2, 4);
  plan.stages[StageId(3)].recomputation = Recomputation::kAlways;
  const Schedule schedule = scheduleOf(plan);
  const Timeline timeline =
      timelineOf(simulate({.schedule = schedule, .stages = passTimes(plan)}), schedule, plan);
  ASSERT_EQ(timeline.ranks.size(), 2u);
  EXPECT_THAT(timeline.ranks[1].stages, ::testing::ElementsAre(StageId(1), StageId(3)));
  int64_t recomputed = 0, backward = 0;
  for (const TimelineBar& bar : timeline.ranks[1].bars) {
    if (bar.stage != StageId(3)) continue;
    if (bar.work == TraceWork::kRecomputation) recomputed += bar.end - bar.start;
    if (bar.work == TraceWork::kBackward) backward += bar.end - bar.start;
  }
  EXPECT_EQ(recomputed, 4 * plan.stages[StageId(3)].forward_flops);
  EXPECT_EQ(backward, 4 * plan.stages[StageId(3)].backward_flops);
  EXPECT_EQ(timeline.ranks[1].peakMemory(), peakActivations(schedule.orders[PipelineRankId(1)]));
}

TEST(TimelineOfTrace, BeginsWithItsStepAndKnowsWhatEventsAre) {
  const Plan plan = planOf(2, 2, "gpipe");
  Trace trace{.source = "measured", .ranks = 2, .rank_names = {}, .events = {}, .memory = {}};
  const auto event = [&](TraceEventKind kind, int rank, int64_t step, TraceWork work, int64_t start,
                         int64_t end) {
    TraceEvent e{.kind = kind,
                 .work = work,
                 .rank = RankId(rank),
                 .step = step,
                 .stage = StageId(rank),
                 .microbatch = 0,
                 .name = "",
                 .start_ns = start,
                 .end_ns = end};
    e.arrived_ns = (start + end) / 2;
    trace.events.push_back(e);
  };
  event(TraceEventKind::kCompute, 0, 1, TraceWork::kForward, 0, 50);
  event(TraceEventKind::kCompute, 0, 2, TraceWork::kForward, 100, 150);
  event(TraceEventKind::kSend, 0, 2, TraceWork::kOther, 150, 170);
  event(TraceEventKind::kCompute, 0, 2, TraceWork::kRecomputation, 160, 180);
  event(TraceEventKind::kCompute, 0, 2, TraceWork::kBackwardInput, 180, 200);
  event(TraceEventKind::kCompute, 0, 2, TraceWork::kBackwardWeight, 200, 220);
  event(TraceEventKind::kCompute, 0, 2, TraceWork::kUpdate, 220, 230);
  event(TraceEventKind::kReceive, 1, 2, TraceWork::kOther, 150, 170);
  event(TraceEventKind::kCopy, 1, 2, TraceWork::kOther, 240, 250);
  event(TraceEventKind::kCollective, 1, 2, TraceWork::kOther, 210, 230);
  trace.events.back().background = true;
  trace.memory = {{RankId(1), 20, 7}, {RankId(1), 160, 9}, {RankId(1), 400, 11}};
  const Timeline timeline = timelineOf(trace, plan);
  EXPECT_EQ(timeline.length, 150);
  std::vector<TraceWork> works;
  for (const TimelineBar& bar : timeline.ranks[0].bars) works.push_back(bar.work);
  EXPECT_THAT(
      works, ::testing::ElementsAre(TraceWork::kForward, TraceWork::kRecomputation, TraceWork::kBackwardInput,
                                    TraceWork::kBackwardWeight, TraceWork::kUpdate));
  EXPECT_EQ(timeline.ranks[0].bars[0].start, 0);
  ASSERT_EQ(timeline.ranks[1].transfers.size(), 2u);
  EXPECT_EQ(timeline.ranks[1].transfers[0].arrived, 60);
  EXPECT_FALSE(timeline.ranks[1].transfers[0].background);
  EXPECT_TRUE(timeline.ranks[1].transfers[1].background);
  ASSERT_EQ(timeline.ranks[1].memory.size(), 2u);
  EXPECT_EQ(timeline.ranks[1].memory[0].time, 0);  // what it held when the step began
  EXPECT_EQ(timeline.ranks[1].peakMemory(), 9);
  EXPECT_EQ(timelineOf(trace, plan, 1).length, 50);
  try {
    timelineOf(trace, plan, 3);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfiguration);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("no events of step 3"));
  }
}

// What goes on beside compute is on a stream of its own, below that of the step's own transfers.
TEST(GanttChart, HasALaneForEachStreamOfTransfers) {
  Timeline timeline;
  timeline.length = 100;
  TimelineRank& rank = timeline.ranks.emplace_back();
  rank.name = "rank 0";
  rank.bars = {{TraceWork::kForward, StageId(0), 0, 10, 30}};
  const auto heightWith = [&](std::vector<TimelineTransfer> transfers) {
    rank.transfers = std::move(transfers);
    return ganttChart(std::span(&timeline, 1)).height;
  };
  const auto hasText = [&](const char* text) {
    const std::vector<LegendEntry> legend = ganttLegend(std::span(&timeline, 1));
    return std::ranges::any_of(legend, [&](const LegendEntry& entry) { return entry.text == text; });
  };
  const double without = heightWith({{0, 5, 5}});
  EXPECT_FALSE(hasText("transfer to the rank"));
  const double of_step = heightWith({{0, 5, 15}});
  EXPECT_GT(of_step, without);
  EXPECT_TRUE(hasText("transfer to the rank"));
  EXPECT_FALSE(hasText("transfer beside compute, in the background"));
  const double of_both = heightWith({{0, 5, 15}, {10, 10, 28, true}});
  EXPECT_EQ(of_both - of_step, of_step - without);
  EXPECT_TRUE(hasText("transfer beside compute, in the background"));
  const std::string plot = ganttChart(std::span(&timeline, 1)).plot;
  EXPECT_THAT(plot, ::testing::HasSubstr("<path class=\"t\""));
  EXPECT_THAT(plot, ::testing::HasSubstr("<path class=\"g\""));
}

TEST(JoinHalves, MakesOneKindOfBackwardPassWhereTheScheduleHasOne) {
  Schedule schedule;
  schedule.microbatches = 2;
  schedule.orders = {{{StageId(0), ActionKind::kForward, 0},
                      {StageId(0), ActionKind::kForward, 1},
                      {StageId(0), ActionKind::kBackward, 0},
                      {StageId(0), ActionKind::kBackwardInput, 1},
                      {StageId(0), ActionKind::kBackwardWeight, 1}}};
  Timeline timeline;
  timeline.ranks.resize(1);
  timeline.ranks[0].bars = {
      {TraceWork::kForward, StageId(0), 0, 0, 1},       {TraceWork::kForward, StageId(0), 1, 1, 2},
      {TraceWork::kBackwardInput, StageId(0), 0, 2, 3}, {TraceWork::kBackwardWeight, StageId(0), 0, 3, 5},
      {TraceWork::kBackwardInput, StageId(0), 1, 5, 6}, {TraceWork::kBackwardWeight, StageId(0), 1, 6, 7}};
  joinHalves(schedule, timeline);
  ASSERT_EQ(timeline.ranks[0].bars.size(), 5u);
  EXPECT_EQ(timeline.ranks[0].bars[2].work, TraceWork::kBackward);
  EXPECT_EQ(timeline.ranks[0].bars[2].end, 5);
  EXPECT_EQ(timeline.ranks[0].bars[3].work, TraceWork::kBackwardInput);
  EXPECT_EQ(timeline.busy(), 7);
}

TEST(PassTimes, FollowTheFlopsAndFallBackToEqualParts) {
  Plan plan = planOf(2, 2, "gpipe");
  plan.stages[StageId(1)].backward_flops = 350;
  EXPECT_EQ(passTimes(plan)[StageId(1)].forward, 100);
  EXPECT_EQ(passTimes(plan)[StageId(1)].backward_input + passTimes(plan)[StageId(1)].backward_weight, 350);
  plan.stages[StageId(0)].forward_flops = 0;
  EXPECT_EQ(passTimes(plan)[StageId(1)].forward, 1);
  EXPECT_EQ(passTimes(plan)[StageId(1)].backward_weight, 1);
}

TEST(PipelineRanks, GatherStagesThatShareTheirDevices) {
  EXPECT_THAT(pipelineRanks(chunkedPlan(2, 2, 4)),
              ::testing::ElementsAre(std::vector<StageId>{StageId(0), StageId(2)},
                                     std::vector<StageId>{StageId(1), StageId(3)}));
}

}  // namespace
}  // namespace pipeshard
