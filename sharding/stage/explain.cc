#include "sharding/stage/explain.h"

#include <algorithm>

#include "ir/base/error.h"
#include "sharding/stage/stage_context.h"

namespace pipeshard {

namespace {

struct OpenDecision {
  Decision decision;
  int variable = -1;
};

std::string nodeName(const Node& node) { return node.name.empty() ? describeNode(node) : node.name; }

// One per node and per value with a variable, in that order; their costs add up to the result's.
std::vector<OpenDecision> decisionsOf(const StageContext& context, const ShardingProblem& problem,
                                      const StageSharding& sharding) {
  const Graph& graph = context.training.graph;
  const StagePrice price = priceStage(context.training, context.nodes, context.values, sharding,
                                      context.model, context.options.microbatches);
  std::vector<OpenDecision> decisions(problem.variables().size());
  for (size_t index = 0; index < decisions.size(); ++index) {
    const ShardingVariable& variable = problem.variables()[index];
    Decision& decision = decisions[index].decision;
    decisions[index].variable = index;
    if (variable.choices != nullptr) {
      const Node& node = graph.node(variable.node);
      decision.name = nodeName(node);
      decision.chosen = printUses(graph, node, sharding.strategies[variable.node.index()].uses);
      decision.compute_ns = price.nodes[variable.node.index()].compute_ns;
      decision.communication_ns = price.nodes[variable.node.index()].communication_ns;
    } else {
      decision.name = graph.value(variable.value).name;
      decision.chosen = printSpec(sharding.kept[variable.value.index()]);
    }
  }
  for (const StageResharding& entry : price.reshardings) {
    int variable = entry.reader.valid() ? problem.variableOf(entry.reader) : problem.variableOf(entry.value);
    if (variable < 0) {
      const StageValue& value = context.values[entry.value.index()];
      variable = problem.variableOf(value.readers.empty() ? value.producer : value.readers.front().node);
    }
    decisions[variable].decision.communication_ns += entry.resharding.cost_ns * entry.runs;
  }
  return decisions;
}

// The position of what was chosen among the variable's options; -1: it is not one of them.
int chosenOption(const ShardingVariable& variable, const StageSharding& sharding) {
  for (size_t position = 0; position < variable.options.size(); ++position) {
    const int option = variable.options[position];
    const bool same =
        variable.choices != nullptr
            ? variable.choices->strategies[option].uses == sharding.strategies[variable.node.index()].uses
            : variable.specs->spec(option) == sharding.kept[variable.value.index()];
    if (same) return position;
  }
  return -1;
}

std::optional<Alternative> secondBest(const StageContext& context, const ShardingProblem& problem, int index,
                                      const StageSharding& sharding) {
  const ShardingVariable& variable = problem.variables()[index];
  const int chosen = chosenOption(variable, sharding);
  if (variable.options.size() < 2 || chosen < 0) return std::nullopt;
  try {
    const ShardingResult other = context.solve(problem, {{index, chosen}});
    const Graph& graph = context.training.graph;
    return Alternative{variable.choices != nullptr
                           ? printUses(graph, graph.node(variable.node),
                                       other.sharding.strategies[variable.node.index()].uses)
                           : printSpec(other.sharding.kept[variable.value.index()]),
                       other.total_ns()};
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kOutOfMemory || error.code() == ErrorCode::kConfiguration)
      return std::nullopt;
    throw;
  }
}

}  // namespace

std::vector<Decision> explainSharding(const TrainingGraph& training, const std::vector<NodeId>& nodes,
                                      const CostModel& model, const ShardStageOptions& options,
                                      const ShardingResult& result, int alternatives) {
  const StageContext context(training, nodes, result.sharding.mesh, model, options);
  const ShardingProblem problem(training, nodes, context.mesh, model, options, context.limits);
  std::vector<OpenDecision> open = decisionsOf(context, problem, result.sharding);
  std::stable_sort(open.begin(), open.end(), [](const OpenDecision& a, const OpenDecision& b) {
    return a.decision.compute_ns + a.decision.communication_ns >
           b.decision.compute_ns + b.decision.communication_ns;
  });
  std::vector<Decision> decisions;
  for (OpenDecision& entry : open) {
    if (alternatives > 0 && problem.variables()[entry.variable].options.size() > 1) {
      entry.decision.second = secondBest(context, problem, entry.variable, result.sharding);
      --alternatives;
    }
    decisions.push_back(std::move(entry.decision));
  }
  return decisions;
}

}  // namespace pipeshard
