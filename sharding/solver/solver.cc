#include "sharding/solver/solver.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "ir/base/error.h"
#include "sharding/solver/evaluate.h"
#include "sharding/solver/reduce.h"
#include "sharding/solver/search.h"

namespace pipeshard {

namespace {

using Clock = std::chrono::steady_clock;
constexpr double kEntriesPerStep = 250e3;

double secondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The nodes that hold bytes at a time, the largest first, under a choice or (empty) at their least.
std::vector<int32_t> holders(const SolverProblem& problem, int64_t time, const std::vector<int32_t>& choice) {
  std::vector<std::pair<int64_t, int32_t>> sizes;
  for (size_t i = 0; i < problem.nodes.size(); ++i) {
    const SolverProblem::Node& node = problem.nodes[i];
    if (node.usages.empty() || time < node.from || time >= node.to) continue;
    const int64_t usage =
        choice.empty() ? *std::min_element(node.usages.begin(), node.usages.end()) : node.usages[choice[i]];
    if (usage > 0) sizes.emplace_back(-usage, i);
  }
  std::sort(sizes.begin(), sizes.end());
  std::vector<int32_t> nodes;
  for (const auto& [size, node] : sizes) nodes.push_back(node);
  return nodes;
}

SolverInfeasibility memoryShortage(const SolverProblem& problem, const std::vector<int32_t>& choice,
                                   bool proven) {
  const SolverEvaluation evaluation = evaluate(problem, choice);
  return {.reason = SolverInfeasibility::Reason::kMemory,
          .proven = proven,
          .time = evaluation.peak_time,
          .nodes = holders(problem, evaluation.peak_time, choice),
          .usage = evaluation.peak_usage,
          .excess = evaluation.peak_usage - *problem.usage_limit};
}

// A choice that meets nothing forbidden and needs few bytes: what comes closest when memory is short.
SolverSolution solveForLeastBytes(const SolverProblem& problem, const SolverOptions& options) {
  SolverProblem relaxed = problem;
  relaxed.usage_limit.reset();
  for (SolverProblem::Node& node : relaxed.nodes) {
    for (size_t i = 0; i < node.costs.size(); ++i) {
      if (node.costs[i] < kForbiddenCost)
        node.costs[i] =
            node.usages.empty() || node.from >= node.to ? 0 : std::min(node.usages[i], kForbiddenCost - 1);
    }
  }
  for (SolverProblem::Edge& edge : relaxed.edges) {
    for (int64_t& cost : edge.costs) cost = cost < kForbiddenCost ? 0 : cost;
  }
  SolverOptions little = options;
  little.step_limit = 500;
  little.seconds = options.seconds < 0 ? -1 : std::max(0.2, 0.1 * options.seconds);
  little.progress = {};
  return solve(relaxed, little);
}

// Why reduction alone found that there is no choice, if it was a row of memory.
std::optional<SolverInfeasibility> shortRow(const SolverProblem& problem, const solver::Model& model) {
  if (model.culprit_row < 0) return std::nullopt;
  const solver::ModelRow& row = model.rows[model.culprit_row];
  return SolverInfeasibility{.reason = SolverInfeasibility::Reason::kMemory,
                             .proven = true,
                             .time = row.time,
                             .nodes = holders(problem, row.time, {}),
                             .usage = *problem.usage_limit - row.capacity,
                             .excess = -row.capacity};
}

// `attempt`: a choice that breaks limits, or empty.
SolverInfeasibility explain(const SolverProblem& problem, const SolverSolution& least,
                            const std::vector<int32_t>& attempt, bool proven) {
  if (!least.feasible)
    return {.reason = SolverInfeasibility::Reason::kForbidden,
            .proven = proven && least.infeasibility->proven};
  SolverInfeasibility shortage = memoryShortage(problem, least.choice, proven);
  if (attempt.size() != problem.nodes.size() || evaluate(problem, attempt).forbidden) return shortage;
  const SolverInfeasibility other = memoryShortage(problem, attempt, proven);
  return other.excess < shortage.excess ? other : shortage;
}

// Nothing was found: says why, unless the choice of least bytes is one.
void settle(const SolverProblem& problem, const SolverOptions& options, const std::vector<int32_t>& attempt,
            bool proven, SolverSolution& solution) {
  if (!problem.usage_limit) {
    solution.infeasibility = {.reason = SolverInfeasibility::Reason::kForbidden, .proven = proven};
    return;
  }
  SolverSolution least = solveForLeastBytes(problem, options);
  if (least.feasible && evaluate(problem, least.choice).feasible) {
    solution.feasible = true;
    solution.choice = std::move(least.choice);
  } else {
    solution.infeasibility = explain(problem, least, attempt, proven);
  }
}

solver::SearchLimits searchLimits(const SolverOptions& options, Clock::time_point start) {
  solver::SearchLimits limits;
  // Far deadlines are none: the clock's arithmetic would overflow.
  if (options.seconds >= 0 && options.seconds < 1e8) {
    limits.deadline =
        start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.seconds));
  }
  if (options.step_limit >= 0)
    limits.work =
        static_cast<int64_t>(std::min(9e18, kEntriesPerStep * static_cast<double>(options.step_limit)));
  limits.exact_work =
      static_cast<int64_t>(std::min(9e18, kEntriesPerStep * static_cast<double>(options.exact_steps)));
  limits.seed = options.seed;
  limits.threads = std::max(1, options.threads);
  return limits;
}

Int128 wholeBound(double bound) { return static_cast<Int128>(std::ceil(std::max(0.0, bound))); }

}  // namespace

SolverSolution solve(const SolverProblem& problem, const SolverOptions& options) {
  const Clock::time_point start = Clock::now();
  checkProblem(problem);
  if (options.seconds < 0 && options.step_limit < 0) {
    fail(ErrorCode::kConfiguration,
         "the solver was given neither a limit of seconds nor one of steps; set one of them");
  }
  solver::Model model = solver::buildModel(problem);
  solver::reduceModel(model);
  SolverSolution solution;
  if (model.infeasible) {
    solution.infeasibility = shortRow(problem, model);
    if (!solution.infeasibility) settle(problem, options, {}, true, solution);
    solution.seconds = secondsSince(start);
    return solution;
  }
  const auto report = [&](double cost, double bound) {
    if (!options.progress) return;
    const bool found = std::isfinite(cost);
    options.progress({.seconds = secondsSince(start),
                      .feasible = found,
                      .cost = found ? static_cast<Int128>(cost) : 0,
                      .lower_bound = std::isfinite(bound) ? wholeBound(bound) : 0});
  };
  solver::Search search(std::move(model), searchLimits(options, start), report);
  search.run();
  solution.cut_short = search.cutShort();
  solution.steps = static_cast<int64_t>(static_cast<double>(search.work()) / kEntriesPerStep);
  std::vector<int32_t> choice = search.choice();
  choice.resize(choice.empty() ? 0 : problem.nodes.size());
  solution.feasible = search.found();
  if (solution.feasible) {
    solution.choice = std::move(choice);
  } else {
    settle(problem, options, choice, search.proven(), solution);
  }
  if (solution.feasible) {
    const SolverEvaluation evaluation = evaluate(problem, solution.choice);
    PIPESHARD_CHECK(evaluation.feasible, "the solver's choice is not feasible");
    solution.cost = evaluation.cost;
    solution.lower_bound = std::min(evaluation.cost, wholeBound(search.bound()));
    solution.optimal = solution.lower_bound == solution.cost;
  }
  solution.seconds = secondsSince(start);
  return solution;
}

double SolverSolution::gap() const {
  if (cost == 0) return 0;
  return static_cast<double>(cost - lower_bound) / static_cast<double>(cost);
}

std::string describe(const SolverInfeasibility& infeasibility) {
  if (infeasibility.reason == SolverInfeasibility::Reason::kForbidden) {
    return infeasibility.proven ? "every choice meets a forbidden cost"
                                : "no choice without a forbidden cost was found";
  }
  constexpr size_t kNamed = 8;
  std::string nodes;
  for (size_t i = 0; i < std::min(kNamed, infeasibility.nodes.size()); ++i) {
    nodes += fmt::format("{}{}", i == 0 ? "" : ", ", infeasibility.nodes[i]);
  }
  if (infeasibility.nodes.size() > kNamed)
    nodes += fmt::format(" and {} more", infeasibility.nodes.size() - kNamed);
  return fmt::format("too little memory{}: at time {}, {} bytes are live where {} fit ({} over), in nodes {}",
                     infeasibility.proven ? "" : " in the best choice that was found", infeasibility.time,
                     infeasibility.usage, infeasibility.usage - infeasibility.excess, infeasibility.excess,
                     nodes);
}

}  // namespace pipeshard
