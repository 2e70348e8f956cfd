#include "partition/search/plan_search.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "partition/families/make_schedule.h"
#include "partition/search/assignment_request.h"
#include "partition/search/equal_stages.h"
#include "partition/search/plan_prediction.h"
#include "partition/search/search_memory.h"
#include "partition/search/stage_assignment.h"
#include "tests/expect_error.h"
#include "tests/partition/search/stage_cost_tables.h"

namespace pipeshard {
namespace {

using ::testing::HasSubstr;

struct Instance {
  uint64_t seed = 1;
  int layers = 4;
  int nodes = 1;
  int devices = 4;
  int64_t memory_bytes = INT64_MAX;
};

// The request, and the costs of every number of microbatches, made once.
class SearchProblem {
 public:
  explicit SearchProblem(const Instance& instance)
      : instance_(instance), cluster_(uniformCluster(instance.nodes, instance.devices)) {}

  PlanSearchRequest request(std::vector<int64_t> microbatches = {1, 2, 4, 8, 16}) {
    PlanSearchRequest request{.cluster = cluster_, .microbatches = std::move(microbatches), .costs = {}};
    request.costs = [this](int64_t count) { return costs(count); };
    return request;
  }
  CountedCosts costs(int64_t microbatches) {
    std::shared_ptr<CostTable>& table = tables_[microbatches];
    const CostTable::Size size{instance_.layers, instance_.memory_bytes, microbatches};
    if (!table) table = std::make_shared<CostTable>(instance_.seed, size);
    return countedCosts(table);
  }
  const Cluster& cluster() const { return cluster_; }

 private:
  Instance instance_;
  Cluster cluster_;
  std::map<int64_t, std::shared_ptr<CostTable>> tables_;
};

std::string text(const PredictedPlan& plan) {
  std::string result = scheduleSpecToString(plan.schedule) + " of " + std::to_string(plan.microbatches) +
                       " in " + std::to_string(plan.step_ns) + ":";
  for (const AssignedStage& stage : plan.stages) {
    result += " " + std::to_string(stage.first_layer) + ".." + std::to_string(stage.last_layer) + "@" +
              std::to_string(stage.submesh.first_device) + "x" + std::to_string(stage.submesh.deviceCount()) +
              "/" + std::to_string(stage.option.config);
  }
  return result;
}

// All contiguous stages on all submeshes without gaps, each with every option: the shortest simulated step.
int64_t bruteForce(const CountedCosts& costs, const Cluster& cluster, int64_t microbatches,
                   std::vector<AssignedStage>& stages, int device) {
  int64_t best = INT64_MAX;
  const int first = stages.empty() ? 0 : stages.back().last_layer + 1;
  if (first == costs.costs->layers()) {
    const std::optional<PredictedPlan> plan = predictPlan(costs, stages, microbatches, {"1f1b"}, {});
    return plan && fitsDevices(*plan, *costs.costs) ? plan->step_ns : INT64_MAX;
  }
  if (device >= cluster.deviceCount()) return best;
  for (const Submesh& submesh : submeshesAt(cluster, device)) {
    for (int last = first; last < costs.costs->layers(); ++last) {
      for (const StageOption& option : costs.costs->options(first, last, submesh)) {
        stages.push_back({first, last, submesh, option, 0});
        best =
            std::min(best, bruteForce(costs, cluster, microbatches, stages, device + submesh.deviceCount()));
        stages.pop_back();
      }
    }
  }
  return best;
}

TEST(PlanSearch, IsNoWorseThanAllPlansSimulatedWithin2PercentAndMostlyEqual) {
  int equal = 0;
  constexpr int kInstances = 12;
  for (uint64_t seed = 1; seed <= kInstances; ++seed) {
    SearchProblem problem({seed, 3, 1, 3, seed % 2 == 0 ? int64_t{600} : INT64_MAX});
    PlanSearchRequest request = problem.request({2, 4, 8});
    request.schedule = {"1f1b"};
    const PlanSearchResult result = searchPlans(request);
    int64_t best = INT64_MAX;
    for (const int64_t count : request.microbatches) {
      std::vector<AssignedStage> stages;
      best = std::min(best, bruteForce(problem.costs(count), problem.cluster(), count, stages, 0));
    }
    ASSERT_EQ(result.plans.empty(), best == INT64_MAX) << seed;
    if (result.plans.empty()) continue;
    EXPECT_LE(best, result.plans[0].step_ns);
    EXPECT_LE(result.plans[0].step_ns, best + best / 50) << seed << " " << text(result.plans[0]);
    equal += result.plans[0].step_ns == best ? 1 : 0;
  }
  EXPECT_GE(equal, kInstances * 3 / 4);
}

// So much of other costs.
class PercentOf : public OtherStageCosts {
 public:
  PercentOf(std::shared_ptr<const StageCosts> costs, int64_t percent)
      : OtherStageCosts(*costs), kept_(std::move(costs)), percent_(percent) {}
  const std::vector<StageOption>& options(int first, int last, const Submesh& submesh) const override {
    std::vector<StageOption>& less = made_[{first, last, submesh}];
    if (!less.empty()) return less;
    less = costs_.options(first, last, submesh);
    for (StageOption& option : less) option.pass_ns = option.pass_ns * percent_ / 100;
    return less;
  }

 private:
  std::shared_ptr<const StageCosts> kept_;
  int64_t percent_;
  mutable std::map<std::tuple<int, int, Submesh>, std::vector<StageOption>> made_;
};

TEST(PlanSearch, NumbersOfMicrobatchesThatCannotBeBetterAreLeftOut) {
  int left_out = 0;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SearchProblem problem({seed, 5, 1, 4, seed % 2 == 0 ? int64_t{900} : INT64_MAX});
    bool bounded = false;
    PlanSearchRequest request = problem.request({2, 3, 4, 5, 6, 8, 12, 16});
    request.costs = [&](int64_t count) {
      CountedCosts costs = problem.costs(count);
      const std::shared_ptr<const StageCosts> table = costs.costs;
      const int64_t percent = 100 + 12 * (count % 3);
      costs.costs = std::make_shared<PercentOf>(table, percent);
      if (bounded) costs.least = std::make_shared<PercentOf>(table, percent - 2);
      return costs;
    };
    const PlanSearchResult all = searchPlans(request);
    bounded = true;
    const PlanSearchResult some = searchPlans(request);
    ASSERT_EQ(some.plans.empty(), all.plans.empty()) << seed;
    if (all.plans.empty()) continue;
    EXPECT_EQ(text(some.plans[0]), text(all.plans[0])) << seed;
    ASSERT_EQ(some.tried.size(), all.tried.size());
    for (size_t i = 0; i < all.tried.size(); ++i) {
      if (some.tried[i].objective_ns == all.tried[i].objective_ns) continue;
      EXPECT_EQ(some.tried[i].objective_ns, 0);
      EXPECT_THAT(some.tried[i].reason, HasSubstr("no better"));
      ++left_out;
    }
  }
  EXPECT_GT(left_out, 0);
}

TEST(PlanSearch, EveryPlanFitsAndIsWhatItsPredictionSays) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SearchProblem problem({seed, 6, 2, 2, 900});
    const PlanSearchResult result = searchPlans(problem.request());
    for (size_t i = 0; i < result.plans.size(); ++i) {
      const PredictedPlan& plan = result.plans[i];
      const CountedCosts costs = problem.costs(plan.microbatches);
      const std::optional<PredictedPlan> again =
          predictPlan(costs, plan.stages, plan.microbatches, plan.schedule, {});
      ASSERT_TRUE(again) << text(plan);
      EXPECT_EQ(again->step_ns, plan.step_ns);
      EXPECT_TRUE(fitsDevices(plan, *costs.costs)) << text(plan);
      EXPECT_LE(result.plans[i > 0 ? i - 1 : 0].step_ns, plan.step_ns);
      EXPECT_EQ(plan.stages.front().first_layer, 0);
      EXPECT_EQ(plan.stages.back().last_layer, 5);
    }
  }
}

TEST(PlanSearch, ManyThreadsFindTheSame) {
  SearchProblem problem({3, 8, 2, 4, 1500});
  PlanSearchRequest request = problem.request();
  const PlanSearchResult one = searchPlans(request);
  request.threads = 2;
  const PlanSearchResult two = searchPlans(request);
  ASSERT_FALSE(one.plans.empty());
  ASSERT_EQ(one.plans.size(), two.plans.size());
  for (size_t i = 0; i < one.plans.size(); ++i) EXPECT_EQ(text(one.plans[i]), text(two.plans[i]));
  EXPECT_EQ(one.neighbours.size(), two.neighbours.size());
}

// A bound from other numbers of microbatches prunes, but never the best.
TEST(PlanSearch, OverAllNumbersOfMicrobatchesIsTheBestOfEach) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SearchProblem problem({seed, 5, 1, 4});
    PlanSearchRequest request = problem.request();
    request.schedule = {"gpipe"};
    request.neighbours = false;
    request.first = 2;
    const PlanSearchResult all = searchPlans(request);
    int64_t best = INT64_MAX;
    for (const CountTried& tried : all.tried) {
      request.microbatches = {tried.microbatches};
      request.first = 0;
      const PlanSearchResult alone = searchPlans(request);
      if (!alone.plans.empty()) best = std::min(best, alone.plans[0].step_ns);
    }
    ASSERT_FALSE(all.plans.empty());
    EXPECT_EQ(all.plans[0].step_ns, best) << seed;
    EXPECT_GE(all.tried.size(), 3u);
  }
}

// Of equal objective within an eighth: others are not simulated.
TEST(PlanSearch, IsNoWorseThanEqualStages) {
  int compared = 0;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SearchProblem problem({seed, 7, 2, 4, seed % 2 == 0 ? int64_t{2000} : INT64_MAX});
    PlanSearchRequest request = problem.request({2, 4, 8, 16});
    request.schedule = {"1f1b"};
    request.exposed_transfers = true;
    request.neighbours = false;
    const PlanSearchResult result = searchPlans(request);
    if (result.plans.empty()) continue;
    int64_t least = INT64_MAX;
    for (const CountTried& tried : result.tried)
      if (tried.objective_ns > 0) least = std::min(least, tried.objective_ns);
    for (const CountTried& tried : result.tried) {
      const CountedCosts costs = problem.costs(tried.microbatches);
      for (const Assignment& equal :
           equalStages(assignmentRequest(request, *costs.costs, tried.microbatches))) {
        ASSERT_EQ(problem.cluster().deviceCount() % std::ssize(equal.stages), 0);
        if (equal.objective_ns > least + least / 8) continue;
        const auto plan = predictPlan(costs, equal.stages, tried.microbatches, {"1f1b"},
                                      {.updates = 1, .exposed_transfers = true});
        if (!plan || !fitsDevices(*plan, *costs.costs)) continue;
        EXPECT_LE(result.plans[0].step_ns, plan->step_ns) << seed << " " << text(*plan);
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 5);
}

TEST(PlanSearch, EqualStagesHaveAboutEquallyManyLayers) {
  SearchProblem problem({1, 7, 2, 4, INT64_MAX});
  const CountedCosts costs = problem.costs(8);
  PlanSearchRequest request = problem.request({8});
  request.least_stages = request.most_stages = 4;
  const std::vector<Assignment> found = equalStages(assignmentRequest(request, *costs.costs, 8));
  ASSERT_FALSE(found.empty());
  for (const Assignment& assignment : found) {
    std::vector<std::array<int, 4>> stages;
    for (const AssignedStage& stage : assignment.stages)
      stages.push_back(
          {stage.first_layer, stage.last_layer, stage.submesh.first_device, stage.submesh.deviceCount()});
    EXPECT_EQ(stages,
              (std::vector<std::array<int, 4>>{{0, 0, 0, 2}, {1, 2, 2, 2}, {3, 4, 4, 2}, {5, 6, 6, 2}}));
  }
}

TEST(PlanSearch, OtherWaysAreAskedForWhereNothingFits) {
  SearchProblem problem({3, 4, 1, 4, 10}), roomy({3, 4, 1, 4, INT64_MAX});
  PlanSearchRequest request = problem.request({4, 8});
  EXPECT_TRUE(searchPlans(request).plans.empty());
  request.costs_in_need = [&](int64_t count) { return roomy.costs(count); };
  EXPECT_FALSE(searchPlans(request).plans.empty());
  const int64_t usual = searchPlans(roomy.request({4, 8})).plans.at(0).step_ns;
  EXPECT_EQ(searchPlans(request).plans.at(0).step_ns, usual);
}

TEST(PlanSearch, NoNeighbourOfTheBestPlanIsBetter) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SearchProblem problem({seed, 6, 1, 4, seed % 2 == 0 ? int64_t{1200} : INT64_MAX});
    const PlanSearchResult result = searchPlans(problem.request());
    ASSERT_FALSE(result.plans.empty());
    bool cut = false;
    for (const Neighbour& neighbour : result.neighbours) {
      const bool fits = neighbour.about != "microbatches" && neighbour.step_ns > 0;
      EXPECT_GE(fits ? neighbour.step_ns : INT64_MAX, result.plans[0].step_ns) << neighbour.about;
      EXPECT_NE(neighbour.step_ns == 0, neighbour.why.empty()) << neighbour.about;
      cut = cut || neighbour.about.starts_with("cut ");
    }
    EXPECT_EQ(cut, result.plans[0].stages.size() > 1) << text(result.plans[0]);
  }
}

TEST(PlanSearch, AScheduleThatIsNamedIsTheOnlyOne) {
  SearchProblem problem({5, 8, 1, 4});
  for (const std::string schedule : {"gpipe", "zb-h1", "interleaved:v=2", "zbv", "pipedream"}) {
    PlanSearchRequest request = problem.request();
    request.schedule = parseSchedule(schedule);
    request.least_stages = 2;
    if (schedule == "pipedream") request.microbatches = {1};
    const PlanSearchResult result = searchPlans(request);
    ASSERT_FALSE(result.plans.empty()) << schedule;
    for (const PredictedPlan& plan : result.plans) EXPECT_EQ(plan.schedule, request.schedule);
  }
  PlanSearchRequest request = problem.request();
  request.schedule = {"magic"};
  EXPECT_ERROR(searchPlans(request), ErrorCode::kUsage, "magic");
}

TEST(PlanSearch, SchedulesThatFillTheBubbleAreFoundWhereTheyPay) {
  SearchProblem problem({7, 8, 1, 4});
  PlanSearchRequest request = problem.request({4});
  const PlanSearchResult free = searchPlans(request);
  request.schedule = {"1f1b"};
  const PlanSearchResult plain = searchPlans(request);
  ASSERT_FALSE(free.plans.empty());
  EXPECT_LE(free.plans[0].step_ns, plain.plans[0].step_ns);
  const auto other = [](const PredictedPlan& plan) { return plan.schedule != ScheduleSpec{"1f1b"}; };
  EXPECT_TRUE(std::any_of(free.plans.begin(), free.plans.end(), other));
}

TEST(PlanSearch, AnInterruptedSearchIsMarked) {
  SearchProblem problem({2, 8, 1, 4});
  std::atomic<bool> interrupted = false;
  PlanSearchRequest request = problem.request();
  request.interrupted = &interrupted;
  // Interrupted when stages have been assigned for the first number of microbatches.
  int phases = 0;
  request.progress = [&](const std::string&) { interrupted = ++phases >= 3; };
  const PlanSearchResult result = searchPlans(request);
  EXPECT_FALSE(result.complete);
  ASSERT_FALSE(result.plans.empty());
  EXPECT_LE(result.tried.size(), 2u);
  interrupted = true;
  request.progress = {};
  EXPECT_TRUE(searchPlans(request).plans.empty());
}

TEST(PlanSearch, SaysTheLeastMemoryWhereNothingFits) {
  const Instance instance{4, 6, 1, 4, 20};
  SearchProblem problem(instance);
  const PlanSearchResult none = searchPlans(problem.request());
  EXPECT_TRUE(none.plans.empty());
  for (const CountTried& tried : none.tried) EXPECT_THAT(tried.reason, HasSubstr("memory"));
  const LeastMemory least = leastMemory(problem.request());
  ASSERT_FALSE(least.stages.empty());
  const auto with = [&](int64_t bytes) {
    SearchProblem other({instance.seed, instance.layers, instance.nodes, instance.devices, bytes});
    return !searchPlans(other.request()).plans.empty();
  };
  EXPECT_TRUE(with(least.bytes));
  EXPECT_FALSE(with(least.bytes - least.bytes / 50 - 1));
}

TEST(PlanSearch, ThrowsTheFirstReasonWhereNoNumberOfMicrobatchesCanBe) {
  SearchProblem problem({1, 4, 1, 2});
  PlanSearchRequest request = problem.request({1, 2});
  request.first = 1;
  request.costs = [](int64_t count) -> CountedCosts {
    fail(ErrorCode::kBadModel, "cannot be cut into {}", count);
  };
  EXPECT_ERROR(searchPlans(request), ErrorCode::kBadModel, "cannot be cut into 2");
  request.costs = [](int64_t) -> CountedCosts { fail(ErrorCode::kInternal, "a bug"); };
  EXPECT_ERROR(searchPlans(request), ErrorCode::kInternal, "a bug");
}

}  // namespace
}  // namespace pipeshard
