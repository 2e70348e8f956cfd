// What verifySchedule refuses, and how it says so.
#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/error.h"
#include "partition/schedule.h"

namespace pipeshard {
namespace {

using ::testing::HasSubstr;

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
  EXPECT_THAT(verifierMessage(orders, 4), HasSubstr("stage 2 needs either B3 or both I3 and W3; found none of them"));
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
