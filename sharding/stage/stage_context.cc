#include "sharding/stage/stage_context.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "sharding/stage/given_specs.h"
#include "sharding/stage/methods.h"

namespace pipeshard {

namespace {

// Solutions whose rows of memory fit, but that hold more beside them, are solved again with so much less; so
// often.
constexpr int kMemoryAttempts = 6;

// The options of one problem in another one of the same stage.
std::vector<ForbiddenOption> sameOptions(const ShardingProblem& from, const ShardingProblem& to,
                                         const std::vector<ForbiddenOption>& options) {
  std::vector<ForbiddenOption> result;
  for (const ForbiddenOption& entry : options) {
    const ShardingVariable& variable = from.variables()[entry.variable];
    const int other =
        variable.choices != nullptr ? to.variableOf(variable.node) : to.variableOf(variable.value);
    const std::vector<int>& numbers = to.variables()[other].options;
    // Strategies are in one order; specs are numbered as they are met, so they are compared.
    for (int position = 0; position < std::ssize(numbers); ++position) {
      const bool same = variable.choices != nullptr
                            ? numbers[position] == variable.options[entry.option]
                            : to.variables()[other].specs->spec(numbers[position]) ==
                                  variable.specs->spec(variable.options[entry.option]);
      if (same) result.push_back({other, position});
    }
  }
  return result;
}

// An empty stage has no devices' work, and a mesh of no device no stage.
void checkStage(const std::vector<NodeId>& nodes, const LogicalMesh& mesh, const CostModel& model,
                const ShardStageOptions& options) {
  PIPESHARD_CHECK(!nodes.empty(), "a stage without nodes");
  PIPESHARD_CHECK(options.microbatches >= 1 && options.in_flight >= 1, "{} microbatches, {} in flight",
                  options.microbatches, options.in_flight);
  PIPESHARD_CHECK(std::ssize(model.links) == mesh.rank(), "{} links for mesh {}", model.links.size(),
                  printMesh(mesh));
}

}  // namespace

StageContext::StageContext(const TrainingGraph& training_graph, const std::vector<NodeId>& stage_nodes,
                           const LogicalMesh& logical_mesh, const CostModel& cost_model,
                           const ShardStageOptions& stage_options)
    : training(training_graph),
      nodes(stage_nodes),
      mesh(logical_mesh),
      model(cost_model),
      options(stage_options) {
  checkStage(nodes, mesh, model, options);
  if (options.method.kind == ShardingKind::kManual && options.constraints.empty()) {
    fail(ErrorCode::kConfiguration,
         "method manual: no shardings are given; give some (--shard \"NAME=S0,R\"), or use auto");
  }
  values = stageValues(training, nodes, options.replicated);
  limits = methodLimits(options.method, training, nodes, mesh, options.batch);
  limits.given = givenSpecs(training, values, mesh, options.constraints);
}

ShardingResult StageContext::result(const ShardingProblem& problem, const StageSolution& solution) const {
  ShardingResult result;
  result.sharding = problem.sharding(solution.choice);
  const StagePrice price = priceStage(training, nodes, values, result.sharding, model, options.microbatches);
  result.compute_ns = price.compute_ns;
  result.communication_ns = price.communication_ns;
  for (const auto& [value, cost] : options.crossings) {
    result.communication_ns += cost(result.sharding.kept[value.index()]) * options.microbatches;
  }
  PIPESHARD_CHECK(result.total_ns() == solution.cost_ns, "the problem's cost is {}, the sharding's {}",
                  solution.cost_ns, result.total_ns());
  result.lower_bound_ns = solution.lower_bound_ns;
  result.optimal = solution.optimal;
  result.memory_bytes = peakOf(memory().uses(result.sharding), std::ssize(nodes)).bytes;
  return result;
}

ShardingResult StageContext::solve(const ShardingProblem& problem,
                                   const std::vector<ForbiddenOption>& forbidden) const {
  const StageSolution free = solveStage(problem, options, forbidden);
  if (!free.feasible) failForbidden();
  ShardingResult best = result(problem, free);
  if (!options.memory_bytes || best.memory_bytes <= *options.memory_bytes) return best;
  ProblemLimits with_memory = limits;
  with_memory.keep_all = true;
  const ShardingProblem rows(training, nodes, mesh, model, options, with_memory);
  return solveWithin(rows, sameOptions(problem, rows, forbidden), best.lower_bound_ns);
}

ShardingResult StageContext::solveWithin(const ShardingProblem& problem,
                                         const std::vector<ForbiddenOption>& forbidden,
                                         int64_t lower_bound) const {
  int64_t limit = *options.memory_bytes;
  std::optional<MemoryPeak> least;
  for (int attempt = 0; attempt < kMemoryAttempts && limit > 0; ++attempt) {
    const StageSolution solution = solveStageWithin(problem, options, memory(), limit, forbidden);
    if (!solution.feasible) {
      if (solution.infeasibility && attempt == 0) failMemory(problem, *solution.infeasibility);
      break;
    }
    ShardingResult found = result(problem, solution);
    // Later attempts have a limit that is too low: what they prove says nothing of the true one.
    if (attempt == 0) lower_bound = std::max(lower_bound, found.lower_bound_ns);
    found.lower_bound_ns = std::min(lower_bound, found.total_ns());
    found.optimal = found.total_ns() == found.lower_bound_ns;
    const int64_t over = found.memory_bytes - *options.memory_bytes;
    if (over <= 0) return found;
    const MemoryPeak peak = peakOf(memory().uses(found.sharding), std::ssize(nodes));
    if (!least || peak.bytes < least->bytes) least = peak;
    // what stands beside the rows moves with the choice: small steps alone may never arrive
    limit -= over + attempt * (limit / 128);
  }
  PIPESHARD_CHECK(least.has_value(), "no attempt was made");
  fail(ErrorCode::kOutOfMemory, "method {} on mesh {}: no sharding was found that fits; {}; {}",
       shardingMethodToString(options.method), printMesh(mesh),
       describePeak(training, memory().order(), *least, *options.memory_bytes), memoryAdvice());
}

std::string StageContext::memoryAdvice() const {
  return fmt::format(
      "use more devices or stages, more microbatches{}{}",
      options.in_flight > 1 ? ", a schedule with fewer in flight" : "",
      options.method.kind == ShardingKind::kAuto ? ", or another optimizer" : ", or method auto");
}

void StageContext::failMemory(const ShardingProblem& problem, const SolverInfeasibility& reason) const {
  std::vector<std::string> largest;
  for (int32_t node : reason.nodes) {
    const ShardingVariable& variable = problem.variables()[node];
    if (largest.size() < 5 && variable.value.valid())
      largest.push_back(fmt::format("'{}'", training.graph.value(variable.value).name));
  }
  const size_t time = std::clamp<int64_t>(reason.time, 0, std::ssize(nodes) - 1);
  fail(ErrorCode::kOutOfMemory,
       "method {} on mesh {}: {} fits: at {} a device holds at least {} bytes, {} more than the {} that fit; "
       "the largest: {}; {}",
       shardingMethodToString(options.method), printMesh(mesh),
       reason.proven ? "no sharding" : "no sharding was found that",
       describeNode(training.graph.node(memory().order()[time])), static_cast<int64_t>(reason.usage),
       static_cast<int64_t>(reason.excess), *options.memory_bytes, fmt::join(largest, ", "), memoryAdvice());
}

void StageContext::failForbidden() const {
  fail(ErrorCode::kConfiguration, "method {} on mesh {}: what is given leaves no sharding",
       shardingMethodToString(options.method), printMesh(mesh));
}

StageMemory StageContext::memory() const {
  return StageMemory(training, nodes, values,
                     {.microbatches = options.microbatches,
                      .in_flight = options.in_flight,
                      .recomputed_layers = options.recomputed_layers,
                      .kept_anyway = options.kept_anyway,
                      .whole_backward = options.whole_backward,
                      .in_pieces = true});
}

}  // namespace pipeshard
