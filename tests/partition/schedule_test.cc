#include "partition/schedule.h"

#include <algorithm>
#include <map>

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/error.h"

namespace pipeshard {
namespace {

using ::testing::HasSubstr;

std::string text(const std::vector<Action>& order) {
  std::vector<std::string> actions;
  for (const Action& action : order) actions.push_back(actionToString(action));
  return fmt::format("{}", fmt::join(actions, " "));
}

struct Timing {
  int64_t makespan = 0;
  std::vector<int64_t> idle;  // by rank
};

// Start of every pass as early as its rank and the passes that it needs allow; transfers take no time.
Timing simulate(const ScheduleOrders& orders, int64_t forward_time, int64_t backward_time) {
  std::map<std::tuple<int, char, int>, int64_t> end;
  std::vector<size_t> at(orders.size());
  std::vector<int64_t> now(orders.size()), busy(orders.size());
  const int stages = static_cast<int>(orders.size());
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < orders.size(); ++rank) {
      for (; at[rank] < orders[rank].size(); ++at[rank], moved = true) {
        const Action& action = orders[rank][at[rank]];
        const bool forward = action.kind == ActionKind::kForward;
        const int source = forward ? action.stage - 1 : action.stage + 1;
        int64_t ready = 0;
        if (source >= 0 && source < stages) {
          const auto found = end.find({source, static_cast<char>(action.kind), action.microbatch});
          if (found == end.end()) break;
          ready = found->second;
        }
        const int64_t duration = forward ? forward_time : backward_time;
        now[rank] = std::max(now[rank], ready) + duration;
        busy[rank] += duration;
        end[{action.stage, static_cast<char>(action.kind), action.microbatch}] = now[rank];
      }
    }
  }
  Timing timing{*std::max_element(now.begin(), now.end()), {}};
  for (int64_t time : busy) timing.idle.push_back(timing.makespan - time);
  return timing;
}

class ScheduleGrid : public ::testing::TestWithParam<std::tuple<int, int>> {
 protected:
  int p = std::get<0>(GetParam());
  int m = std::get<1>(GetParam());
};

INSTANTIATE_TEST_SUITE_P(StagesAndMicrobatches, ScheduleGrid,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 5, 8), ::testing::Values(1, 2, 3, 4, 5, 7, 8, 16)));

TEST_P(ScheduleGrid, EverySchedulePassesItsVerifier) {
  for (const ScheduleFamily& family : scheduleFamilies()) {
    if (family.asynchronous) continue;  // asynchronous_schedules_test.cc
    EXPECT_NO_THROW(verifySchedule(makeSchedule(family.name, p, m))) << family.name;
  }
}

TEST_P(ScheduleGrid, MakespanAndIdleTimeFollowTheFormulas) {
  for (const auto& [tf, tb] : std::vector<std::pair<int64_t, int64_t>>{{1, 2}, {1, 1}, {3, 5}}) {
    for (const char* name : {"gpipe", "1f1b"}) {
      const Timing timing = simulate(makeSchedule(name, p, m).orders, tf, tb);
      EXPECT_EQ(timing.makespan, (m + p - 1) * (tf + tb)) << name;
      for (int64_t idle : timing.idle) EXPECT_EQ(idle, (p - 1) * (tf + tb)) << name;
    }
    const Timing sequential = simulate(makeSchedule("sequential", p, m).orders, tf, tb);
    EXPECT_EQ(sequential.makespan, m * p * (tf + tb));
    for (int64_t idle : sequential.idle) EXPECT_EQ(idle, m * (p - 1) * (tf + tb));
  }
}

TEST_P(ScheduleGrid, PeakActivationsFollowTheFormulas) {
  for (int s = 0; s < p; ++s) {
    const auto stage = static_cast<size_t>(s);
    EXPECT_EQ(peakActivations(makeSchedule("sequential", p, m).orders[stage]), 1);
    EXPECT_EQ(peakActivations(makeSchedule("gpipe", p, m).orders[stage]), m);
    EXPECT_EQ(peakActivations(makeSchedule("1f1b", p, m).orders[stage]), std::min(p - s, m));
  }
}

TEST_P(ScheduleGrid, BackwardPassesAreInAscendingOrderOfMicrobatches) {
  for (const auto& [name, description, chunks, asynchronous, splits] : scheduleFamilies()) {
    if (asynchronous) continue;
    for (const std::vector<Action>& order : makeSchedule(name, p, m).orders) {
      int next = 0;
      for (const Action& action : order) {
        if (action.kind != ActionKind::kBackward) continue;
        EXPECT_EQ(action.microbatch, next++) << name;
      }
      EXPECT_EQ(next, m);
    }
  }
}

TEST(Schedule, OneForwardOneBackwardHasTheKnownOrderForFourStagesAndEightMicrobatches) {
  const ScheduleOrders orders = makeSchedule("1f1b", 4, 8).orders;
  EXPECT_EQ(text(orders[0]), "0F0 0F1 0F2 0F3 0B0 0F4 0B1 0F5 0B2 0F6 0B3 0F7 0B4 0B5 0B6 0B7");
  EXPECT_EQ(text(orders[1]), "1F0 1F1 1F2 1B0 1F3 1B1 1F4 1B2 1F5 1B3 1F6 1B4 1F7 1B5 1B6 1B7");
  EXPECT_EQ(text(orders[2]), "2F0 2F1 2B0 2F2 2B1 2F3 2B2 2F4 2B3 2F5 2B4 2F6 2B5 2F7 2B6 2B7");
  EXPECT_EQ(text(orders[3]), "3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3 3F4 3B4 3F5 3B5 3F6 3B6 3F7 3B7");
  const std::vector<int64_t> peaks = {4, 3, 2, 1};
  for (size_t s = 0; s < 4; ++s) EXPECT_EQ(peakActivations(orders[s]), peaks[s]);
}

TEST(Schedule, HasTheOrdersOfTheTimelinesInItsHeader) {
  EXPECT_EQ(text(makeSchedule("sequential", 2, 2).orders[0]), "0F0 0B0 0F1 0B1");
  EXPECT_EQ(text(makeSchedule("gpipe", 2, 3).orders[1]), "1F0 1F1 1F2 1B0 1B1 1B2");
  EXPECT_EQ(text(makeSchedule("1f1b", 2, 3).orders[0]), "0F0 0F1 0B0 0F2 0B1 0B2");
  EXPECT_EQ(text(makeSchedule("1f1b", 4, 2).orders[0]), "0F0 0F1 0B0 0B1");
}

TEST(Schedule, UnknownNamesAreRefusedWithTheListOfNames) {
  try {
    makeSchedule("1f2b", 2, 2);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_THAT(error.message(), HasSubstr("sequential, gpipe, 1f1b"));
  }
}

Schedule scheduleOf(const ScheduleOrders& orders, int microbatches) {
  Schedule schedule;
  schedule.orders = orders;
  schedule.microbatches = microbatches;
  schedule.stages = static_cast<int>(orders.size());
  schedule.rank_of_stage.clear();
  for (int stage = 0; stage < schedule.stages; ++stage) schedule.rank_of_stage.push_back(stage);
  return schedule;
}

std::string verifierMessage(const ScheduleOrders& orders, int microbatches) {
  try {
    verifySchedule(scheduleOf(orders, microbatches));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfiguration);
    return error.message();
  }
  ADD_FAILURE() << "accepted";
  return "";
}

TEST(VerifySchedule, FindsAMissingPass) {
  ScheduleOrders orders = makeSchedule("1f1b", 3, 4).orders;
  orders[1].erase(std::find(orders[1].begin(), orders[1].end(), Action{1, ActionKind::kForward, 2}));
  EXPECT_THAT(verifierMessage(orders, 4), HasSubstr("1F2 is missing"));
  orders = makeSchedule("1f1b", 3, 4).orders;
  orders[2].erase(std::find(orders[2].begin(), orders[2].end(), Action{2, ActionKind::kBackward, 3}));
  EXPECT_THAT(verifierMessage(orders, 4), HasSubstr("stage 2 needs either B3 or both I3 and W3"));
}

TEST(VerifySchedule, FindsADuplicateAndAPassOutOfRange) {
  ScheduleOrders orders = makeSchedule("gpipe", 2, 2).orders;
  orders[0].push_back(orders[0][0]);
  EXPECT_THAT(verifierMessage(orders, 2), HasSubstr("0F0 runs twice"));
  orders[0].back().microbatch = 2;
  EXPECT_THAT(verifierMessage(orders, 2), HasSubstr("rank 0 runs 0F2, of 2 microbatches"));
}

TEST(VerifySchedule, FindsABackwardBeforeItsForward) {
  ScheduleOrders orders = makeSchedule("1f1b", 2, 3).orders;
  std::swap(orders[1][0], orders[1][1]);
  EXPECT_THAT(verifierMessage(orders, 3), HasSubstr("rank 1 runs 1B0 before 1F0"));
}

TEST(VerifySchedule, FindsRanksThatWaitForEachOther) {
  ScheduleOrders orders = makeSchedule("gpipe", 2, 2).orders;
  orders[0] = {{0, ActionKind::kForward, 0}, {0, ActionKind::kBackward, 0}, {0, ActionKind::kForward, 1}, {0, ActionKind::kBackward, 1}};
  EXPECT_THAT(verifierMessage(orders, 2), HasSubstr("the ranks wait for each other: rank 0 at 0B0, rank 1 at 1F1"));
}

TEST(VerifySchedule, AcceptsHalvedBackwardPassesAndFindsAWeightHalfBeforeItsInputHalf) {
  ScheduleOrders orders = {{{0, ActionKind::kForward, 0}, {0, ActionKind::kBackwardInput, 0}, {0, ActionKind::kBackwardWeight, 0}},
                           {{1, ActionKind::kForward, 0}, {1, ActionKind::kBackwardInput, 0}, {1, ActionKind::kBackwardWeight, 0}}};
  EXPECT_NO_THROW(verifySchedule(scheduleOf(orders, 1)));
  std::swap(orders[0][1], orders[0][2]);
  EXPECT_THAT(verifierMessage(orders, 1), HasSubstr("rank 0 runs 0W0 before 0I0"));
}

}  // namespace
}  // namespace pipeshard
