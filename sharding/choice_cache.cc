#include "sharding/choice_cache.h"

#include <algorithm>

#include <fmt/format.h>

namespace pipeshard {

namespace {

// Larger constants are data, and no sizes or axes.
constexpr size_t kSizeConstantBytes = 512;

void addType(const Graph& graph, ValueId id, std::string& key) {
  const Value& value = graph.value(id);
  key += fmt::format("{}[", static_cast<int>(value.data_type));
  for (int64_t size : graph.shape(id)) key += fmt::format("{},", size);
  for (const std::string& symbol : value.symbols) key += symbol + ",";
  key += "]";
}

void addInput(const Graph& graph, const Node& node, size_t input, std::string& key) {
  const ValueId id = node.inputs[input];
  if (!id.valid()) {
    key += "-;";
    return;
  }
  addType(graph, id, key);
  key += graph.initializers.contains(id) ? "i" : "v";
  key += std::to_string(std::find(node.inputs.begin(), node.inputs.end(), id) - node.inputs.begin());
  const Constant* constant = graph.constant(id);
  if (constant != nullptr && constant->bytes.size() <= kSizeConstantBytes && !isFloatingPoint(constant->data_type)) {
    key.append(reinterpret_cast<const char*>(constant->bytes.data()), constant->bytes.size());
  }
  key += ";";
}

std::vector<SpecTable*> tablesOf(SpecCatalog& catalog, const Graph& graph, const std::vector<ValueId>& values) {
  std::vector<SpecTable*> tables;
  for (ValueId id : values) tables.push_back(id.valid() ? &catalog.of(graph.shape(id), graph.dataType(id)) : nullptr);
  return tables;
}

// By position, by strategy.
std::vector<std::vector<int>> numbersOf(const std::vector<SpecTable*>& tables, const std::vector<Strategy>& strategies,
                                        std::vector<ShardingSpec> Strategy::*specs) {
  std::vector<std::vector<int>> numbers(tables.size());
  for (size_t position = 0; position < tables.size(); ++position) {
    if (tables[position] == nullptr) continue;
    for (const Strategy& strategy : strategies) numbers[position].push_back(tables[position]->number((strategy.*specs)[position]));
  }
  return numbers;
}

}  // namespace

std::string structuralKey(const Graph& graph, const Node& node) {
  std::string key = fmt::format("{}|{}|{}|{}|", node.domain, node.op_type, node.overload, node.opset_version);
  for (const auto& [name, attribute] : node.attributes) key += name + "=" + printAttribute(attribute) + "|";
  for (size_t input = 0; input < node.inputs.size(); ++input) addInput(graph, node, input, key);
  key += ">";
  for (ValueId output : node.outputs) {
    if (output.valid()) addType(graph, output, key);
    key += ";";
  }
  return key;
}

ChoiceCache::ChoiceCache(const Graph& graph, const LogicalMesh& mesh, const CostModel& model)
    : graph_(graph), mesh_(mesh), model_(model), catalog_(mesh, model), by_node_(graph.nodes.size(), nullptr) {}

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
    const auto [place, is_new] = places.try_emplace({strategy.inputs, strategy.outputs}, choices->strategies.size());
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
