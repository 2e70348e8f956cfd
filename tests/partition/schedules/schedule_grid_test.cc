// All schedules over ranks, microbatches and stages per rank: legality, bounds, formulas of memory.
#include <algorithm>
#include <map>

#include <gtest/gtest.h>

#include "partition/families/make_schedule.h"
#include "partition/schedules/schedule.h"
#include "tests/partition/schedules/schedule_from_text.h"
#include "tests/partition/schedules/schedule_oracle.h"

namespace pipeshard {
namespace {

class ScheduleGrid : public ::testing::TestWithParam<int> {
 protected:
  int p = GetParam();
};

INSTANTIATE_TEST_SUITE_P(Ranks, ScheduleGrid, ::testing::Range(1, 9));

// A forward pass of a rank's first stage has to come down to it, a microbatch has to go there and back, and a
// rank has to do its work.
void expectNoFasterThanItsWork(const Schedule& schedule, const ScheduleRun& run,
                               const PassDurations& durations) {
  const int m = schedule.microbatches;
  const int v = schedule.stages / schedule.ranks();
  const int64_t all = durations.forward + durations.backward_input + durations.backward_weight;
  const int64_t work = int64_t{m} * v * (schedule.forward_only ? durations.forward : all);
  EXPECT_GE(run.makespan, int64_t{schedule.stages} *
                              (durations.forward + (schedule.forward_only ? 0 : durations.backward_input)));
  for (const PipelineRankId rank : schedule.orders.ids()) {
    const auto first = std::find(schedule.rank_of_stage.begin(), schedule.rank_of_stage.end(), rank);
    EXPECT_EQ(run.busy[rank], work);
    EXPECT_GE(run.first_start[rank], durations.forward * (first - schedule.rank_of_stage.begin()));
    EXPECT_GE(run.makespan, run.first_start[rank] + work);
    if (schedule.forward_only) continue;
    EXPECT_GE(peakActivations(schedule.orders[rank]), v);
    EXPECT_LE(peakActivations(schedule.orders[rank]), int64_t{m} * v);
  }
}

void expectAscendingMicrobatches(const Schedule& schedule) {
  std::map<StageId, int> forwards, inputs, weights;
  for (const std::vector<Action>& order : schedule.orders) {
    for (const auto& [stage, kind, k, overlaps] : order) {
      if (kind == ActionKind::kForward) {
        EXPECT_EQ(k, forwards[stage]++);
      }
      if (kind == ActionKind::kBackward || kind == ActionKind::kBackwardInput) {
        EXPECT_EQ(k, inputs[stage]++);
      }
      if (kind == ActionKind::kBackward || kind == ActionKind::kBackwardWeight) {
        EXPECT_EQ(k, weights[stage]++);
      }
    }
  }
}

TEST_P(ScheduleGrid, EveryScheduleIsLegalInOrderAndNoFasterThanItsWork) {
  const PassDurations durations{2, 3, 1};
  for (int m = 1; m <= 4 * p; ++m) {
    for (const Schedule& schedule : schedulesOf(p, m)) {
      SCOPED_TRACE(schedule.name() + ", m=" + std::to_string(m));
      EXPECT_EQ(schedule.ranks(), p);
      EXPECT_EQ(schedule.microbatches, m);
      EXPECT_EQ(schedule.stages, p * chunksOf(schedule.spec));
      const ScheduleRun run = runSchedule(schedule, durations);
      ASSERT_TRUE(run.complete);
      ASSERT_TRUE(run.acyclic);
      expectNoFasterThanItsWork(schedule, run, durations);
      expectAscendingMicrobatches(schedule);
      if (HasFailure()) return;
    }
  }
}

TEST_P(ScheduleGrid, PeakActivationsFollowTheFormulas) {
  for (int m = 1; m <= 4 * p; ++m) {
    const auto peak = [&](const std::string& text, int rank) {
      return peakActivations(makeSchedule(text, p, m).orders[PipelineRankId(rank)]);
    };
    for (int r = 0; r < p; ++r) {
      SCOPED_TRACE("m=" + std::to_string(m) + ", rank " + std::to_string(r));
      EXPECT_EQ(peak("sequential", r), 1);
      EXPECT_EQ(peak("gpipe", r), m);
      EXPECT_EQ(peak("1f1b", r), std::min(p - r, m));
      for (int extra = 0; extra <= p; ++extra) {
        EXPECT_EQ(peak("eager-1f1b:extra=" + std::to_string(extra), r),
                  std::min(p - r + std::min(extra, p - 1 - r), m));
      }
      EXPECT_EQ(peak("zb-h1", r), std::min(p, m));
      EXPECT_EQ(peak("zb-h2", r), std::min(2 * p - 1, m));
      if (m >= 2 * p) {
        EXPECT_EQ(peak("dual-pipe-v", r), 2 * p + 1);
      }
      for (int v = 1; v <= 4; ++v) {
        const std::string option = ":v=" + std::to_string(v);
        EXPECT_EQ(peak("looped-bfs" + option, r), m * v);
        if (v == 1) {
          EXPECT_EQ(peak("interleaved:v=1", r), std::min(p - r, m));
        }
        if (v == 1 || m % p != 0) continue;
        EXPECT_EQ(peak("interleaved" + option, r), std::min(2 * (p - 1 - r) + (v - 1) * p + 1, m * v));
        EXPECT_EQ(peak("interleaved-zb" + option, r), std::min((v - 1) * p + p, m * v));
      }
    }
  }
}

TEST_P(ScheduleGrid, MakespansFollowTheFormulas) {
  for (int m = 1; m <= 4 * p; ++m) {
    SCOPED_TRACE("m=" + std::to_string(m));
    // Times of a chunk; those of a share are v times longer.
    for (const auto& [f, i, w] :
         std::vector<std::tuple<int64_t, int64_t, int64_t>>{{1, 1, 1}, {3, 4, 2}, {5, 5, 3}}) {
      const auto makespan = [&, f = f, i = i, w = w](const std::string& text) {
        return runSchedule(makeSchedule(text, p, m), {f, i, w}).makespan;
      };
      const int64_t all = f + i + w;
      EXPECT_EQ(makespan("sequential"), m * p * all);
      EXPECT_EQ(makespan("gpipe"), (m + p - 1) * all);
      EXPECT_EQ(makespan("1f1b"), (m + p - 1) * all);
      for (const char* extra : {"1", "2", "9"})
        EXPECT_EQ(makespan(std::string("eager-1f1b:extra=") + extra), (m + p - 1) * all);
      EXPECT_EQ(makespan("forward-only"), (m + p - 1) * f);
      if (m >= p) {
        EXPECT_EQ(makespan("zb-h1"), m * all + (p - 1) * (f + i - w));
      }
      for (int v = 1; v <= 4; ++v) {
        const std::string option = ":v=" + std::to_string(v);
        if (m >= p) {
          EXPECT_EQ(makespan("looped-bfs" + option), (m * v + p - 1) * all);
        }
        if (m % p != 0) continue;
        EXPECT_EQ(makespan("interleaved" + option), (m * v + p - 1) * all);
        EXPECT_EQ(makespan("interleaved-zb" + option), m * v * all + (p - 1) * (f + i - w));
      }
    }
    if (m < 2 * p - 1) continue;
    const Schedule h2 = makeSchedule("zb-h2", p, m);
    const ScheduleRun run = runSchedule(h2);
    EXPECT_EQ(run.makespan, m * 3 + p - 1);
    if (m >= 2 * p) {
      EXPECT_EQ(runSchedule(makeSchedule("dual-pipe-v", p, m)).makespan, m * 6 + (p - 1) * (3 + 2 - 3));
    }
  }
}

}  // namespace
}  // namespace pipeshard
