// zb-1p and zb-2p: the published bubble rates, every size, memory limits, and how near they are to the best order.
#include <random>

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "partition/schedule.h"
#include "partition/schedules/zero_bubble_automatic.h"
#include "tests/expect_error.h"
#include "tests/partition/second_simulator.h"

namespace pipeshard {
namespace {

using ::testing::Each;
using ::testing::Le;

SecondCosts secondCosts(const ScheduleCosts& c) {
  return {c.forward, c.backward_input, c.backward_weight, c.forward_memory, c.input_memory, c.weight_memory};
}

SecondSimulation simulated(const ScheduleRequest& request) {
  return secondSimulation(makeSchedule(request), secondCosts(request.costs), request.costs.transfer);
}

// Qi et al. 2023, "Zero Bubble Pipeline Parallelism", tables 5 and 6: measured times in ms, and the rate (span - work) / span of the rank
// with the longest span. Memory as its appendix models a transformer layer of width h with `heads` over 1024 tokens.
struct PublishedRow {
  int microbatches;
  int64_t forward, input, weight, transfer;  // microseconds
  double rate_1p, rate_2p;
  int64_t width, heads;
};
constexpr PublishedRow kPublished[] = {
    {24, 18522, 18086, 9337, 601, .1585, .0433, 2304, 24},  {32, 18513, 18086, 9331, 626, .1242, .0039, 2304, 24},
    {64, 18546, 18097, 9321, 762, .0674, .0026, 2304, 24},  {24, 29718, 29444, 19927, 527, .1323, .0029, 4096, 32},
    {32, 29802, 29428, 19530, 577, .1045, .0022, 4096, 32}, {64, 29935, 29621, 19388, 535, .0554, .0010, 4096, 32},
};

TEST(AutomaticSchedules, AreAsGoodAsPublishedOrBetter) {
  for (const PublishedRow& row : kPublished) {
    const int64_t scores = 5 * row.heads * 1024;
    const ScheduleCosts costs{row.forward,    row.input, row.weight, row.transfer, 34 * row.width + scores, -(2 * row.width + scores),
                              -32 * row.width};
    for (const int shares : {1, 2}) {
      const SecondSimulation result = simulated({fmt::format("zb-{}p", shares), 8, row.microbatches, costs});
      const auto work = static_cast<double>(row.microbatches * (row.forward + row.input + row.weight));
      const auto span = static_cast<double>(result.longestSpan());
      EXPECT_LE((span - work) / span, (shares == 1 ? row.rate_1p : row.rate_2p) + .00005) << row.microbatches << " " << shares;
      EXPECT_THAT(result.peak_memory, Each(Le(shares * 8 * costs.forward_memory)));
      EXPECT_THAT(result.final_memory, Each(0));
    }
  }
}

TEST(AutomaticSchedules, TakeTheTimeAndMemoryOfHandMadeOrdersForEqualTimes) {
  for (const int p : {2, 3, 4, 8}) {
    for (const int m : {2 * p, 4 * p}) {
      const SecondSimulation one = simulated({"zb-1p", p, m, {}});
      EXPECT_EQ(one.makespan, 3 * m + p - 1);
      EXPECT_THAT(one.idle, Each(p - 1));
      EXPECT_THAT(one.peak_memory, Each(p));
      const SecondSimulation two = simulated({"zb-2p", p, m, {}});
      EXPECT_EQ(two.makespan, 3 * m + p - 1);
      EXPECT_EQ(two.longestSpan(), 3 * m);
      EXPECT_THAT(two.peak_memory, Each(Le(2 * p)));
    }
  }
}

// By rank and position; where every pass starts is checked by the published rates.
TEST(AutomaticSchedules, HaveTheTimelinesOfTheirHeader) {
  const auto text = [](const std::vector<Action>& order) {
    std::string result;
    for (const Action& action : order) result += (result.empty() ? "" : " ") + actionToString(action);
    return result;
  };
  EXPECT_EQ(text(makeSchedule("zb-1p", 2, 3).orders[0]), "0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2");
  EXPECT_EQ(text(makeSchedule("zb-1p", 2, 3).orders[1]), "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2");
  EXPECT_EQ(text(makeSchedule("zb-2p", 2, 3).orders[0]), "0F0 0F1 0F2 0I0 0W0 0I1 0W1 0I2 0W2");
  EXPECT_EQ(text(makeSchedule("zb-2p", 2, 3).orders[1]), "1F0 1I0 1F1 1I1 1F2 1I2 1W0 1W1 1W2");
}

TEST(AutomaticSchedules, EverySizeRunsWithinItsMemory) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 4 * p; ++m) {
      for (const int shares : {1, 2}) {
        const ScheduleRequest request{fmt::format("zb-{}p", shares), p, m, {}};
        const SecondSimulation result = simulated(request);  // made, so verified
        ASSERT_FALSE(result.stuck);
        EXPECT_THAT(result.peak_memory, Each(Le(shares * p))) << p << " " << m;
        EXPECT_THAT(result.final_memory, Each(0));
        EXPECT_GE(result.longestSpan(), automaticSpanBound({p, m, 1, {}, {}})) << p << " " << m;
      }
    }
  }
}

ScheduleCosts randomCosts(std::mt19937& random) {
  const auto upTo = [&](int most) { return std::uniform_int_distribution<int64_t>(0, most)(random); };
  ScheduleCosts costs{1 + upTo(9), 1 + upTo(9), 1 + upTo(9), upTo(4), 1 + upTo(5), 0, 0};
  costs.input_memory = upTo(4) == 0 ? upTo(3) : -upTo(static_cast<int>(costs.forward_memory));
  costs.weight_memory = -costs.forward_memory - costs.input_memory;
  return costs;
}

// Random times, transfers, memory models and limits: never stuck, never above the limit, never better than possible; and never worse
// than the hand-made order whose memory fits.
TEST(AutomaticSchedules, HoldTheirLimitForGivenCosts) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const int p = 1 + static_cast<int>(random() % 6), m = 1 + static_cast<int>(random() % 14);
    const ScheduleCosts costs = randomCosts(random);
    const int64_t smallest = 1 + (std::max<int64_t>(costs.input_memory, 0) + costs.forward_memory - 1) / costs.forward_memory;
    const int64_t limit = smallest + static_cast<int64_t>(random() % 8);
    const SecondSimulation result = simulated({fmt::format("zb-2p:limit={}", limit), p, m, costs});
    ASSERT_FALSE(result.stuck);
    EXPECT_THAT(result.peak_memory, Each(Le(limit * costs.forward_memory))) << round;
    EXPECT_GE(result.longestSpan(), automaticSpanBound({p, m, 1, {}, costs})) << round;
    for (const char* name : {"zb-h1", "zb-h2"}) {
      const SecondSimulation made = secondSimulation(makeSchedule(name, p, m), secondCosts(costs), costs.transfer);
      const bool fits = *std::max_element(made.peak_memory.begin(), made.peak_memory.end()) <= limit * costs.forward_memory;
      if (!fits) continue;
      EXPECT_LE(result.longestSpan(), made.longestSpan()) << round << " " << name;
    }
  }
}

TEST(AutomaticSchedules, RefuseWhatTheyCannotDo) {
  EXPECT_ERROR(makeSchedule("zb-1p:limit=0", 4, 8), ErrorCode::kConfiguration,
               "found a memory limit of 0 microbatches' activations; expected at least 1");
  const ScheduleCosts growing{1, 1, 1, 0, 2, 3, -5};  // I takes 3 on top of F's 2
  EXPECT_ERROR(makeSchedule(ScheduleRequest{"zb-1p", 2, 8, growing}), ErrorCode::kConfiguration, "expected at least 3");
  EXPECT_NO_THROW(makeSchedule(ScheduleRequest{"zb-1p:limit=3", 2, 8, growing}));
  EXPECT_ERROR(makeSchedule(ScheduleRequest{"zb-1p", 2, 8, {1, 1, 1, 0, 2, 0, -1}}), ErrorCode::kConfiguration, "and a sum of 0");
  EXPECT_ERROR(makeSchedule(ScheduleRequest{"zb-1p", 2, 8, {-1, 1, 1, 0, 1, 0, -1}}), ErrorCode::kConfiguration, "found a time of -1");
  EXPECT_ERROR(makeSchedule("zb-1p:extra=2", 4, 8), ErrorCode::kUsage, "expected options of zb-1p (limit)");
  // A limit that all microbatches fit in is none.
  EXPECT_EQ(makeSchedule("zb-2p:limit=1000000000000000000", 3, 4).orders, makeSchedule("zb-2p:limit=4", 3, 4).orders);
}

TEST(AutomaticSchedules, DependOnTheRequestAlone) {
  const ScheduleCosts costs{29718, 29444, 19927, 527, 303104, -172032, -131072};
  for (const char* name : {"zb-1p", "zb-2p", "v-half", "v-min"}) {
    EXPECT_EQ(makeSchedule(ScheduleRequest{name, 8, 24, costs}).orders, makeSchedule(ScheduleRequest{name, 8, 24, costs}).orders);
  }
}

}  // namespace
}  // namespace pipeshard
