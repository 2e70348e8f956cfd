#include "benchmarks/measured_times.h"

#include <gtest/gtest.h>

#include "partition/families/make_schedule.h"
#include "tests/expect_error.h"
#include "tests/partition/schedules/schedule_from_text.h"

namespace pipeshard {
namespace {

// What `simulation` would have left as a trace, had it been run: halves of a backward pass as two events.
Trace traceOf(const Schedule& schedule, const Simulation& simulation,
              const IdVector<StageId, PassTimes>& times, int64_t begin) {
  Trace trace;
  trace.ranks = schedule.ranks();
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    const auto add = [&](const Action& of, TraceWork work, int64_t start, int64_t end) {
      TraceEvent event;
      event.work = work;
      event.rank = RankId(rank);
      event.stage = of.stage;
      event.microbatch = of.microbatch;
      event.name = "any";
      event.start_ns = begin + start;
      event.end_ns = begin + end;
      trace.events.push_back(std::move(event));
    };
    for (const SimulatedAction& done : simulation.ranks[PipelineRankId(rank)]) {
      const Ticks input = times[done.action.stage].backward_input;
      switch (done.action.kind) {
        case ActionKind::kForward: add(done.action, TraceWork::kForward, done.start, done.end); break;
        case ActionKind::kBackward:
          add(done.action, TraceWork::kBackwardInput, done.start, done.start + input);
          add(done.action, TraceWork::kBackwardWeight, done.start + input, done.end);
          break;
        case ActionKind::kBackwardInput:
          add(done.action, TraceWork::kBackwardInput, done.start, done.end);
          break;
        case ActionKind::kBackwardWeight:
          add(done.action, TraceWork::kBackwardWeight, done.start, done.end);
          break;
        default: ADD_FAILURE();
      }
    }
  }
  return trace;
}

// The simulator's own times come back from what it predicts, and with them the prediction.
TEST(MeasuredTimes, OfASimulatedStepAreWhatItWasMadeWith) {
  const IdVector<StageId, PassTimes> times = {{.forward = 100, .backward_input = 130, .backward_weight = 70},
                                              {.forward = 140, .backward_input = 90, .backward_weight = 110}};
  for (const std::string name : {"gpipe", "1f1b", "zb-h1"}) {
    const Schedule schedule = makeSchedule(name, 2, 6);
    const Simulation made = simulate({.schedule = schedule, .stages = times});
    const Trace trace = traceOf(schedule, made, times, 5000);
    const MeasuredTimes measured = measuredTimes(trace, 2);
    const Simulation again =
        simulate({.schedule = schedule, .stages = measured.stages, .latency = measured.latency});
    EXPECT_EQ(again.makespan, made.makespan) << name;
    const std::vector<MeasuredStep> steps = measuredSteps(trace);
    ASSERT_EQ(steps.size(), 1u);
    EXPECT_EQ(steps[0].makespan(), made.makespan);
    EXPECT_EQ(steps[0].busy_ns, made.busy);
    EXPECT_NEAR(steps[0].bubble(), made.bubbleOfMakespan(), 1e-12);
  }
}

TEST(MeasuredTimes, AreMediansAndSumsOfPartsAndRecomputationIsItsOwn) {
  Trace trace;
  trace.ranks = 1;
  const auto add = [&](TraceWork work, int microbatch, int64_t start, int64_t end) {
    TraceEvent event{.work = work,
                     .stage = StageId(0),
                     .microbatch = microbatch,
                     .name = "",
                     .start_ns = start,
                     .end_ns = end};
    trace.events.push_back(std::move(event));
  };
  add(TraceWork::kForward, 0, 0, 10);
  add(TraceWork::kForward, 0, 14, 20);  // behind a collective
  add(TraceWork::kForward, 1, 20, 30);
  add(TraceWork::kForward, 2, 30, 230);
  add(TraceWork::kRecomputation, 0, 230, 237);
  add(TraceWork::kBackwardInput, 0, 237, 250);
  add(TraceWork::kUpdate, -1, 250, 900);
  const MeasuredTimes times = measuredTimes(trace, 1);
  EXPECT_EQ(times.stages[StageId(0)].forward, 16);
  EXPECT_EQ(times.stages[StageId(0)].recomputation, 7);
  EXPECT_EQ(times.stages[StageId(0)].backward_input, 13);
  EXPECT_EQ(times.stages[StageId(0)].backward_weight, 0);
  EXPECT_EQ(measuredSteps(trace).at(0).makespan(), 250);
  EXPECT_ERROR(measuredTimes(trace, 2), ErrorCode::kConfiguration, "no forward pass of stage 1");
}

}  // namespace
}  // namespace pipeshard
