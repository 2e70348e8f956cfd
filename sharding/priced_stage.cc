#include "sharding/priced_stage.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "ir/error.h"
#include "sharding/shard_stage_parts.h"

namespace pipeshard {

namespace {

class Pricer {
 public:
  Pricer(const StageContext& context, const std::vector<Phase>& phases, const std::vector<StageEnd>& ends)
      : context_(context), phases_(phases) {
    for (const StageEnd& end : ends) end_of_[end.value] = &end;
    for (size_t position = context.nodes.size(); position-- > 0;) {
      const Phase phase = context.training.node_phase[context.nodes[position].index()];
      if (phase != Phase::kUpdate && passes_end_ == 0) passes_end_ = static_cast<int64_t>(position) + 1;
      if (phase == Phase::kForward && backward_begin_ == 0) backward_begin_ = static_cast<int64_t>(position) + 1;
    }
  }

  PricedStage of(const StageSharding& sharding) {
    result_ = {};
    addTimes(sharding);
    addMemory(sharding);
    return result_;
  }

 private:
  int64_t& passTime(NodeId node) {
    switch (phases_[node.index()]) {
      case Phase::kBackwardInput: return result_.backward_input_ns;
      case Phase::kBackwardWeight: return result_.backward_weight_ns;
      case Phase::kForward:
      case Phase::kPrologue:
      case Phase::kUpdate: break;
    }
    return result_.forward_ns;
  }

  void addTimes(const StageSharding& sharding) {
    const int64_t microbatches = context_.options.microbatches;
    const StagePrice price = priceStage(context_.training, context_.nodes, context_.values, sharding, context_.model, microbatches);
    for (NodeId node : context_.nodes) {
      const StrategyCost& cost = price.nodes[node.index()];
      if (context_.training.node_phase[node.index()] == Phase::kUpdate) {
        result_.update_ns += cost.compute_ns;
        result_.synchronization_ns += cost.communication_ns;
      } else {
        passTime(node) += cost.total() / microbatches;
        result_.communication_ns += cost.communication_ns / microbatches;
      }
    }
    for (const StageResharding& entry : price.reshardings) {
      const NodeId node = entry.reader.valid() ? entry.reader : context_.values[entry.value.index()].producer;
      if (!node.valid() || context_.training.node_phase[node.index()] == Phase::kUpdate) {
        result_.synchronization_ns += entry.resharding.cost_ns;
      } else {
        passTime(node) += entry.resharding.cost_ns;
        result_.communication_ns += entry.resharding.cost_ns;
      }
    }
  }

  bool isInput(ValueId value) const {
    return std::any_of(context_.training.inputs.begin(), context_.training.inputs.end(),
                       [value](const BatchInput& input) { return input.value == value; });
  }

  void addMemory(const StageSharding& sharding) {
    const StageMemory memory = context_.memory();
    std::vector<bool> state(context_.values.size()), accumulated(context_.values.size());
    for (const Parameter& parameter : context_.training.parameters) {
      for (const OptimizerState& of : parameter.states) state[of.value.index()] = true;
      for (ValueId part : parameter.gradient_parts) accumulated[part.index()] = true;
    }
    std::vector<MemoryUse> passes, update, between;
    std::array<int64_t, kPieces> held{};  // by piece
    for (const MemoryUse& use : memory.uses(sharding)) {
      const LiveInterval& live = memory.interval(use.value);
      const bool own = use.from == live.from && use.to == live.to && live.from < live.to;  // not: beside it, while a node runs
      const bool stays = own && context_.values[use.value.index()].persistent;
      if (stays) (state[use.value.index()] ? result_.optimizer_bytes : result_.weight_bytes) += use.bytes;
      const bool accumulator = own && accumulated[use.value.index()];
      if (accumulator) result_.gradient_bytes += use.bytes;
      if (own && live.waits) result_.waiting_bytes += use.bytes;
      if (own && isInput(use.value)) (live.waits ? result_.waiting_input_bytes : result_.input_bytes) += use.bytes;
      if (stays || (accumulator && context_.options.microbatches > 1)) continue;
      if (const auto pieces = own ? piecesOf(use.value) : std::nullopt) {
        const size_t last = accumulator ? kPieces - 1 : pieces->second;
        for (size_t piece = pieces->first; piece <= last; ++piece) held[piece] += use.bytes;
      } else if (use.from < passes_end_) {
        between.push_back(use);
      }
      const MemoryUse in_passes = own ? extended(use) : use;
      if (use.from < passes_end_) passes.push_back({use.value, use.bytes, in_passes.from, std::min(in_passes.to, passes_end_)});
      if (use.to > passes_end_ && !accumulator) update.push_back({use.value, use.bytes, std::max(use.from, passes_end_), use.to});
    }
    const auto count = static_cast<int64_t>(context_.nodes.size());
    result_.emitted_bytes = *std::max_element(held.begin(), held.end()) + workspaceBytes(between);
    result_.input_bytes += result_.waiting_input_bytes;
    result_.pass_bytes = peakOf(passes, count).bytes;
    result_.update_bytes = peakOf(update, count).bytes;
  }

  // 0: forward, 1 and 2: the halves of the backward pass.
  size_t pieceOf(NodeId node) const {
    const Phase phase = phases_[node.index()];
    return phase == Phase::kBackwardInput ? 1 : phase == Phase::kBackwardWeight ? 2 : 0;
  }

  // The pieces during which a value is there; nothing: it is between nodes of one piece.
  std::optional<std::pair<size_t, size_t>> piecesOf(ValueId id) const {
    const StageValue& value = context_.values[id.index()];
    const auto end = end_of_.find(id);
    std::pair<size_t, size_t> pieces{kPieces, 0};
    const auto add = [&](NodeId node) {
      if (context_.training.node_phase[node.index()] == Phase::kUpdate) return;
      pieces = {std::min(pieces.first, pieceOf(node)), std::max(pieces.second, pieceOf(node))};
    };
    if (value.producer.valid()) add(value.producer);
    for (const ValueReader& reader : value.readers) add(reader.node);
    if (end != end_of_.end() && end->second->goes_on && pieces.first > 0) pieces.second = kPieces - 1;
    const bool between = value.producer.valid() && end == end_of_.end() && !value.readers.empty() && pieces.first == pieces.second;
    return between ? std::nullopt : std::optional(pieces);
  }

  // Of what is between the nodes of one piece, the most at one time.
  int64_t workspaceBytes(const std::vector<MemoryUse>& between) const {
    int64_t most = 0;
    for (size_t piece = 0; piece < kPieces; ++piece) {
      std::vector<int64_t> change(context_.nodes.size() + 1);
      for (const MemoryUse& use : between) {
        if (pieceOf(context_.nodes[static_cast<size_t>(use.from)]) != piece) continue;
        change[static_cast<size_t>(use.from)] += use.bytes;
        change[static_cast<size_t>(use.to)] -= use.bytes;
      }
      int64_t now = 0;
      for (size_t position = 0; position < context_.nodes.size(); ++position) {
        now += change[position];
        if (pieceOf(context_.nodes[position]) == piece) most = std::max(most, now);
      }
    }
    return most;
  }

  // What the parts before and behind this one do with a value lengthens its life: a gradient of a part that runs earlier is there when this
  // one's backward pass begins.
  MemoryUse extended(const MemoryUse& use) const {
    const auto end = end_of_.find(use.value);
    if (end == end_of_.end()) return use;
    MemoryUse result = use;
    if (!context_.values[use.value.index()].producer.valid()) result.from = std::min(use.from, backward_begin_);
    if (end->second->goes_on) result.to = std::max(use.to, use.from < backward_begin_ ? backward_begin_ : passes_end_);
    return result;
  }

  static constexpr size_t kPieces = 3;

  const StageContext& context_;
  const std::vector<Phase>& phases_;
  std::map<ValueId, const StageEnd*> end_of_;
  int64_t passes_end_ = 0;      // position of the first update node
  int64_t backward_begin_ = 0;  // of the first one behind the forward nodes
  PricedStage result_;
};

bool canBe(const StageContext& context, const StageEnd& end, size_t way) {
  const StageValue& value = context.values[end.value.index()];
  const ShardingSpec& spec = end.ways[way];
  return specFault(spec, context.training.graph.shape(end.value), context.mesh).empty() && (!value.fixed_replicated || spec.isReplicated());
}

// All ends are kept as this way says.
std::vector<ForbiddenOption> otherWays(const ShardingProblem& problem, const std::vector<StageEnd>& ends, size_t way) {
  std::vector<ForbiddenOption> forbidden;
  for (const StageEnd& end : ends) {
    const int number = problem.variableOf(end.value);
    const ShardingVariable& variable = problem.variables()[static_cast<size_t>(number)];
    for (size_t option = 0; option < variable.options.size(); ++option) {
      if (variable.specs->spec(variable.options[option]) != end.ways[way]) forbidden.push_back({number, static_cast<int>(option)});
    }
  }
  return forbidden;
}

std::vector<std::optional<PricedStage>> priceWays(StageContext& context, const std::vector<Phase>& phases,
                                                  const std::vector<StageEnd>& ends, int ways) {
  std::vector<std::optional<PricedStage>> result(static_cast<size_t>(ways));
  std::vector<bool> possible(static_cast<size_t>(ways), true);
  for (size_t way = 0; way < possible.size(); ++way) {
    for (const StageEnd& end : ends) possible[way] = possible[way] && canBe(context, end, way);
    if (!possible[way]) continue;
    for (const StageEnd& end : ends) context.limits.among[context.values[end.value.index()].shares].push_back(end.ways[way]);
  }
  if (std::find(possible.begin(), possible.end(), true) == possible.end()) return result;
  const ShardingProblem problem(context.training, context.nodes, context.mesh, context.model, context.options, context.limits);
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

std::vector<std::optional<PricedStage>> priceStageInWays(const TrainingGraph& training, const std::vector<NodeId>& nodes,
                                                         const std::vector<Phase>& phases, const LogicalMesh& mesh, const CostModel& model,
                                                         const ShardStageOptions& options, const std::vector<StageEnd>& ends, int ways) {
  PIPESHARD_CHECK(!options.memory_bytes && options.crossings.empty() && options.in_flight == 1, "options that ways do not know");
  parseMethod(options.method);  // a method that does not exist is an error; one that does not fit is no way
  std::optional<StageContext> context;
  try {
    context.emplace(training, nodes, mesh, model, options);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kConfiguration) throw;
    return std::vector<std::optional<PricedStage>>(static_cast<size_t>(ways));
  }
  return priceWays(*context, phases, ends, ways);
}

}  // namespace pipeshard
