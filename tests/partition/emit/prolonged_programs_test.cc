// Programs of many microbatches: those that are prolonged from a few iterations of the steady state are those
// that are emitted in full, byte for byte, and take a fraction of the work.
#include <array>
#include <string>

#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "ir/program/program_json.h"
#include "ir/program/program_set_json.h"
#include "partition/emit/emit_programs.h"
#include "partition/families/make_schedule.h"
#include "partition/families/plan_schedule.h"
#include "partition/schedules/schedule_verify.h"
#include "partition/schedules/steady_state.h"
#include "partition/stages/partition_training.h"
#include "tests/partition/emit/random_job.h"
#include "tests/partition/schedules/schedule_from_text.h"
#include "tests/partition/training_builder.h"

namespace pipeshard {
namespace {

std::string textOf(const EmittedPrograms& programs) {
  std::string text = rankTablesToJson({bindingsOf(programs.set), std::nullopt});
  for (const ProgramKind& kind : programs.set.kinds) text += kindToJson(kind);
  return text;
}

// Whether they were prolonged.
bool expectSame(const TrainingFamily& family, const Plan& plan) {
  const Schedule schedule = scheduleOf(plan);
  const EmittedPrograms steady = emitProgramSet(family, plan, schedule);
  const EmittedPrograms full = emitProgramSet(family, plan, schedule, {}, Emission::kInFull);
  EXPECT_EQ(textOf(steady), textOf(full));
  EXPECT_EQ(full.emitted_microbatches, schedule.microbatches);
  return steady.emitted_microbatches < schedule.microbatches;
}

TEST(SteadyState, OfOneForwardOneBackwardIsLeftOutOnEveryRank) {
  const Schedule schedule = makeSchedule("1f1b", 2, 64);
  const std::optional<SteadyState> steady = SteadyState::of(schedule);
  ASSERT_TRUE(steady);
  EXPECT_EQ(steady->period(), 1);
  EXPECT_EQ(steady->without(steady->most()).orders, makeSchedule("1f1b", 2, 64 - steady->most()).orders);
}

TEST(SteadyState, IsNotThereWhereMicrobatchesAreFewOrUpdatesInBetween) {
  EXPECT_FALSE(SteadyState::of(makeSchedule("1f1b", 2, 8)));
  EXPECT_FALSE(SteadyState::of(makeSchedule("pipedream", 2, 64)));
}

// Of every schedule that trains at once, what is left is a schedule, whatever is left out.
TEST(SteadyState, LeavesASchedule) {
  int found = 0;
  for (const ScheduleFamily& family : scheduleFamilies()) {
    for (const int ranks : {1, 2, 4}) {
      Schedule schedule;
      try {
        schedule = makeSchedule(family.name, ranks, 192);
      } catch (const Error&) {
        continue;  // it does not exist
      }
      const std::optional<SteadyState> steady = SteadyState::of(schedule);
      if (!steady) continue;
      for (const int iterations : {0, 1, 2, steady->most() - 1, steady->most()})
        EXPECT_NO_THROW(verifySchedule(steady->without(iterations))) << schedule.name() << " " << iterations;
      EXPECT_EQ(steady->without(0).orders, schedule.orders);
      ++found;
    }
  }
  EXPECT_GT(found, 20);
}

TEST(ProlongedPrograms, AreThoseInFullUnderEverySchedule) {
  int prolonged = 0, compared = 0;
  for (const ScheduleFamily& family : scheduleFamilies()) {
    for (const int ranks : {1, 2, 4}) {
      const int stages = ranks * chunksOf(family.name);
      PartitionOptions options;
      options.schedule = parseSchedule(family.name);
      options.cluster = uniformCluster(1, ranks);
      for (int s = 0; s + 1 < stages; ++s) options.boundaries.push_back("h" + std::to_string(s));
      Plan plan;
      const TrainingGraph training = chainTraining(stages, 256);
      try {
        if (makeSchedule(family.name, ranks, 256).forward_only) continue;
        plan = planFor(training, options);
      } catch (const Error&) {
        continue;  // it does not exist
      }
      SCOPED_TRACE(family.name + " on " + std::to_string(ranks));
      prolonged += expectSame(TrainingFamily(training), plan) ? 1 : 0;
      ++compared;
    }
  }
  EXPECT_GT(prolonged, 20);
  EXPECT_GT(compared, prolonged);
}

// Stages of several devices, totals, shared parameters, states, outputs, buckets, receives posted ahead.
TEST(ProlongedPrograms, AreThoseInFullOfRandomJobs) {
  int prolonged = 0, compared = 0;
  for (unsigned seed = 0; seed < 60; ++seed) {
    const Job job = seed % 2 == 0 ? randomJob(seed, false, 150) : replicatedJob(seed, false, 150);
    Plan plan = job.plan;
    plan.schedule = parseSchedule(std::array{"gpipe", "1f1b", "zb-h1"}[seed % 3]);
    for (StagePlan& stage : plan.stages)
      stage.recomputation =
          std::array{Recomputation::kNever, Recomputation::kAlways, Recomputation::kExceptLast}[seed / 2 % 3];
    SCOPED_TRACE("seed " + std::to_string(seed));
    try {
      scheduleOf(plan);
    } catch (const Error&) {
      continue;  // for other numbers of stages
    }
    prolonged += expectSame(job.family(), plan) ? 1 : 0;
    ++compared;
  }
  EXPECT_GT(compared, 50);
  EXPECT_EQ(prolonged, compared);
}

}  // namespace
}  // namespace pipeshard
