#include "sharding/stage/choice_cache.h"

#include "sharding/spmd/strategy_cost.h"

namespace pipeshard {
namespace {

std::vector<SpecTable*> tablesOf(SpecCatalog& catalog, const Graph& graph,
                                 const std::vector<ValueId>& values) {
  std::vector<SpecTable*> tables;
  for (ValueId id : values)
    tables.push_back(id.valid() ? &catalog.of(graph.shape(id), graph.dataType(id)) : nullptr);
  return tables;
}

// By position, by strategy.
std::vector<std::vector<int>> numbersOf(const std::vector<SpecTable*>& tables,
                                        const std::vector<Strategy>& strategies,
                                        std::vector<ShardingSpec> Strategy::*specs) {
  std::vector<std::vector<int>> numbers(tables.size());
  for (size_t position = 0; position < tables.size(); ++position) {
    if (tables[position] == nullptr) continue;
    for (const Strategy& strategy : strategies)
      numbers[position].push_back(tables[position]->number((strategy.*specs)[position]));
  }
  return numbers;
}

}  // namespace

ChoiceCache::ChoiceCache(const Graph& graph, const LogicalMesh& mesh, const CostModel& model)
    : graph_(graph),
      mesh_(mesh),
      model_(model),
      catalog_(mesh, model),
      by_node_(graph.nodes.size(), nullptr) {}

const NodeChoices& ChoiceCache::of(NodeId id) {
  const NodeChoices*& known = by_node_[id.index()];
  if (known == nullptr) {
    std::unique_ptr<NodeChoices>& choices = by_key_[structuralKey(graph_, graph_.node(id))];
    if (!choices) choices = make(graph_.node(id));
    known = choices.get();
  }
  return *known;
}

std::unique_ptr<NodeChoices> ChoiceCache::make(const Node& node) {
  auto choices = std::make_unique<NodeChoices>();
  choices->rule = factorRule(graph_, node);
  std::map<std::pair<std::vector<ShardingSpec>, std::vector<ShardingSpec>>, size_t> places;
  for (Strategy& strategy : strategies(graph_, node, mesh_)) {
    const StrategyCost cost = strategyCost(graph_, node, mesh_, strategy, model_);
    const auto [place, is_new] =
        places.try_emplace({strategy.inputs, strategy.outputs}, choices->strategies.size());
    if (is_new) {
      choices->strategies.push_back(std::move(strategy));
      choices->costs.push_back(cost);
    } else if (cost.total() < choices->costs[place->second].total()) {
      choices->strategies[place->second] = std::move(strategy);
      choices->costs[place->second] = cost;
    }
  }
  choices->input_tables = tablesOf(catalog_, graph_, node.inputs);
  choices->output_tables = tablesOf(catalog_, graph_, node.outputs);
  choices->inputs = numbersOf(choices->input_tables, choices->strategies, &Strategy::inputs);
  choices->outputs = numbersOf(choices->output_tables, choices->strategies, &Strategy::outputs);
  return choices;
}

}  // namespace pipeshard
