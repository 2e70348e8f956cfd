#include "sharding/stage/stage_price.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "sharding/spmd/strategy_cost.h"

namespace pipeshard {

namespace {

class Pricing {
 public:
  Pricing(const TrainingGraph& training, const StageSharding& sharding, const CostModel& model,
          int64_t microbatches)
      : training_(training), sharding_(sharding), model_(model), microbatches_(microbatches) {
    price_.nodes.resize(training.graph.nodes.size());
  }

  void addNode(NodeId id) {
    const int64_t runs = runsOf(id);
    const Node& node = training_.graph.node(id);
    StrategyCost cost =
        strategyCost(training_.graph, node, sharding_.mesh, sharding_.strategies[id.index()], model_);
    cost.compute_ns *= runs;
    cost.communication_ns *= runs;
    price_.nodes[id.index()] = cost;
    price_.compute_ns += cost.compute_ns;
    price_.communication_ns += cost.communication_ns;
  }

  void addValue(ValueId id, const StageValue& value) {
    const ShardingSpec& kept = sharding_.kept[id.index()];
    if (value.producer.valid()) {
      addResharding(id, {}, runsOf(value.producer),
                    sharding_.strategies[value.producer.index()].outputs[value.output], kept);
    }
    for (const ValueReader& reader : value.readers) {
      std::set<ShardingSpec> wanted;
      for (size_t position : reader.positions)
        wanted.insert(sharding_.strategies[reader.node.index()].inputs[position]);
      for (const ShardingSpec& spec : wanted) addResharding(id, reader.node, runsOf(reader.node), kept, spec);
    }
  }

  void addResharding(ValueId value, NodeId reader, int64_t runs, const ShardingSpec& from,
                     const ShardingSpec& to) {
    if (from == to) return;
    const Graph& graph = training_.graph;
    auto& known = known_[{graph.dataType(value), graph.shape(value), from, to}];
    if (!known)
      known = planResharding(graph.shape(value), graph.dataType(value), from, to, sharding_.mesh, model_);
    price_.communication_ns += known->cost_ns * runs;
    price_.reshardings.push_back({value, reader, runs, from, *known});
  }

  StagePrice take() { return std::move(price_); }

 private:
  int64_t runsOf(NodeId node) const { return runsPerStep(training_, node, microbatches_); }

  const TrainingGraph& training_;
  const StageSharding& sharding_;
  const CostModel& model_;
  int64_t microbatches_;
  std::map<std::tuple<DataType, Shape, ShardingSpec, ShardingSpec>, std::optional<Resharding>> known_;
  StagePrice price_;
};

}  // namespace

StagePrice priceStage(const TrainingGraph& training, const std::vector<NodeId>& nodes,
                      const std::vector<StageValue>& values, const StageSharding& sharding,
                      const CostModel& model, int64_t microbatches) {
  Pricing pricing(training, sharding, model, microbatches);
  for (NodeId node : nodes) pricing.addNode(node);
  for (size_t index = 0; index < values.size(); ++index) {
    if (values[index].held && !values[index].constant) pricing.addValue(ValueId(index), values[index]);
  }
  for (const Parameter& parameter : training.parameters) {
    if (parameter.gradient_parts.empty() || !parameter.gradient.valid()) continue;
    const ValueId part = values[parameter.gradient_parts.front().index()].shares;
    const bool here = values[part.index()].held && values[parameter.gradient.index()].held;
    if (here)
      pricing.addResharding(parameter.gradient, {}, 1, sharding.kept[part.index()],
                            sharding.kept[parameter.gradient.index()]);
  }
  return pricing.take();
}

std::optional<CollectiveKind> collectiveOf(ReshardingStep::Kind kind) {
  switch (kind) {
    case ReshardingStep::Kind::kAllGather: return CollectiveKind::kAllGather;
    case ReshardingStep::Kind::kAllReduce: return CollectiveKind::kAllReduce;
    case ReshardingStep::Kind::kReduceScatter: return CollectiveKind::kReduceScatter;
    case ReshardingStep::Kind::kAllToAll: return CollectiveKind::kAllToAll;
    case ReshardingStep::Kind::kSlice:
    case ReshardingStep::Kind::kKeepOne: break;
  }
  return std::nullopt;
}

int64_t communicationBytes(const TrainingGraph& training, const std::vector<NodeId>& nodes,
                           const StageSharding& sharding, const StagePrice& price, int64_t microbatches) {
  const CostModel bytes_only = CostModel::uniform(sharding.mesh, {.latency_ns = 0, .bytes_per_ns = 1});
  int64_t total = 0;
  for (NodeId node : nodes) {
    const StrategyCost cost = strategyCost(training.graph, training.graph.node(node), sharding.mesh,
                                           sharding.strategies[node.index()], bytes_only);
    total += cost.communication_ns * runsPerStep(training, node, microbatches);
  }
  for (const StageResharding& entry : price.reshardings) {
    const Shape& shape = training.graph.shape(entry.value);
    const int64_t element = dataTypeSize(training.graph.dataType(entry.value));
    ShardingSpec before = entry.from;
    for (const ReshardingStep& step : entry.resharding.steps) {
      const int64_t most = std::max(largestShard(before, shape, sharding.mesh),
                                    largestShard(step.after, shape, sharding.mesh)) *
                           element;
      const auto kind = collectiveOf(step.kind);
      if (kind) total += entry.runs * collectiveCost(bytes_only, sharding.mesh, *kind, step.mesh_axis, most);
      before = step.after;
    }
  }
  return total;
}

}  // namespace pipeshard
