// Thousands of small problems: the solver proves an optimum that costs what trying everything finds, or that
// there is none.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "sharding/solver/evaluate.h"
#include "tests/sharding/solver/random_problem.h"

namespace pipeshard {
namespace {

void compare(const SolverProblem& problem, const SolverOptions& options, const std::string& what) {
  SCOPED_TRACE(what);
  const std::optional<Int128> expected = bruteForce(problem);
  const SolverSolution solution = solve(problem, options);
  ASSERT_EQ(solution.feasible, expected.has_value());
  if (!expected) {
    ASSERT_TRUE(solution.infeasibility.has_value());
    EXPECT_TRUE(solution.infeasibility->proven);
    EXPECT_TRUE(solution.choice.empty());
    return;
  }
  const SolverEvaluation evaluation = evaluate(problem, solution.choice);
  EXPECT_TRUE(evaluation.feasible);
  EXPECT_TRUE(evaluation.cost == solution.cost);
  EXPECT_TRUE(solution.cost == *expected) << fmt::format("{} instead of {}", solution.cost, *expected);
  EXPECT_TRUE(solution.optimal);
  EXPECT_TRUE(solution.lower_bound == solution.cost)
      << fmt::format("{} instead of {}", solution.lower_bound, solution.cost);
  EXPECT_FALSE(solution.cut_short);
}

struct Family {
  const char* name;
  RandomProblemOptions options;
  int count;
};

void PrintTo(const Family& family, std::ostream* stream) { *stream << family.name; }

class BruteForce : public testing::TestWithParam<Family> {};

TEST_P(BruteForce, AgreesOnTheCost) {
  const Family& family = GetParam();
  solver::Random random(2025);
  for (int i = 0; i < family.count && !HasFatalFailure() && !HasNonfatalFailure(); ++i) {
    RandomProblemOptions options = family.options;
    options.nodes = 1 + static_cast<int>(random.below(options.nodes));
    options.edges = random.below(options.edges + 1);
    options.tightness *= random.unit();
    compare(randomProblem(options, random), {.seed = static_cast<uint64_t>(i), .threads = 1 + i % 2},
            fmt::format("problem {}", i));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Families, BruteForce,
    testing::Values(
        Family{"NoMemory", {.nodes = 8, .most_strategies = 4, .edges = 16, .memory = false}, 600},
        Family{"Memory", {.nodes = 8, .most_strategies = 4, .edges = 12}, 1200},
        Family{"TightMemory",
               {.nodes = 9, .most_strategies = 3, .edges = 12, .forbidden = 0.02, .tightness = 0.3},
               800},
        Family{"Ties", {.nodes = 8, .most_strategies = 4, .edges = 14, .most_cost = 1}, 600},
        Family{"ManyForbidden", {.nodes = 7, .most_strategies = 4, .edges = 10, .forbidden = 0.45}, 800},
        Family{"Followers",
               {.nodes = 9, .most_strategies = 3, .edges = 12, .forbidden = 0.02, .equal_labels = 0.5},
               800},
        Family{"Dense",
               {.nodes = 7, .most_strategies = 5, .edges = 40, .forbidden = 0.02, .most_cost = 1000},
               300},
        Family{"LargeCosts",
               {.nodes = 7, .most_strategies = 4, .edges = 12, .most_cost = 50'000'000'000'000},
               400},
        Family{"WideEdges", {.nodes = 7, .most_strategies = 3, .edges = 8, .wide_edges = 0.5}, 800}),
    [](const testing::TestParamInfo<Family>& tested) { return tested.param.name; });

}  // namespace
}  // namespace pipeshard
