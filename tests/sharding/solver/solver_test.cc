// What solve() promises beside the optimum: bounds, limits, determinism, and reasons.

#include "sharding/solver/solver.h"

#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "sharding/solver/evaluate.h"
#include "tests/expect_error.h"
#include "tests/sharding/solver/random_problem.h"

namespace pipeshard {
namespace {

SolverProblem example() {
  SolverProblem problem;
  problem.nodes = {{.from = 0, .to = 2, .costs = {10, 0}, .usages = {1, 8}},
                   {.from = 1, .to = 3, .costs = {0, 3}, .usages = {4, 2}}};
  problem.edges = {{.nodes = {0, 1}, .costs = {0, 5, 7, 0}}};
  problem.usage_limit = 9;
  return problem;
}

TEST(Solver, SolvesTheExampleOfTheHeader) {
  const SolverSolution solution = solve(example());
  EXPECT_EQ(solution.choice, (std::vector<int32_t>{0, 0}));
  EXPECT_TRUE(solution.cost == 10 && solution.lower_bound == 10 && solution.optimal && solution.feasible);
  EXPECT_EQ(solution.gap(), 0);
  SolverProblem roomy = example();
  roomy.usage_limit.reset();
  EXPECT_EQ(solve(roomy).choice, (std::vector<int32_t>{1, 1}));
}

TEST(Solver, EvaluatesChoices) {
  const SolverEvaluation evaluation = evaluate(example(), {1, 1});
  EXPECT_TRUE(evaluation.cost == 3 && evaluation.peak_usage == 10);
  EXPECT_EQ(evaluation.peak_time, 1);
  EXPECT_FALSE(evaluation.feasible);
  EXPECT_FALSE(evaluation.forbidden);
}

// Sums beyond 64 bits are exact in the checker, and the bound stays below the cost.
TEST(Solver, AddsInMoreThan64Bits) {
  SolverProblem problem;
  for (int i = 0; i < 40; ++i)
    problem.nodes.push_back({.from = 0, .to = 1, .costs = {kForbiddenCost - 1 - i, kForbiddenCost - 1}});
  const SolverSolution solution = solve(problem);
  Int128 expected = 0;
  for (int i = 0; i < 40; ++i) expected += kForbiddenCost - 1 - i;
  EXPECT_TRUE(solution.cost == expected) << fmt::format("{}", solution.cost);
  EXPECT_TRUE(solution.lower_bound <= expected);
  EXPECT_LT(solution.gap(), 1e-9);
}

TEST(Solver, SolvesAnEmptyProblem) {
  const SolverSolution solution = solve({});
  EXPECT_TRUE(solution.feasible && solution.optimal && solution.cost == 0);
}

TEST(Solver, SaysWhichMemoryIsShortBeforeAnySearch) {
  SolverProblem problem = example();
  problem.usage_limit = 2;
  const SolverSolution solution = solve(problem);
  ASSERT_TRUE(solution.infeasibility.has_value());
  const SolverInfeasibility& reason = *solution.infeasibility;
  EXPECT_EQ(reason.reason, SolverInfeasibility::Reason::kMemory);
  EXPECT_TRUE(reason.proven);
  EXPECT_EQ(reason.time, 1);
  EXPECT_EQ(reason.nodes, (std::vector<int32_t>{1, 0}));
  EXPECT_TRUE(reason.usage == 3 && reason.excess == 1);
  EXPECT_EQ(describe(reason),
            "too little memory: at time 1, 3 bytes are live where 2 fit (1 over), in nodes 1, 0");
}

// Each node alone fits with its smallest strategy, but those forbid each other.
TEST(Solver, SaysWhichMemoryIsShortAfterSearch) {
  SolverProblem problem;
  for (int i = 0; i < 3; ++i)
    problem.nodes.push_back({.from = 0, .to = 4, .costs = {0, 0, 0}, .usages = {1, 5, 6}});
  for (const auto& [a, b] : {std::pair{0, 1}, std::pair{1, 2}, std::pair{0, 2}}) {
    problem.edges.push_back({.nodes = {a, b}, .costs = {kForbiddenCost, 0, 0, 0, 0, 0, 0, 0, 0}});
  }
  problem.usage_limit = 10;
  const SolverSolution solution = solve(problem);
  EXPECT_FALSE(solution.feasible);
  ASSERT_TRUE(solution.infeasibility.has_value());
  EXPECT_EQ(solution.infeasibility->reason, SolverInfeasibility::Reason::kMemory);
  EXPECT_TRUE(solution.infeasibility->proven);
  EXPECT_TRUE(solution.infeasibility->usage == 11 && solution.infeasibility->excess == 1);
  problem.usage_limit = 11;
  EXPECT_TRUE(solve(problem).optimal);
}

TEST(Solver, SaysThatEverythingIsForbidden) {
  SolverProblem problem = example();
  problem.edges.push_back({.nodes = {0, 1}, .costs = std::vector<int64_t>(4, kForbiddenCost)});
  const SolverSolution solution = solve(problem);
  ASSERT_TRUE(solution.infeasibility.has_value());
  EXPECT_EQ(solution.infeasibility->reason, SolverInfeasibility::Reason::kForbidden);
  EXPECT_TRUE(solution.infeasibility->proven);
}

TEST(Solver, RefusesMalformedProblems) {
  const auto expect = [](auto change, const std::string& message) {
    SolverProblem problem = example();
    change(problem);
    EXPECT_ERROR(solve(problem), ErrorCode::kConfiguration, message);
  };
  expect([](SolverProblem& p) { p.nodes[1].costs.clear(); }, "node 1 has no strategy");
  expect([](SolverProblem& p) { p.nodes[0].usages.pop_back(); }, "node 0 has 2 costs and 1 usages");
  expect([](SolverProblem& p) { p.nodes[0].costs[0] = -1; }, "node 0 has a negative cost");
  expect([](SolverProblem& p) { p.edges[0].nodes[1] = 2; }, "edge 0 joins node 2, but there are 2 nodes");
  expect([](SolverProblem& p) { p.edges[0].costs.pop_back(); },
         "edge 0 has 3 costs; its nodes have 4 combinations");
  expect([](SolverProblem& p) { p.edges[0].nodes.clear(); }, "edge 0 joins no node");
  expect([](SolverProblem& p) { p.usage_limit = -1; }, "the usage limit is -1");
  const SolverOptions endless{.seconds = -1, .step_limit = -1};
  const std::vector<int32_t> too_few{0}, too_large{0, 2};
  EXPECT_ERROR(solve(example(), endless), ErrorCode::kConfiguration, "neither a limit of seconds nor one");
  EXPECT_ERROR(evaluate(example(), too_few), ErrorCode::kConfiguration,
               "the choice has 1 entries; there are 2 nodes");
  EXPECT_ERROR(evaluate(example(), too_large), ErrorCode::kConfiguration,
               "node 1 has 2 strategies; strategy 2 was chosen");
}

void expectEqual(const SolverSolution& a, const SolverSolution& b) {
  EXPECT_EQ(a.choice, b.choice);
  EXPECT_TRUE(a.cost == b.cost && a.lower_bound == b.lower_bound);
  EXPECT_EQ(a.steps, b.steps);
}

TEST(Solver, IsDeterministicForASeedAndAStepLimit) {
  solver::Random random(5);
  const SolverProblem problem = ladder(100, 16, true, random);
  for (const int64_t limit : {20, 200}) {
    const SolverOptions options{.step_limit = limit, .seed = 3, .threads = 1};
    SolverOptions threaded = options;
    threaded.threads = 2;
    const SolverSolution first = solve(problem, options);
    EXPECT_TRUE(first.feasible);
    EXPECT_FALSE(first.cut_short);
    expectEqual(first, solve(problem, options));
    expectEqual(first, solve(problem, threaded));
    EXPECT_LT(first.steps, 4 * limit + 100);
  }
}

TEST(Solver, ObeysTheClockAndSaysSo) {
  solver::Random random(6);
  const SolverProblem problem = ladder(600, 20, true, random);
  const SolverSolution solution = solve(problem, {.seconds = 0.3, .step_limit = -1});
  EXPECT_TRUE(solution.cut_short || solution.optimal);
  EXPECT_LT(solution.seconds, 3);
  EXPECT_TRUE(!solution.feasible || solution.lower_bound <= solution.cost);
}

TEST(Solver, ProvesTheOptimumOfALayerWithAndWithoutMemory) {
  for (const bool memory : {false, true}) {
    solver::Random random(7);
    for (int i = 0; i < 3; ++i) {
      const SolverProblem problem = ladder(38, 20, memory, random);
      const SolverSolution solution = solve(problem);
      EXPECT_TRUE(solution.optimal) << fmt::format("{} of {}", solution.cost, solution.lower_bound);
      EXPECT_TRUE(evaluate(problem, solution.choice).feasible);
    }
  }
}

TEST(Solver, ProvesTheOptimumOfThousandsOfNodesByElimination) {
  solver::Random random(8);
  const SolverSolution solution = solve(ladder(1250, 20, false, random));
  EXPECT_TRUE(solution.optimal);
  EXPECT_EQ(solution.steps, 0);
}

// The same problem with its nodes, their strategies and its edges in another order.
SolverProblem shuffled(const SolverProblem& problem, solver::Random& random) {
  const auto permutation = [&](size_t size) {
    std::vector<int32_t> order(size);
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = size; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
    return order;
  };
  const std::vector<int32_t> place = permutation(problem.nodes.size());
  SolverProblem result = problem;
  std::vector<std::vector<int32_t>> labels;
  for (size_t i = 0; i < problem.nodes.size(); ++i) {
    const SolverProblem::Node& node = problem.nodes[i];
    labels.push_back(permutation(node.costs.size()));
    SolverProblem::Node& moved = result.nodes[place[i]] = node;
    for (size_t x = 0; x < node.costs.size(); ++x) {
      moved.costs[labels[i][x]] = node.costs[x];
      moved.usages[labels[i][x]] = node.usages[x];
    }
  }
  const std::vector<int32_t> edge_place = permutation(problem.edges.size());
  for (size_t i = 0; i < problem.edges.size(); ++i) {
    const SolverProblem::Edge& edge = problem.edges[i];
    SolverProblem::Edge& moved = result.edges[edge_place[i]] = edge;
    const int32_t a = edge.nodes[0], b = edge.nodes[1];
    const size_t rows = labels[a].size(), columns = labels[b].size();
    moved.nodes = {place[b], place[a]};
    for (size_t x = 0; x < rows; ++x) {
      for (size_t y = 0; y < columns; ++y)
        moved.costs[labels[b][y] * rows + labels[a][x]] = edge.costs[x * columns + y];
    }
  }
  return result;
}

// Larger than what can be tried through: every order leads to other reductions, bounds and branches, but to
// one optimum.
TEST(Solver, ProvesTheSameOptimumInAnyOrder) {
  solver::Random random(12);
  for (int i = 0; i < 12; ++i) {
    const SolverProblem problem = ladder(8 + 2 * i, 10, true, random);
    const SolverSolution first = solve(problem);
    ASSERT_TRUE(first.optimal);
    for (int j = 0; j < 3; ++j) {
      const SolverSolution other = solve(shuffled(problem, random), {.seed = static_cast<uint64_t>(j)});
      EXPECT_TRUE(other.optimal);
      EXPECT_TRUE(other.cost == first.cost) << fmt::format("ladder {}: {} and {}", i, first.cost, other.cost);
    }
  }
}

// No elimination order is cheap here: bounds and branching have to prove it.
TEST(Solver, ProvesADenseProblem) {
  solver::Random random(9);
  RandomProblemOptions options{
      .nodes = 24, .most_strategies = 6, .edges = 120, .forbidden = 0.02, .most_cost = 1000};
  const SolverProblem problem = randomProblem(options, random);
  const SolverSolution solution = solve(problem);
  EXPECT_TRUE(solution.optimal || solution.infeasibility)
      << fmt::format("{} of {}", solution.cost, solution.lower_bound);
}

// Three nodes of 40 strategies in one table, two of which another edge makes equal.
TEST(Solver, TakesALargeTableOverThreeNodes) {
  solver::Random random(11);
  SolverProblem problem;
  for (int i = 0; i < 3; ++i)
    problem.nodes.push_back({.from = 0, .to = 1, .costs = std::vector<int64_t>(40, 0)});
  SolverProblem::Edge wide{.nodes = {2, 0, 1}}, equal{.nodes = {0, 1}};
  int64_t best = kForbiddenCost;
  for (int64_t i = 0; i < 40 * 40 * 40; ++i) {
    wide.costs.push_back(1000 + random.below(1'000'000));
    if (i / 40 % 40 == i % 40) best = std::min(best, wide.costs.back());
  }
  for (int64_t i = 0; i < 40 * 40; ++i) equal.costs.push_back(i / 40 == i % 40 ? 0 : kForbiddenCost);
  problem.edges = {wide, equal};
  const SolverSolution solution = solve(problem);
  EXPECT_TRUE(solution.optimal && solution.cost == best) << fmt::format("{}", solution.cost);
  problem.nodes[0].costs.push_back(0);
  for (int i = 0; i < 40 * 40; ++i) problem.edges[0].costs.push_back(0);
  EXPECT_ERROR(solve(problem), ErrorCode::kConfiguration,
               "edge 0 joins 3 nodes with more than 65536 combinations");
}

TEST(Solver, ReportsProgress) {
  solver::Random random(10);
  const SolverProblem problem = ladder(100, 12, true, random);
  Int128 last_bound = 0;
  bool feasible = false;
  const SolverSolution solution =
      solve(problem, {.step_limit = 300, .progress = [&](const SolverProgress& progress) {
                        EXPECT_TRUE(progress.lower_bound >= last_bound);
                        last_bound = progress.lower_bound;
                        feasible |= progress.feasible;
                        EXPECT_TRUE(!progress.feasible || progress.lower_bound <= progress.cost);
                      }});
  EXPECT_TRUE(feasible && solution.feasible);
}

}  // namespace
}  // namespace pipeshard
