// Schedules on two stages per rank, forth and back: the published orders, makespans, idle times and peaks;
// every size; memory limits.
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "partition/families/make_schedule.h"
#include "partition/families/v_pattern.h"
#include "partition/schedules/schedule.h"
#include "tests/expect_error.h"
#include "tests/partition/schedules/schedule_from_text.h"
#include "tests/partition/simulation/second_simulator.h"

namespace pipeshard {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Le;

constexpr const char* kNames[] = {"1f1b-v", "zbv", "v-half", "v-min"};

std::vector<std::string> texts(const Schedule& schedule) {
  std::vector<std::string> result;
  for (const std::vector<Action>& order : schedule.orders) {
    std::vector<std::string> actions;
    for (const Action& action : order) actions.push_back(actionToString(action));
    result.push_back(fmt::format("{}", fmt::join(actions, " ")));
  }
  return result;
}

// A stage's F, I and W take half a unit each, so results are in half units; memory in half shares.
SecondSimulation simulated(std::string_view name, int p, int m) {
  return secondSimulation(makeSchedule(name, p, m), SecondCosts{});
}

TEST(VSchedules, ZbvHasThePublishedOrder) {
  EXPECT_THAT(
      texts(makeSchedule("zbv", 4, 8)),
      ElementsAre(
          "0F0 0F1 0F2 0F3 0F4 0F5 0F6 7F0 7I0 7W0 7F1 7I1 7W1 7F2 7I2 7W2 7F3 7I3 7W3 0F7 0I0 0W0 7F4 7I4 "
          "7W4 0I1 0W1 7F5 7I5 7W5 0I2 0W2 7F6 7I6 7W6 0I3 0W3 7F7 7I7 7W7 0I4 0W4 0I5 0W5 0I6 0W6 0I7 0W7",
          "1F0 1F1 1F2 1F3 1F4 6F0 1F5 6F1 6I0 6W0 6F2 6I1 6W1 6F3 6I2 6W2 1F6 1I0 1W0 6F4 6I3 6W3 1F7 1I1 "
          "1W1 6F5 6I4 6W4 1I2 1W2 6F6 6I5 6W5 1I3 1W3 6F7 6I6 6W6 1I4 6I7 1I5 1W4 1I6 1W5 1I7 1W6 6W7 1W7",
          "2F0 2F1 2F2 5F0 2F3 5F1 2F4 5F2 5I0 5W0 5F3 5I1 5W1 2F5 2I0 2W0 5F4 5I2 5W2 2F6 2I1 2W1 5F5 5I3 "
          "5W3 2F7 2I2 2W2 5F6 5I4 5W4 2I3 2W3 5F7 5I5 5W5 2I4 5I6 2I5 5I7 2I6 2W4 2I7 2W5 5W6 5W7 2W6 2W7",
          "3F0 4F0 3F1 4F1 3F2 4F2 3F3 4F3 4I0 4W0 3F4 3I0 3W0 4F4 4I1 4W1 3F5 3I1 3W1 4F5 4I2 4W2 3F6 3I2 "
          "3W2 4F6 4I3 4W3 3F7 3I3 3W3 4F7 4I4 4W4 3I4 4I5 3I5 4I6 3I6 4I7 3I7 3W4 4W5 4W6 4W7 3W5 3W6 3W7"));
}

// Makespan, idle time and peak at p=4, m=8 that the papers' authors' programs and simulations agree on.
TEST(VSchedules, TakeThePublishedTimeAndMemory) {
  struct Row {
    const char* name;
    int64_t makespan, idle, peak;
  };
  for (const Row& row :
       {Row{"1f1b-v", 63, 15, 6}, Row{"zbv", 51, 3, 8}, Row{"v-half", 53, 5, 6}, Row{"v-min", 59, 11, 4}}) {
    const SecondSimulation result = simulated(row.name, 4, 8);
    EXPECT_EQ(result.makespan, row.makespan) << row.name;
    EXPECT_THAT(result.idle, Each(row.idle)) << row.name;
    EXPECT_THAT(result.peak_memory, Each(row.peak)) << row.name;
  }
  EXPECT_EQ(simulated("zbv", 4, 8).longestSpan(), 48);
  EXPECT_THAT(simulated("v-half", 8, 16).peak_memory, Each(Le(10)));
  EXPECT_THAT(simulated("v-min", 8, 16).peak_memory, Each(Le(8)));
}

TEST(VSchedules, HaveTheTimelinesOfTheirHeader) {
  EXPECT_THAT(texts(makeSchedule("zbv", 2, 3)),
              ElementsAre("0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2",
                          "1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2"));
  EXPECT_THAT(texts(makeSchedule("1f1b-v", 2, 2)),
              ElementsAre("0F0 0F1 3F0 3B0 3F1 3B1 0B0 0B1", "1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1"));
  for (const char* name : {"v-half", "v-min"}) {
    EXPECT_THAT(texts(makeSchedule(name, 3, 2)),
                ElementsAre("0F0 0F1 5F0 5I0 5F1 5I1 5W0 5W1 0I0 0W0 0I1 0W1",
                            "1F0 1F1 4F0 4F1 4I0 4W0 4I1 1I0 4W1 1I1 1W0 1W1",
                            "2F0 3F0 2F1 3F1 3I0 2I0 3I1 2I1 3W0 2W0 3W1 2W1"));
  }
}

class VGrid : public ::testing::TestWithParam<int> {
 protected:
  int p = GetParam();
};

INSTANTIATE_TEST_SUITE_P(Ranks, VGrid, ::testing::Range(1, 9));

TEST_P(VGrid, EverySizeRunsWithinItsMemory) {
  for (int m = 1; m <= 4 * p; ++m) {
    for (const std::string name : kNames) {
      const SecondSimulation result = simulated(name, p, m);  // made, so verified
      ASSERT_FALSE(result.stuck);
      const int64_t limit = name == "zbv"      ? 2 * p
                            : name == "1f1b-v" ? (2 * p + 3) / 3 * 2
                            : name == "v-half" ? p / 2 * 2 + 2
                                               : (p + 4) / 3 * 2;
      EXPECT_THAT(result.peak_memory, Each(Le(limit))) << name << " " << m;
      EXPECT_THAT(result.final_memory, Each(0));
      // A microbatch cannot be faster than its way through all stages (and a last W); nor can a rank than its
      // work.
      EXPECT_GE(result.makespan, std::max(6 * m, name == "1f1b-v" ? 6 * p : 4 * p + 1)) << name << " " << m;
    }
  }
}

TEST_P(VGrid, TakeTheTimeOfTheirFormulas) {
  for (int m = std::max(1, 2 * p - 1); m <= 4 * p; ++m) {
    const SecondSimulation zbv = simulated("zbv", p, m);
    EXPECT_EQ(zbv.makespan, 6 * m + p - 1) << m;
    EXPECT_EQ(zbv.longestSpan(), 6 * m) << m;
    EXPECT_THAT(zbv.peak_memory, Each(2 * p));
  }
  for (int m = p; m <= 4 * p; ++m) {
    const SecondSimulation whole = simulated("1f1b-v", p, m);
    EXPECT_LE(whole.makespan, 6 * m + 5 * (p - 1)) << m;
    if (p % 3 == 1) {
      EXPECT_EQ(whole.makespan, 6 * m + 5 * (p - 1)) << m;
    }
    if (m < 2 * p) continue;
    EXPECT_THAT(whole.peak_memory, Each((2 * p + 3) / 3 * 2));
    // Less memory costs time, but each of them runs without idling in the middle: four more microbatches take
    // 24 half units more.
    for (const char* name : {"v-half", "v-min"}) {
      EXPECT_LE(simulated(name, p, m).makespan,
                6 * m + (name[2] == 'm' ? std::max(0, 4 * p - 5 + 2 * (p % 3 == 0)) : 3 * p))
          << name << " " << m;
    }
  }
}

TEST(VSchedules, ReachTheFractionsOfMemoryThatTheirPaperStates) {
  const auto peak = [](const char* name, int p) {
    const SecondSimulation result = simulated(name, p, 3 * p);
    return *std::max_element(result.peak_memory.begin(), result.peak_memory.end());
  };
  for (const int p : {16, 32}) {
    EXPECT_LE(peak("v-min", p), 2 * p / 3 + 3) << p;
    EXPECT_LE(peak("v-half", p), p + 2) << p;
    EXPECT_LE(peak("1f1b-v", p), 4 * p / 3 + 2) << p;
  }
}

TEST(VSchedules, PatternsExistForAnyNumberOfRanks) {
  for (int p = 1; p <= 64; ++p) {
    EXPECT_NO_THROW(shortestSplitPattern(p)) << p;
    EXPECT_NO_THROW(shortestWholePattern(p)) << p;
  }
}

// Times, transfers and memory models that are not equal: the limit holds for every one, and transfers are
// waited for.
TEST(VSchedules, HoldTheirLimitForGivenCosts) {
  const std::vector<ScheduleCosts> all_costs = {{10, 20, 10, 3, 1, 0, -1},
                                                {29718, 29444, 19927, 527, 303104, -172032, -131072},
                                                {7, 5, 1, 0, 4, 2, -6},
                                                {4, 9, 11, 20, 5, -5, 0}};
  for (const ScheduleCosts& c : all_costs) {
    for (const auto& [p, m, limit] :
         std::vector<std::tuple<int, int, int>>{{2, 5, 2}, {3, 9, 2}, {4, 8, 3}, {5, 3, 2}, {8, 16, 5}}) {
      for (const char* name : {"v-half", "v-min"}) {
        const Schedule schedule =
            makeSchedule(ScheduleRequest{ScheduleSpec{name}.with("limit", limit), p, m, c});
        EXPECT_EQ(schedule.name(), fmt::format("{}:limit={}", name, limit));
        const SecondCosts stage{c.forward,        c.backward_input, c.backward_weight,
                                c.forward_memory, c.input_memory,   c.weight_memory};
        const SecondSimulation result = secondSimulation(schedule, stage, 2 * c.transfer);
        EXPECT_THAT(result.peak_memory, Each(Le(2 * limit * c.forward_memory)))
            << name << " " << p << " " << m;
      }
    }
  }
}

TEST(VSchedules, MoreMemoryIsNotSlowerAtThePublishedSize) {
  int64_t before = INT64_MAX;
  for (int limit = 1; limit <= 8; ++limit) {
    const int64_t makespan = simulated(fmt::format("v-min:limit={}", limit), 4, 8).makespan;
    EXPECT_LE(makespan, before) << limit;
    before = makespan;
  }
  EXPECT_LE(before, 51);  // with the memory of 1f1b or more, zbv's time
}

TEST(VSchedules, RefuseWhatTheyCannotDo) {
  EXPECT_ERROR(makeSchedule("v-min:limit=0", 4, 8), ErrorCode::kConfiguration, "expected at least 1");
  EXPECT_ERROR(makeSchedule(ScheduleRequest{parseSchedule("v-half:limit=1"), 4, 8, {1, 1, 1, 0, 2, 3, -5}}),
               ErrorCode::kConfiguration,
               "found a memory limit of 1 microbatches' activations; expected at least 2");
  EXPECT_NO_THROW(
      makeSchedule(ScheduleRequest{parseSchedule("v-half:limit=2"), 4, 8, {1, 1, 1, 0, 2, 3, -5}}));
  EXPECT_ERROR(makeSchedule("zbv:limit=3", 4, 8), ErrorCode::kUsage, "zbv has no options");
  EXPECT_ERROR(makeSchedule("v-min:v=2", 4, 8), ErrorCode::kUsage, "expected options of v-min (limit)");
  EXPECT_ERROR(makeSchedule("v-half:limit=2.5", 4, 8), ErrorCode::kUsage,
               "found \"limit=2.5\"; expected options of v-half (limit), each an integer");
}

}  // namespace
}  // namespace pipeshard
