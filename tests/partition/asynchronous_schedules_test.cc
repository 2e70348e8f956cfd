// Asynchronous schedules: versions as published, counted by walking the orders.
#include <algorithm>
#include <set>

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/error.h"
#include "partition/schedule.h"
#include "tests/expect_error.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Versions = std::vector<std::vector<int>>;

std::string text(const std::vector<Action>& order) {
  std::vector<std::string> actions;
  for (const Action& action : order) actions.push_back(actionToString(action));
  return fmt::format("{}", fmt::join(actions, " "));
}

// What a stage that runs its list must keep: after each update, the newest version and those that later passes read.
struct Walk {
  int most_versions = 1;
  bool reads_what_is_made = true;  // no pass reads a version that has not been made yet
  int updates = 0;
};

Walk walk(const Schedule& schedule, int stage) {
  const std::vector<Action>& order = schedule.orders[static_cast<size_t>(stage)];
  Walk result;
  for (size_t at = 0; at < order.size(); ++at) {
    const auto versionOf = [&](const Action& action) {
      return schedule.versions[static_cast<size_t>(stage)][static_cast<size_t>(action.microbatch)];
    };
    if (order[at].kind != ActionKind::kUpdate) {
      result.reads_what_is_made &= versionOf(order[at]) <= result.updates;
      continue;
    }
    std::set<int> living = {++result.updates};
    for (size_t later = at + 1; later < order.size(); ++later) {
      if (isPass(order[later].kind) && versionOf(order[later]) < result.updates) living.insert(versionOf(order[later]));
    }
    result.most_versions = std::max(result.most_versions, static_cast<int>(living.size()));
  }
  return result;
}

TEST(PipeDream, ReadsTheVersionsOfTheReference) {
  EXPECT_THAT(makeSchedule("pipedream", 4, 8).versions,
              ElementsAre(ElementsAre(0, 0, 0, 0, 1, 2, 3, 4), ElementsAre(0, 0, 0, 1, 2, 3, 4, 5), ElementsAre(0, 0, 1, 2, 3, 4, 5, 6),
                          ElementsAre(0, 1, 2, 3, 4, 5, 6, 7)));
  EXPECT_EQ(makeSchedule("pipedream-vertical", 4, 8).versions, Versions(4, {0, 0, 0, 0, 1, 2, 3, 4}));
  EXPECT_EQ(makeSchedule("pipedream-2bw", 4, 8).versions, Versions(4, {0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(makeSchedule("pipedream-2bw:m=4", 3, 16).versions, Versions(3, {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2}));
}

TEST(PipeDream, HasTheOrderOf1f1bWithUpdates) {
  const Schedule schedule = makeSchedule("pipedream", 4, 8);
  EXPECT_EQ(text(schedule.orders[2]),
            "2F0 2F1 2B0 2UPDATE0 2F2 2B1 2UPDATE1 2F3 2B2 2UPDATE2 2F4 2B3 2UPDATE3 2F5 2B4 2UPDATE4 2F6 2B5 2UPDATE5 2F7 2B6 2UPDATE6 "
            "2B7 2UPDATE7");
  EXPECT_EQ(text(makeSchedule("pipedream-2bw:m=2", 2, 4).orders[0]), "0F0 0F1 0B0 0F2 0B1 0UPDATE1 0F3 0B2 0B3 0UPDATE3");
  for (const char* name : {"pipedream", "pipedream-vertical", "pipedream-2bw"}) {
    ScheduleOrders orders = makeSchedule(name, 4, 8).orders;
    for (std::vector<Action>& order : orders) std::erase_if(order, [](const Action& action) { return action.kind == ActionKind::kUpdate; });
    EXPECT_EQ(orders, makeSchedule("1f1b", 4, 8).orders) << name;
  }
}

// By the rule itself, not by a table: on stage s a microbatch reads all updates that the stage has made when its forward pass begins.
TEST(PipeDream, AForwardPassReadsTheNewestVersionOfItsStage) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 20; ++m) {
      const Schedule schedule = makeSchedule("pipedream", p, m);
      for (int stage = 0; stage < p; ++stage) {
        int updates = 0;
        for (const Action& action : schedule.orders[static_cast<size_t>(stage)]) {
          updates += action.kind == ActionKind::kUpdate ? 1 : 0;
          if (action.kind != ActionKind::kForward) continue;
          EXPECT_EQ(schedule.versions[static_cast<size_t>(stage)][static_cast<size_t>(action.microbatch)], updates) << p << " " << m;
        }
        EXPECT_EQ(updates, m);
      }
    }
  }
}

// Stage s keeps at most `most(s)`. A window that drains before the pipeline has turned over twice needs fewer.
template <typename Most>
void expectVersions(const Schedule& schedule, int updates, const Most& most) {
  for (int stage = 0; stage < schedule.stages; ++stage) {
    const Walk walked = walk(schedule, stage);
    EXPECT_EQ(walked.updates, updates);
    EXPECT_TRUE(walked.reads_what_is_made);
    EXPECT_LE(walked.most_versions, std::min(most(stage), updates));
    if (updates >= 2 * most(stage) - 2) {
      EXPECT_EQ(walked.most_versions, most(stage)) << schedule.name << " stage " << stage << " of " << schedule.stages;
    }
  }
}

TEST(PipeDream, AtMostTheStatedNumberOfVersionsLives) {
  for (int p : {1, 2, 3, 4, 5, 8}) {
    for (int updates : {1, 2, 3, 4, 5, 6, 8, 14, 17}) {
      expectVersions(makeSchedule("pipedream", p, updates), updates, [&](int stage) { return p - stage; });
      expectVersions(makeSchedule("pipedream-vertical", p, updates), updates, [&](int) { return p; });
      for (int m : {p, p + 1, 2 * p}) {
        expectVersions(makeSchedule("pipedream-2bw:m=" + std::to_string(m), p, updates * m), updates, [](int) { return 2; });
      }
    }
  }
}

TEST(PipeDream, AWindowHasUpdatesOfSoManyMicrobatches) {
  const Schedule two_buffers = makeSchedule("pipedream-2bw", 2, 3, 4);
  EXPECT_EQ(two_buffers.name, "pipedream-2bw:m=3");
  EXPECT_EQ(two_buffers.microbatches, 12);
  EXPECT_EQ(two_buffers.microbatches_per_update, 3);
  EXPECT_EQ(makeSchedule("pipedream", 3, 1, 8).orders, makeSchedule("pipedream", 3, 8).orders);
  EXPECT_EQ(makeSchedule("1f1b", 3, 8, 1).orders, makeSchedule("1f1b", 3, 8).orders);
  EXPECT_ERROR(makeSchedule("pipedream", 3, 4, 2), ErrorCode::kConfiguration, "found 4 microbatches per update; expected 1");
  EXPECT_ERROR(makeSchedule("pipedream-2bw:m=4", 3, 6, 2), ErrorCode::kConfiguration, "found 6 microbatches per update; expected 4: give --microbatches 4 as well");
  EXPECT_ERROR(makeSchedule("pipedream-2bw:m=5", 3, 4, 8), ErrorCode::kConfiguration, "found 4 microbatches per update; expected 5");
  EXPECT_TRUE(isAsynchronous("pipedream-vertical"));
  EXPECT_FALSE(isAsynchronous("gpipe"));
}

std::string messageOf(const std::string& name, int ranks, int microbatches) {
  try {
    makeSchedule(name, ranks, microbatches);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfiguration);
    return error.message();
  }
  return "accepted";
}

TEST(PipeDream, TwoBuffersNeedAMicrobatchPerStageAndWholeUpdates) {
  EXPECT_THAT(messageOf("pipedream-2bw:m=3", 4, 12), HasSubstr("found 3 microbatches per update; expected at least 4"));
  EXPECT_THAT(messageOf("pipedream-2bw", 4, 3), HasSubstr("expected at least 4"));
  EXPECT_THAT(messageOf("pipedream-2bw:m=4", 4, 10), HasSubstr("expected a multiple of the 4"));
}

}  // namespace
}  // namespace pipeshard
