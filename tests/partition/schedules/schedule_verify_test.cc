// What verifySchedule refuses, and how it says so.
#include <algorithm>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "partition/families/make_schedule.h"
#include "partition/schedules/schedule.h"
#include "partition/schedules/schedule_verify.h"
#include "tests/partition/schedules/placed_transfers.h"
#include "tests/partition/schedules/random_schedule.h"
#include "tests/partition/schedules/schedule_from_text.h"
#include "tests/partition/schedules/schedule_oracle.h"

namespace pipeshard {
namespace {

using ::testing::HasSubstr;

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
  orders[PipelineRankId(1)].erase(std::find(orders[PipelineRankId(1)].begin(),
                                            orders[PipelineRankId(1)].end(),
                                            Action{StageId(1), ActionKind::kForward, 2}));
  EXPECT_THAT(verifierMessage(orders, 4), HasSubstr("1F2 is missing"));
  orders = makeSchedule("1f1b", 3, 4).orders;
  orders[PipelineRankId(2)].erase(std::find(orders[PipelineRankId(2)].begin(),
                                            orders[PipelineRankId(2)].end(),
                                            Action{StageId(2), ActionKind::kBackward, 3}));
  EXPECT_THAT(verifierMessage(orders, 4),
              HasSubstr("stage 2 needs either B3 or both I3 and W3; found none of them"));
}

TEST(VerifySchedule, FindsADuplicateAndAPassOutOfRange) {
  ScheduleOrders orders = makeSchedule("gpipe", 2, 2).orders;
  orders[PipelineRankId(0)].push_back(orders[PipelineRankId(0)][0]);
  EXPECT_THAT(verifierMessage(orders, 2), HasSubstr("0F0 runs twice"));
  orders[PipelineRankId(0)].back().microbatch = 2;
  EXPECT_THAT(verifierMessage(orders, 2), HasSubstr("rank 0 runs 0F2, of 2 microbatches"));
}

TEST(VerifySchedule, FindsABackwardBeforeItsForward) {
  ScheduleOrders orders = makeSchedule("1f1b", 2, 3).orders;
  std::swap(orders[PipelineRankId(1)][0], orders[PipelineRankId(1)][1]);
  EXPECT_THAT(verifierMessage(orders, 3), HasSubstr("rank 1 runs 1B0 before 1F0"));
}

TEST(VerifySchedule, FindsRanksThatWaitForEachOther) {
  ScheduleOrders orders = makeSchedule("gpipe", 2, 2).orders;
  orders[PipelineRankId(0)] = {{StageId(0), ActionKind::kForward, 0},
                               {StageId(0), ActionKind::kBackward, 0},
                               {StageId(0), ActionKind::kForward, 1},
                               {StageId(0), ActionKind::kBackward, 1}};
  EXPECT_THAT(verifierMessage(orders, 2),
              HasSubstr("the ranks wait for each other: rank 0 at 0B0, rank 1 at 1F1"));
}

TEST(VerifySchedule, ShowsAWindowOfTheOrdersWithTheFaultyStepMarked) {
  ScheduleOrders orders = makeSchedule("1f1b", 2, 3).orders;
  std::swap(orders[PipelineRankId(1)][0], orders[PipelineRankId(1)][1]);
  EXPECT_EQ(verifierMessage(orders, 3),
            "schedule : rank 1 runs 1B0 before 1F0, which it needs\n"
            "    rank 0, step 0:  0F0   0F1   0B0   0F2   0B1   0B2\n"
            "    rank 1, step 0: >1B0<  1F0   1F1   1B1   1F2   1B2");
  orders = makeSchedule("gpipe", 20, 64).orders;
  orders[PipelineRankId(18)].erase(orders[PipelineRankId(18)].begin() + 30);
  EXPECT_THAT(
      verifierMessage(orders, 64),
      HasSubstr("18F30 is missing\n    rank  4, step 25:  4F25    4F26    4F27    4F28    4F29    4F30 "));
  EXPECT_THAT(verifierMessage(orders, 64),
              HasSubstr("\n    rank 18, step 25:  18F25   18F26   18F27   18F28   18F29  >18F31<  18F32 "));
  orders = makeSchedule("gpipe", 2, 2).orders;
  orders[PipelineRankId(0)].pop_back();
  EXPECT_THAT(
      verifierMessage(orders, 2),
      HasSubstr("    rank 0, step 0:  0F0   0F1   0B0  >end<\n    rank 1, step 0:  1F0   1F1   1B0   1B1"));
}

TEST(VerifySchedule, FindsAStageOnTwoRanks) {
  ScheduleOrders orders = makeSchedule("gpipe", 2, 2).orders;
  std::swap(orders[PipelineRankId(0)][0], orders[PipelineRankId(1)][0]);
  EXPECT_THAT(verifierMessage(orders, 2),
              HasSubstr("rank 0 runs 1F0, but stage 1 is on rank 1; expected each stage on one rank"));
}

std::string messageOf(const Schedule& schedule) {
  try {
    verifySchedule(schedule);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfiguration);
    return error.message();
  }
  return "";
}

TEST(VerifySchedule, FindsPairsThatCannotOverlap) {
  Schedule schedule = makeSchedule("1f1b", 2, 3);
  schedule.orders[PipelineRankId(0)][0].overlaps_next = true;
  EXPECT_THAT(messageOf(schedule),
              HasSubstr("0F0 overlaps 0F1; expected a pair of a forward and a backward pass"));
  schedule = makeSchedule("1f1b", 2, 3);
  schedule.orders[PipelineRankId(1)][0].overlaps_next = true;
  EXPECT_THAT(
      messageOf(schedule),
      HasSubstr(
          "1F0 overlaps 1B0; expected a pair of a forward and a backward pass that do not need each other"));
  schedule = makeSchedule("1f1b", 2, 3);
  schedule.orders[PipelineRankId(0)].back().overlaps_next = true;
  EXPECT_THAT(messageOf(schedule), HasSubstr("0B2 overlaps nothing"));
  // 0B0 needs 1B0, which needs 0F1 only if the two stand in one pair with it.
  schedule = makeSchedule("gpipe", 2, 2);
  schedule.orders[PipelineRankId(0)][1].overlaps_next = true;
  EXPECT_THAT(messageOf(schedule), HasSubstr("the ranks wait for each other: rank 0 at 0F1, rank 1 at 1F1"));
}

TEST(VerifySchedule, FindsPassesThatDoNotBelong) {
  Schedule schedule = makeSchedule("forward-only", 2, 2);
  schedule.orders[PipelineRankId(1)].push_back({StageId(1), ActionKind::kBackward, 0});
  EXPECT_THAT(messageOf(schedule), HasSubstr("rank 1 runs 1B0 in a schedule of forward passes only"));
  schedule = makeSchedule("1f1b", 2, 2);
  schedule.orders[PipelineRankId(1)].push_back({StageId(1), ActionKind::kUpdate, 1});
  EXPECT_THAT(
      messageOf(schedule),
      HasSubstr("rank 1 runs 1UPDATE1, but a synchronous schedule updates its weights once, at its end"));
  schedule = makeSchedule("1f1b", 2, 2);
  schedule.orders[PipelineRankId(1)].insert(schedule.orders[PipelineRankId(1)].begin() + 2,
                                            {StageId(1), ActionKind::kReduceGradients, -1});
  EXPECT_THAT(messageOf(schedule), HasSubstr("rank 1 runs 1REDUCE_GRAD before 1B1, which it needs"));
}

TEST(VerifySchedule, FindsVersionsThatNobodyHasMadeAndUpdatesOfOtherGradients) {
  Schedule schedule = makeSchedule("pipedream", 2, 4);
  schedule.versions[StageId(1)][2] = 3;
  EXPECT_THAT(messageOf(schedule),
              HasSubstr("1F2 reads version 3 of the weights, but its rank has made 2 by then"));
  schedule = makeSchedule("pipedream", 2, 4);
  schedule.versions[StageId(0)] = {0, 0, 2, 2};
  EXPECT_THAT(messageOf(schedule),
              HasSubstr("0F2 reads version 2 of the weights, but its rank has made 1 by then"));
  schedule.versions[StageId(0)] = {0, 1, 0, 0};
  EXPECT_THAT(
      messageOf(schedule),
      HasSubstr("0F2 reads version 0 of the weights, 0F1 version 1; expected versions that do not go back"));
  schedule.versions.pop_back();
  EXPECT_THAT(messageOf(schedule),
              HasSubstr("found versions of the weights of 1 stages; expected those of 2"));
  schedule = makeSchedule("pipedream-2bw:m=2", 2, 4);
  const auto update =
      std::find(schedule.orders[PipelineRankId(1)].begin(), schedule.orders[PipelineRankId(1)].end(),
                Action{StageId(1), ActionKind::kUpdate, 1});
  std::rotate(update, update + 1, update + 3);
  EXPECT_THAT(messageOf(schedule),
              HasSubstr("rank 1 runs 1B2 before 1UPDATE1, which must not take its gradient"));
  schedule = makeSchedule("pipedream-2bw:m=2", 1, 2);
  schedule.orders[PipelineRankId(0)] = {{StageId(0), ActionKind::kForward, 0},
                                        {StageId(0), ActionKind::kForward, 1},
                                        {StageId(0), ActionKind::kBackward, 1},
                                        {StageId(0), ActionKind::kUpdate, 1},
                                        {StageId(0), ActionKind::kBackward, 0}};
  EXPECT_THAT(messageOf(schedule), HasSubstr("rank 0 runs 0UPDATE1 before 0B0, whose gradient it takes"));
  schedule = makeSchedule("1f1b", 2, 4);
  schedule.versions = makeSchedule("pipedream", 2, 4).versions;
  EXPECT_THAT(messageOf(schedule), HasSubstr("found versions of weights in a synchronous schedule"));
}

TEST(VerifySchedule, AcceptsHalvedBackwardPassesAndFindsAWeightHalfBeforeItsInputHalf) {
  ScheduleOrders orders = {{{StageId(0), ActionKind::kForward, 0},
                            {StageId(0), ActionKind::kBackwardInput, 0},
                            {StageId(0), ActionKind::kBackwardWeight, 0}},
                           {{StageId(1), ActionKind::kForward, 0},
                            {StageId(1), ActionKind::kBackwardInput, 0},
                            {StageId(1), ActionKind::kBackwardWeight, 0}}};
  EXPECT_NO_THROW(verifySchedule(scheduleOf(orders, 1)));
  std::swap(orders[PipelineRankId(0)][1], orders[PipelineRankId(0)][2]);
  EXPECT_THAT(verifierMessage(orders, 1), HasSubstr("rank 0 runs 0W0 before 0I0"));
}

TEST(VerifySchedule, FindsFaultyMessages) {
  Schedule good = makeSchedule("1f1b", 3, 4);
  good.orders = withTransfers(good);
  const auto mutated = [&](const Action& first, const Action& second) {
    Schedule schedule = good;
    std::vector<Action>& order = schedule.orders[schedule.rank_of_stage[first.stage]];
    std::swap(*std::find(order.begin(), order.end(), first), *std::find(order.begin(), order.end(), second));
    return messageOf(schedule);
  };
  EXPECT_THAT(mutated({StageId(0), ActionKind::kSendForward, 1}, {StageId(0), ActionKind::kSendForward, 2}),
              HasSubstr("message 1 from rank 0 to rank 1 is sent as 0SEND_F2 but received as 1RECV_F1; "
                        "expected messages in the order in which"));
  EXPECT_THAT(mutated({StageId(1), ActionKind::kReceiveForward, 0}, {StageId(1), ActionKind::kForward, 0}),
              HasSubstr("rank 1 runs 1F0 before 1RECV_F0"));
  EXPECT_THAT(mutated({StageId(1), ActionKind::kSendForward, 0}, {StageId(1), ActionKind::kForward, 0}),
              HasSubstr("rank 1 runs 1SEND_F0 before 1F0"));
  Schedule schedule = good;
  std::erase(schedule.orders[PipelineRankId(0)], Action{StageId(0), ActionKind::kSendForward, 2});
  EXPECT_THAT(messageOf(schedule), HasSubstr("0SEND_F2 of 0F2 is missing"));
  schedule = good;
  schedule.orders[PipelineRankId(1)].push_back({StageId(1), ActionKind::kReceiveBackward, 3});
  EXPECT_THAT(messageOf(schedule), HasSubstr("1RECV_B3 runs twice"));
  schedule = good;
  schedule.orders[PipelineRankId(2)].push_back({StageId(2), ActionKind::kSendForward, 3});
  EXPECT_THAT(messageOf(schedule), HasSubstr("rank 2 runs 2SEND_F3, but no rank runs 3RECV_F3 for it"));
}

// Sends right behind their passes and receives right before them wait in a circle in 1f1b: each rank has a
// message for the other.
TEST(VerifySchedule, FindsMessagesThatWaitForEachOther) {
  const auto send = [](StageId s, ActionKind kind, int k) { return Action{s, kind, k}; };
  Schedule schedule = makeSchedule("1f1b", 2, 2);
  schedule.orders = {{{StageId(0), ActionKind::kForward, 0},
                      send(StageId(0), ActionKind::kSendForward, 0),
                      {StageId(0), ActionKind::kForward, 1},
                      send(StageId(0), ActionKind::kSendForward, 1),
                      {StageId(0), ActionKind::kReceiveBackward, 0},
                      {StageId(0), ActionKind::kBackward, 0},
                      {StageId(0), ActionKind::kReceiveBackward, 1},
                      {StageId(0), ActionKind::kBackward, 1}},
                     {{StageId(1), ActionKind::kReceiveForward, 0},
                      {StageId(1), ActionKind::kForward, 0},
                      {StageId(1), ActionKind::kBackward, 0},
                      send(StageId(1), ActionKind::kSendBackward, 0),
                      {StageId(1), ActionKind::kReceiveForward, 1},
                      {StageId(1), ActionKind::kForward, 1},
                      {StageId(1), ActionKind::kBackward, 1},
                      send(StageId(1), ActionKind::kSendBackward, 1)}};
  EXPECT_THAT(messageOf(schedule),
              HasSubstr("the ranks wait for each other: rank 0 at 0SEND_F1, rank 1 at 1SEND_B0"));
}

// Mutations of every schedule: the verifier refuses those that the oracle refuses, and no others.

class Mutations : public ::testing::TestWithParam<bool> {
 protected:
  std::mt19937 random{17};
  size_t below(size_t n) { return random() % n; }

  // Schedules of some sizes, with messages or without.
  std::vector<Schedule> schedules() {
    std::vector<Schedule> result;
    for (const auto& [p, m] :
         std::vector<std::pair<int, int>>{{1, 3}, {2, 2}, {2, 5}, {3, 6}, {4, 8}, {4, 5}}) {
      for (Schedule& schedule : schedulesOf(p, m)) {
        if (GetParam()) schedule.orders = withTransfers(schedule);
        result.push_back(std::move(schedule));
      }
    }
    return result;
  }

  // The message; empty if accepted. Every message shows a marked step.
  static std::string refusal(const Schedule& schedule) {
    const std::string message = messageOf(schedule);
    if (!message.empty()) {
      EXPECT_THAT(message, ::testing::ContainsRegex("\n    rank +[0-9]+, step +[0-9]+: .*>.*<"));
    }
    return message;
  }
};
INSTANTIATE_TEST_SUITE_P(WithoutAndWithMessages, Mutations, ::testing::Bool());

class MessageMutations : public Mutations {};
INSTANTIATE_TEST_SUITE_P(WithMessages, MessageMutations, ::testing::Values(true));

TEST_P(Mutations, OfADroppedActionAreRefusedByItsName) {
  for (const Schedule& good : schedules()) {
    ASSERT_EQ(refusal(good), "") << good.name();
    for (int trial = 0; trial < 12; ++trial) {
      Schedule bad = good;
      std::vector<Action>& order = bad.orders[PipelineRankId(below(bad.orders.size()))];
      const auto dropped = order.begin() + static_cast<std::ptrdiff_t>(below(order.size()));
      const Action action = *dropped;
      order.erase(dropped);
      ASSERT_FALSE(runSchedule(bad).legal());
      const std::string text = actionToString(action);
      const std::string half = std::string(actionKindName(action.kind)) + std::to_string(action.microbatch);
      EXPECT_THAT(refusal(bad), ::testing::AnyOf(HasSubstr(text + " is missing"), HasSubstr(text + " of "),
                                                 ::testing::AllOf(HasSubstr("needs either"), HasSubstr(half)),
                                                 HasSubstr("runs " + text + " for it")))
          << good.name() << ": " << text;
    }
  }
}

TEST_P(Mutations, OfADoubledActionAreRefusedByItsName) {
  for (const Schedule& good : schedules()) {
    for (int trial = 0; trial < 12; ++trial) {
      Schedule bad = good;
      std::vector<Action>& order = bad.orders[PipelineRankId(below(bad.orders.size()))];
      const Action action = order[below(order.size())];
      order.insert(order.begin() + static_cast<std::ptrdiff_t>(below(order.size() + 1)), action);
      ASSERT_FALSE(runSchedule(bad).legal());
      EXPECT_THAT(refusal(bad), HasSubstr(actionToString(action) + " runs twice")) << good.name();
    }
  }
}

TEST_P(Mutations, OfTwoSwappedActionsAreRefusedExactlyWhereTheyAreIllegal) {
  int legal = 0, illegal = 0;
  for (const Schedule& good : schedules()) {
    for (int trial = 0; trial < 40; ++trial) {
      Schedule other = good;
      std::vector<Action>& order = other.orders[PipelineRankId(below(other.orders.size()))];
      std::vector<Action>& second =
          trial % 8 == 7 ? other.orders[PipelineRankId(below(other.orders.size()))] : order;
      // Mostly near each other, where swaps may be harmless.
      const size_t a = below(order.size());
      const size_t b = trial % 2 == 0 || a >= second.size() ? below(second.size())
                                                            : std::min(a + 1 + below(3), second.size() - 1);
      std::swap(order[a], second[b]);
      const bool is_legal = runSchedule(other).legal();
      (is_legal ? legal : illegal) += 1;
      EXPECT_EQ(refusal(other).empty(), is_legal)
          << good.name() << ": " << actionToString(order[a]) << " " << actionToString(second[b]);
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(legal, 300);
  EXPECT_GT(illegal, 1000);
}

TEST_P(MessageMutations, OfAReorderedSendAreRefusedExactlyWhereTheyAreIllegal) {
  int legal = 0, illegal = 0;
  for (const Schedule& good : schedules()) {
    for (int trial = 0; trial < 40; ++trial) {
      Schedule other = good;
      std::vector<Action>& order = other.orders[PipelineRankId(below(other.orders.size()))];
      std::vector<size_t> sends;
      for (size_t i = 0; i < order.size(); ++i) {
        if (order[i].kind == ActionKind::kSendForward || order[i].kind == ActionKind::kSendBackward)
          sends.push_back(i);
      }
      if (sends.empty()) continue;
      const size_t from = sends[below(sends.size())];
      const Action send = order[from];
      order.erase(order.begin() + from);
      const size_t to =
          trial % 2 == 0 ? below(order.size() + 1) : std::min(from + 1 + below(3), order.size());
      order.insert(order.begin() + to, send);
      const bool is_legal = runSchedule(other).legal();
      (is_legal ? legal : illegal) += 1;
      EXPECT_EQ(refusal(other).empty(), is_legal) << good.name() << ": " << actionToString(send);
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(legal, 300);
  EXPECT_GT(illegal, 1000);
}

}  // namespace
}  // namespace pipeshard
