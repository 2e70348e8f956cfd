// Asynchronous schedules: versions as published, counted by walking the orders.
#include <algorithm>
#include <functional>
#include <numeric>
#include <set>

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "partition/families/make_schedule.h"
#include "partition/schedules/schedule.h"
#include "partition/schedules/schedule_verify.h"
#include "tests/expect_error.h"
#include "tests/partition/schedules/schedule_from_text.h"

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

// What a stage that runs its list must keep: after each update, the newest version and those that later
// passes read.
struct Walk {
  int most_versions = 1;
  bool reads_what_is_made = true;  // no pass reads a version that has not been made yet
  int updates = 0;
};

Walk walk(const Schedule& schedule, StageId stage) {
  const std::vector<Action>& order = schedule.orders[schedule.rank_of_stage[stage]];
  Walk result;
  for (size_t at = 0; at < order.size(); ++at) {
    const auto versionOf = [&](const Action& action) { return schedule.versions[stage][action.microbatch]; };
    if (order[at].kind != ActionKind::kUpdate) {
      result.reads_what_is_made &= versionOf(order[at]) <= result.updates;
      continue;
    }
    std::set<int> living = {++result.updates};
    for (size_t later = at + 1; later < order.size(); ++later) {
      if (isPass(order[later].kind) && versionOf(order[later]) < result.updates)
        living.insert(versionOf(order[later]));
    }
    result.most_versions = std::max(result.most_versions, static_cast<int>(living.size()));
  }
  return result;
}

TEST(PipeDream, ReadsTheVersionsOfTheReference) {
  EXPECT_THAT(makeSchedule("pipedream", 4, 8).versions,
              ElementsAre(ElementsAre(0, 0, 0, 0, 1, 2, 3, 4), ElementsAre(0, 0, 0, 1, 2, 3, 4, 5),
                          ElementsAre(0, 0, 1, 2, 3, 4, 5, 6), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7)));
  EXPECT_EQ(makeSchedule("pipedream-vertical", 4, 8).versions, Versions(4, {0, 0, 0, 0, 1, 2, 3, 4}));
  EXPECT_EQ(makeSchedule("pipedream-2bw", 4, 8).versions, Versions(4, {0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(makeSchedule("pipedream-2bw:m=4", 3, 16).versions,
            Versions(3, {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2}));
}

TEST(PipeDream, HasTheOrderOf1f1bWithUpdates) {
  const Schedule schedule = makeSchedule("pipedream", 4, 8);
  EXPECT_EQ(text(schedule.orders[PipelineRankId(2)]),
            "2F0 2F1 2B0 2UPDATE0 2F2 2B1 2UPDATE1 2F3 2B2 2UPDATE2 2F4 2B3 2UPDATE3 2F5 2B4 2UPDATE4 2F6 "
            "2B5 2UPDATE5 2F7 2B6 2UPDATE6 2B7 2UPDATE7");
  EXPECT_EQ(text(makeSchedule("pipedream-2bw:m=2", 2, 4).orders[PipelineRankId(0)]),
            "0F0 0F1 0B0 0F2 0B1 0UPDATE1 0F3 0B2 0B3 0UPDATE3");
  for (const char* name : {"pipedream", "pipedream-vertical", "pipedream-2bw"}) {
    ScheduleOrders orders = makeSchedule(name, 4, 8).orders;
    for (std::vector<Action>& order : orders)
      std::erase_if(order, [](const Action& action) { return action.kind == ActionKind::kUpdate; });
    EXPECT_EQ(orders, makeSchedule("1f1b", 4, 8).orders) << name;
  }
}

// By the rule itself, not by a table: on stage s a microbatch reads all updates that the stage has made when
// its forward pass begins.
TEST(PipeDream, AForwardPassReadsTheNewestVersionOfItsStage) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 20; ++m) {
      const Schedule schedule = makeSchedule("pipedream", p, m);
      for (const StageId stage : schedule.rank_of_stage.ids()) {
        int updates = 0;
        for (const Action& action : schedule.orders[schedule.rank_of_stage[stage]]) {
          updates += action.kind == ActionKind::kUpdate ? 1 : 0;
          if (action.kind != ActionKind::kForward) continue;
          EXPECT_EQ(schedule.versions[stage][action.microbatch], updates) << p << " " << m;
        }
        EXPECT_EQ(updates, m);
      }
    }
  }
}

// Stage s keeps at most `most(s)`. A window that drains before the pipeline has turned over twice needs
// fewer.
template <typename Most>
void expectVersions(const Schedule& schedule, int updates, const Most& most) {
  for (int stage = 0; stage < schedule.stages; ++stage) {
    const Walk walked = walk(schedule, StageId(stage));
    EXPECT_EQ(walked.updates, updates);
    EXPECT_TRUE(walked.reads_what_is_made);
    EXPECT_LE(walked.most_versions, std::min(most(stage), updates));
    if (updates >= 2 * most(stage) - 2) {
      EXPECT_EQ(walked.most_versions, most(stage))
          << schedule.name() << " stage " << stage << " of " << schedule.stages;
    }
  }
}

TEST(PipeDream, AtMostTheStatedNumberOfVersionsLives) {
  for (int p : {1, 2, 3, 4, 5, 8}) {
    for (int updates : {1, 2, 3, 4, 5, 6, 8, 14, 17}) {
      expectVersions(makeSchedule("pipedream", p, updates), updates, [&](int stage) { return p - stage; });
      expectVersions(makeSchedule("pipedream-vertical", p, updates), updates, [&](int) { return p; });
      for (int m : {p, p + 1, 2 * p}) {
        expectVersions(makeSchedule("pipedream-2bw:m=" + std::to_string(m), p, updates * m), updates,
                       [](int) { return 2; });
      }
    }
  }
}

TEST(PipeDream, AWindowHasUpdatesOfSoManyMicrobatches) {
  const Schedule two_buffers = makeSchedule("pipedream-2bw", 2, 3, 4);
  EXPECT_EQ(two_buffers.name(), "pipedream-2bw:m=3");
  EXPECT_EQ(two_buffers.microbatches, 12);
  EXPECT_EQ(two_buffers.microbatches_per_update, 3);
  EXPECT_EQ(makeSchedule("pipedream", 3, 1, 8).orders, makeSchedule("pipedream", 3, 8).orders);
  EXPECT_EQ(makeSchedule("1f1b", 3, 8, 1).orders, makeSchedule("1f1b", 3, 8).orders);
  EXPECT_ERROR(makeSchedule("pipedream", 3, 4, 2), ErrorCode::kConfiguration,
               "found 4 microbatches per update; expected 1");
  EXPECT_ERROR(makeSchedule("pipedream-2bw:m=4", 3, 6, 2), ErrorCode::kConfiguration,
               "found 6 microbatches per update; expected 4: give --microbatches 4 as well");
  EXPECT_ERROR(makeSchedule("pipedream-2bw:m=5", 3, 4, 8), ErrorCode::kConfiguration,
               "found 4 microbatches per update; expected 5");
  EXPECT_TRUE(isAsynchronous({"pipedream-vertical"}));
  EXPECT_FALSE(isAsynchronous({"gpipe"}));
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
  EXPECT_THAT(messageOf("pipedream-2bw:m=3", 4, 12),
              HasSubstr("found 3 microbatches per update; expected at least 4"));
  EXPECT_THAT(messageOf("pipedream-2bw", 4, 3), HasSubstr("expected at least 4"));
  EXPECT_THAT(messageOf("pipedream-2bw:m=4", 4, 10), HasSubstr("expected a multiple of the 4"));
}

Schedule onReplicas(const std::string& name, const IdVector<StageId, int>& replicas, int window) {
  return makeSchedule({parseSchedule(name), static_cast<int>(replicas.size()), window, {}, replicas});
}

TEST(PipeDreamReplicas, TakeMinibatchesInTurn) {
  const Schedule schedule = onReplicas("pipedream", {3, 1}, 6);
  EXPECT_EQ(text(orderOfReplica(schedule, StageId(0), 0)), "0F0 0F3 0B0 0UPDATE2 0B3 0UPDATE5");
  EXPECT_EQ(text(orderOfReplica(schedule, StageId(0), 2)), "0F2 0F5 0B2 0UPDATE2 0B5 0UPDATE5");
  EXPECT_EQ(text(orderOfReplica(schedule, StageId(1), 0)),
            "1F0 1B0 1UPDATE0 1F1 1B1 1UPDATE1 1F2 1B2 1UPDATE2 1F3 1B3 1UPDATE3 1F4 1B4 1UPDATE4 1F5 1B5 "
            "1UPDATE5");
  EXPECT_THAT(schedule.versions, ElementsAre(ElementsAre(0, 0, 0, 0, 0, 0), ElementsAre(0, 1, 2, 3, 4, 5)));
  EXPECT_THAT(onReplicas("pipedream", {1, 3}, 6).versions,
              ElementsAre(ElementsAre(0, 0, 0, 0, 1, 2), ElementsAre(0, 0, 0, 1, 1, 1)));
  EXPECT_THAT(onReplicas("pipedream", {2, 1, 1}, 6).versions,
              ElementsAre(ElementsAre(0, 0, 0, 0, 1, 1), ElementsAre(0, 0, 1, 2, 3, 4),
                          ElementsAre(0, 1, 2, 3, 4, 5)));
  EXPECT_THAT(onReplicas("pipedream-vertical", {2, 1, 1}, 6).versions,
              ElementsAre(ElementsAre(0, 0, 0, 0, 1, 1), ElementsAre(0, 0, 0, 0, 2, 2),
                          ElementsAre(0, 0, 0, 0, 2, 2)));
  EXPECT_EQ(onReplicas("pipedream:rows=1", {3, 1}, 5).orders, makeSchedule("pipedream", 2, 5).orders);
  EXPECT_TRUE(onReplicas("pipedream:rows=1", {3, 1}, 5).replicas.empty());
}

// All pipelines of up to six devices. By the rules of PipeDream's paper and runtime, counted in what every
// replica does: NOAM minibatches enter per replica of the first stage before its first backward pass; a
// replica begins with `warm-up` forward passes; a forward pass reads the newest version there is; warm-up + 1
// versions live.
TEST(PipeDreamReplicas, FollowTheRulesOnAllPipelinesOfSixDevices) {
  int pipelines = 0;
  using Replicas = IdVector<StageId, int>;
  const std::function<void(Replicas, int)> visit = [&](const Replicas& replicas, int left) {
    for (int width = 1; width <= left; ++width) {
      Replicas longer = replicas;
      longer.push_back(width);
      visit(longer, left - width);
    }
    if (replicas.empty()) return;
    ++pipelines;
    SCOPED_TRACE(fmt::format("{}", fmt::join(replicas, "-")));
    const int devices = std::accumulate(replicas.begin(), replicas.end(), 0);
    const Schedule schedule = onReplicas("pipedream", replicas, 60);
    int earlier = 0;
    for (const StageId stage : replicas.ids()) {
      const int share = replicas[stage];
      const int warm_up = (devices - 1 - earlier) / share;
      if (stage == StageId(0)) {
        EXPECT_EQ(warm_up + 1, (devices + share - 1) / share);  // NOAM
      }
      for (int replica = 0; replica < share; ++replica) {
        int updates = 0, forward = 0, backward = 0, most = 0;
        for (const Action& action : orderOfReplica(schedule, stage, replica)) {
          if (action.kind == ActionKind::kUpdate) {
            EXPECT_EQ(action.microbatch, ++updates * share - 1);
            continue;
          }
          EXPECT_EQ(action.microbatch % share, replica);
          (action.kind == ActionKind::kForward ? forward : backward)++;
          most = std::max(most, forward - backward);
          const int read = schedule.versions[stage][action.microbatch];
          if (action.kind == ActionKind::kForward) {
            EXPECT_EQ(read, updates);
          }
          EXPECT_LE(updates - read, warm_up);
        }
        EXPECT_EQ(updates, 60 / share);
        EXPECT_EQ(most, std::min(warm_up + 1, 60 / share));
      }
      earlier += share;
    }
    EXPECT_NO_THROW(onReplicas("pipedream-vertical", replicas, 60));
    EXPECT_NO_THROW(onReplicas("pipedream-2bw:m=12", replicas, 60));
  };
  visit({}, 6);
  EXPECT_EQ(pipelines, 63);
}

TEST(PipeDreamReplicas, TakeWholeRounds) {
  EXPECT_ERROR(onReplicas("pipedream", {3, 2}, 8), ErrorCode::kConfiguration,
               "found a window of 8 minibatches; expected a multiple of 6");
  EXPECT_ERROR(onReplicas("pipedream-2bw:m=3", {3, 1}, 12), ErrorCode::kConfiguration,
               "expected at least 6, as many as are under way");
  EXPECT_NO_THROW(onReplicas("pipedream-2bw:m=3,rows=1", {3, 1}, 12));
  EXPECT_ERROR(makeSchedule("pipedream:rows=2", 2, 4), ErrorCode::kUsage, "expected 0 or 1");
  Schedule schedule = onReplicas("pipedream", {3, 1}, 6);
  schedule.replicas = {3};
  EXPECT_ERROR(verifySchedule(schedule), ErrorCode::kConfiguration, "found replicas [3]");
  schedule = onReplicas("pipedream", {3, 1}, 6);
  std::swap(*std::find(schedule.orders[PipelineRankId(0)].begin(), schedule.orders[PipelineRankId(0)].end(),
                       Action{StageId(0), ActionKind::kBackward, 2}),
            *std::find(schedule.orders[PipelineRankId(0)].begin(), schedule.orders[PipelineRankId(0)].end(),
                       Action{StageId(0), ActionKind::kUpdate, 2}));
  EXPECT_ERROR(verifySchedule(schedule), ErrorCode::kConfiguration, "runs 0UPDATE2 before 0B2");
}

}  // namespace
}  // namespace pipeshard
