#include "sharding/stage/stage_solver.h"

#include <algorithm>

#include "ir/base/error.h"

namespace pipeshard {

namespace {

// Entries of a product of tables. Most stages on meshes of one axis are solved by products of the first size
// alone; others are left to the solver, which knows bounds, with what small products make of them.
constexpr int64_t kWholeEntries = int64_t{1} << 14;
constexpr int64_t kFewEntries = int64_t{1} << 8;
// Of the solver's exact elimination, in millions of entries: with bounds first, a layer takes a tenth of the
// time.
constexpr int64_t kExactSteps = 30;

CostNetwork withForbidden(const CostNetwork& network, const std::vector<ForbiddenOption>& forbidden) {
  CostNetwork result = network;
  for (const ForbiddenOption& entry : forbidden) {
    CostTable table{{network.sizes[entry.variable]}, {}};
    table.costs.assign(table.sizes[0], 0);
    table.costs[entry.option] = kForbiddenCost;
    result.tables.push_back({{entry.variable}, result.pool->add(std::move(table))});
  }
  return result;
}

// Tables of one variable become costs of its node.
SolverProblem solverProblem(const CostNetwork& network) {
  SolverProblem problem;
  for (int size : network.sizes)
    problem.nodes.push_back({.from = 0, .to = 0, .costs = std::vector<int64_t>(size, 0), .usages = {}});
  for (const NetworkTable& entry : network.tables) {
    const std::vector<int64_t>& costs = network.pool->at(entry.table).costs;
    if (entry.variables.size() == 1) {
      std::vector<int64_t>& own = problem.nodes[entry.variables[0]].costs;
      for (size_t option = 0; option < own.size(); ++option)
        own[option] = std::min(own[option] + costs[option], kForbiddenCost);
    } else if (entry.variables.size() > 1) {
      problem.edges.push_back({.nodes = {entry.variables.begin(), entry.variables.end()}, .costs = costs});
    }
  }
  return problem;
}

// Limited by steps alone: a clock would give other plans on other machines.
SolverOptions solverOptions(const ShardStageOptions& options) {
  SolverOptions result;
  result.exact_steps = kExactSteps;
  result.seed = options.seed;
  return result;
}

StageSolution finish(const ShardingProblem& problem, const CostNetwork& network, std::vector<int> choice,
                     int64_t slack, bool optimal) {
  StageSolution solution;
  const int64_t cost = network.cost(choice);
  solution.feasible = cost < kForbiddenCost;
  if (!solution.feasible) return solution;
  solution.choice = std::move(choice);
  solution.cost_ns = cost / problem.scale();
  solution.lower_bound_ns = (cost - slack) / problem.scale();
  solution.optimal = optimal;
  return solution;
}

StageSolution infeasible(const SolverSolution& found) {
  StageSolution solution;
  solution.infeasibility = found.infeasibility;
  return solution;
}

}  // namespace

StageSolution solveStage(const ShardingProblem& problem, const ShardStageOptions& options,
                         const std::vector<ForbiddenOption>& forbidden) {
  const CostNetwork network = withForbidden(problem.network(), forbidden);
  const Elimination whole(network, kWholeEntries);
  if (whole.left().empty()) return finish(problem, network, whole.complete({}), 0, true);
  const Elimination elimination(network, kFewEntries);
  const SolverSolution rest = solve(solverProblem(elimination.remainder()), solverOptions(options));
  if (!rest.feasible) return infeasible(rest);
  const std::vector<int> left(rest.choice.begin(), rest.choice.end());
  return finish(problem, network, elimination.complete(left), rest.cost - rest.lower_bound, rest.optimal);
}

StageSolution solveStageWithin(const ShardingProblem& problem, const ShardStageOptions& options,
                               const StageMemory& memory, int64_t limit,
                               const std::vector<ForbiddenOption>& forbidden) {
  const CostNetwork network = withForbidden(problem.network(), forbidden);
  SolverProblem rows = solverProblem(network);
  for (size_t index = 0; index < problem.values().size(); ++index) {
    const StageValue& value = problem.values()[index];
    if (!value.held || value.constant || problem.variableOf(ValueId(index)) < 0) continue;
    const LiveInterval& live = memory.interval(ValueId(index));
    const size_t variable = problem.variableOf(ValueId(index));
    SolverProblem::Node& node = rows.nodes[variable];
    if (live.to - live.from <= node.to - node.from) continue;  // of a group, the member that lives longest
    node.from = live.from;
    node.to = live.to;
    node.usages.clear();
    const ShardingVariable& kept = problem.variables()[variable];
    for (int spec : kept.options)
      node.usages.push_back(kept.specs->bytes(spec) * (live.waits ? options.in_flight : 1));
  }
  rows.usage_limit = limit;
  const SolverSolution found = solve(rows, solverOptions(options));
  if (!found.feasible) return infeasible(found);
  return finish(problem, network, {found.choice.begin(), found.choice.end()}, found.cost - found.lower_bound,
                found.optimal);
}

}  // namespace pipeshard
