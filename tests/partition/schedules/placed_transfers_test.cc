// Sends and receives: placed so that a rendezvous never waits in a circle.
#include <algorithm>
#include <set>

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "partition/families/make_schedule.h"
#include "partition/schedules/schedule.h"
#include "partition/schedules/schedule_transfers.h"
#include "partition/schedules/schedule_verify.h"
#include "tests/partition/schedules/placed_transfers.h"
#include "tests/partition/schedules/schedule_from_text.h"
#include "tests/partition/schedules/schedule_oracle.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> texts(const ScheduleOrders& orders) {
  std::vector<std::string> result;
  for (const std::vector<Action>& order : orders) {
    std::vector<std::string> actions;
    for (const Action& action : order) actions.push_back(actionToString(action));
    result.push_back(fmt::format("{}", fmt::join(actions, " ")));
  }
  return result;
}

// Of gpipe nobody has to receive early. In 1f1b both ranks would wait with a message for the other: rank 1
// takes 1RECV_F1 first.
TEST(WithTransfers, PlacesReceivesLateButNotTooLate) {
  EXPECT_THAT(texts(withTransfers(makeSchedule("gpipe", 2, 2))),
              ElementsAre("0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
                          "1RECV_F0 1F0 1RECV_F1 1F1 1B0 1SEND_B0 1B1 1SEND_B1"));
  EXPECT_THAT(texts(withTransfers(makeSchedule("1f1b", 2, 2))),
              ElementsAre("0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
                          "1RECV_F0 1F0 1B0 1RECV_F1 1SEND_B0 1F1 1B1 1SEND_B1"));
}

TEST(WithTransfers, StagesOfOneRankSendNothing) {
  EXPECT_EQ(withTransfers(makeSchedule("interleaved", 1, 3)), makeSchedule("interleaved", 1, 3).orders);
  for (const std::vector<Action>& order : withTransfers(makeSchedule("dual-pipe-v", 3, 7))) {
    for (const Action& action : order) {
      EXPECT_FALSE(action.stage == StageId(2) &&
                   (action.kind == ActionKind::kSendForward || action.kind == ActionKind::kReceiveBackward));
    }
  }
}

TEST(WithTransfers, KeepsOverlappedPairsTogether) {
  const Schedule schedule = makeSchedule("dual-pipe-v", 3, 8);
  for (const std::vector<Action>& order : withTransfers(schedule)) {
    for (size_t i = 0; i < order.size(); ++i) {
      if (order[i].overlaps_next) {
        EXPECT_TRUE(isPass(order[i + 1].kind));
      }
    }
  }
}

class TransfersGrid : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, TransfersGrid, ::testing::Range(1, 9));

TEST_P(TransfersGrid, EveryScheduleRunsWithRendezvousAndBoundedBuffers) {
  const int p = GetParam();
  for (int m : std::set<int>{1, 2, std::max(1, p - 1), p, p + 1, 2 * p, 3 * p + 1}) {
    for (Schedule& schedule : schedulesOf(p, m)) {
      SCOPED_TRACE(schedule.name() + ", m=" + std::to_string(m));
      const ScheduleOrders passes = schedule.orders;
      schedule.orders = withTransfers(schedule);
      EXPECT_TRUE(runSchedule(schedule).legal());
      EXPECT_NO_THROW(verifySchedule(schedule));
      const int64_t waiting = mostWaitingMessages(schedule.orders);
      if (schedule.name() == "sequential" || schedule.name() == "gpipe" ||
          schedule.name() == "forward-only") {
        EXPECT_LE(waiting, 1);
      } else if (schedule.name() == "1f1b" || schedule.name() == "zb-h1") {
        EXPECT_LE(waiting, 2);
      }
      if (!schedule.forward_only) {
        int64_t stashed = 0;
        for (const std::vector<Action>& order : passes) stashed = std::max(stashed, peakActivations(order));
        EXPECT_LE(waiting, stashed);
      }
      for (std::vector<Action>& order : schedule.orders)
        std::erase_if(order, [](const Action& a) { return a.kind >= ActionKind::kSendForward; });
      EXPECT_EQ(schedule.orders, passes);
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace pipeshard
