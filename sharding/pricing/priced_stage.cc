#include "sharding/pricing/priced_stage.h"

#include <algorithm>
#include <map>

#include "ir/base/error.h"
#include "sharding/pricing/priced_memory.h"
#include "sharding/spmd/strategy_cost.h"
#include "sharding/stage/stage_context.h"

namespace pipeshard {

namespace {

class Pricer {
 public:
  Pricer(const StageContext& context, const std::vector<Phase>& phases, const std::vector<StageEnd>& ends)
      : context_(context), phases_(phases) {
    for (const StageEnd& end : ends) end_of_[end.value] = &end;
  }

  PricedStage of(const StageSharding& sharding) {
    result_ = {};
    const StagePrice price = priceStage(context_.training, context_.nodes, context_.values, sharding,
                                        context_.model, context_.options.microbatches);
    addTimes(price);
    addPricedMemory(context_, phases_, end_of_, sharding, price.reshardings, result_);
    return result_;
  }

 private:
  int64_t& passTime(NodeId node) {
    switch (phases_[node.index()]) {
      case Phase::kBackwardInput: return result_.backward_input_ns;
      case Phase::kBackwardWeight: return result_.backward_weight_ns;
      case Phase::kForward:
      case Phase::kBackward:  // of no node
      case Phase::kPrologue:
      case Phase::kUpdate: break;
    }
    return result_.forward_ns;
  }

  // A node of the forward pass that is not among those that run again.
  bool runsOnceInPasses(NodeId node, const std::vector<bool>& again) const {
    return context_.training.node_phase[node.index()] == Phase::kForward && !again.empty() &&
           !again[node.index()];
  }

  void addPassTime(NodeId node, int64_t total_ns, int64_t communication_ns) {
    passTime(node) += total_ns;
    result_.communication_ns += communication_ns;
    if (runsOnceInPasses(node, context_.options.again_by_layers)) result_.once_by_layers_ns += total_ns;
    if (runsOnceInPasses(node, context_.options.again_selectively)) result_.once_selectively_ns += total_ns;
  }

  void addTimes(const StagePrice& price) {
    const int64_t microbatches = context_.options.microbatches;
    for (NodeId node : context_.nodes) {
      const StrategyCost& cost = price.nodes[node.index()];
      if (context_.training.node_phase[node.index()] == Phase::kUpdate) {
        result_.update_ns += cost.compute_ns;
        result_.synchronization_ns += cost.communication_ns;
      } else {
        addPassTime(node, cost.total() / microbatches, cost.communication_ns / microbatches);
      }
    }
    for (const StageResharding& entry : price.reshardings) {
      const NodeId node = entry.reader.valid() ? entry.reader : context_.values[entry.value.index()].producer;
      if (!node.valid() || runsOnce(context_.training, node)) {
        result_.synchronization_ns += entry.resharding.cost_ns;
      } else {
        addPassTime(node, entry.resharding.cost_ns, entry.resharding.cost_ns);
      }
    }
  }

  const StageContext& context_;
  const std::vector<Phase>& phases_;
  std::map<ValueId, const StageEnd*> end_of_;
  PricedStage result_;
};

bool canBe(const StageContext& context, const StageEnd& end, size_t way) {
  const StageValue& value = context.values[end.value.index()];
  const ShardingSpec& spec = end.ways[way];
  if (spec.isReplicated()) return true;
  if (value.fixed_replicated ||
      !specFault(spec, context.training.graph.shape(end.value), context.mesh).empty())
    return false;
  return !end.as_method || context.limits.kept(value.shares, spec);
}

// All ends are kept as this way says.
std::vector<ForbiddenOption> otherWays(const ShardingProblem& problem, const std::vector<StageEnd>& ends,
                                       size_t way) {
  std::vector<ForbiddenOption> forbidden;
  for (const StageEnd& end : ends) {
    const int number = problem.variableOf(end.value);
    const ShardingVariable& variable = problem.variables()[number];
    for (int option = 0; option < std::ssize(variable.options); ++option) {
      if (variable.specs->spec(variable.options[option]) != end.ways[way])
        forbidden.push_back({number, option});
    }
  }
  return forbidden;
}

std::vector<std::optional<PricedStage>> priceWays(StageContext& context, const std::vector<Phase>& phases,
                                                  const std::vector<StageEnd>& ends, int ways) {
  std::vector<std::optional<PricedStage>> result(ways);
  std::vector<bool> possible(ways, true);
  for (size_t way = 0; way < possible.size(); ++way) {
    for (const StageEnd& end : ends) possible[way] = possible[way] && canBe(context, end, way);
    if (!possible[way]) continue;
    for (const StageEnd& end : ends)
      context.limits.among[context.values[end.value.index()].shares].push_back(end.ways[way]);
  }
  if (std::find(possible.begin(), possible.end(), true) == possible.end()) return result;
  const ShardingProblem problem(context.training, context.nodes, context.mesh, context.model, context.options,
                                context.limits);
  for (size_t way = 0; way < possible.size(); ++way) {
    if (!possible[way]) continue;
    const StageSolution solution = solveStage(problem, context.options, otherWays(problem, ends, way));
    if (!solution.feasible) continue;
    result[way] = Pricer(context, phases, ends).of(problem.sharding(solution.choice));
    result[way]->optimal = solution.optimal;
  }
  return result;
}

}  // namespace

std::vector<std::optional<PricedStage>> priceStageInWays(const TrainingGraph& training,
                                                         const std::vector<NodeId>& nodes,
                                                         const std::vector<Phase>& phases,
                                                         const LogicalMesh& mesh, const CostModel& model,
                                                         const ShardStageOptions& options,
                                                         const std::vector<StageEnd>& ends, int ways) {
  PIPESHARD_CHECK(!options.memory_bytes && options.crossings.empty() && options.in_flight == 1,
                  "options that ways do not know");
  std::optional<StageContext> context;
  try {
    context.emplace(training, nodes, mesh, model, options);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kConfiguration) throw;
    return std::vector<std::optional<PricedStage>>(ways);
  }
  return priceWays(*context, phases, ends, ways);
}

}  // namespace pipeshard
