#include "sharding/stage/sharding_problem.h"

#include <algorithm>

#include "ir/base/error.h"

namespace pipeshard {

namespace {

// What a tie costs: a resharding (or a collective of a strategy) as much as replication along this many mesh
// axes.
constexpr int64_t kCommunicationTie = 4;

void addMissing(int number, std::vector<int>& numbers) {
  if (std::find(numbers.begin(), numbers.end(), number) == numbers.end()) numbers.push_back(number);
}

int64_t replicatedAxes(const Strategy& strategy, const LogicalMesh& mesh) {
  int64_t count = 0;
  for (int axis = 0; axis < mesh.rank(); ++axis) {
    const bool shared =
        axis < std::ssize(strategy.uses) && strategy.uses[axis].kind != AxisUse::Kind::kReplicate;
    if (!shared) ++count;
  }
  return count;
}

}  // namespace

struct ShardingProblem::Relation {
  int first = -1;  // variables, first < second
  int second = -1;
  bool forward = true;  // the resharding goes from the first to the second
  int64_t runs = 1;
  int from_output = -1;           // of a node variable: which output; -1: a value variable
  std::vector<size_t> to_inputs;  // of a node variable: which inputs; empty: a value variable

  static Relation between(int from, int to, int64_t runs, int from_output, std::vector<size_t> to_inputs) {
    return {std::min(from, to), std::max(from, to), from < to, runs, from_output, std::move(to_inputs)};
  }
  friend auto operator<=>(const Relation&, const Relation&) = default;
};

ShardingProblem::ShardingProblem(const TrainingGraph& training, const std::vector<NodeId>& nodes,
                                 const LogicalMesh& mesh, const CostModel& model,
                                 const ShardStageOptions& options, const ProblemLimits& limits)
    : training_(training),
      nodes_(nodes),
      mesh_(mesh),
      options_(options),
      limits_(limits),
      values_(stageValues(training, nodes, options.replicated)),
      cache_(std::make_unique<ChoiceCache>(training.graph, mesh, model)),
      node_variable_(training.graph.nodes.size(), -1),
      value_variable_(training.graph.values.size(), -1) {
  for (const Parameter& parameter : training.parameters) {
    if (!parameter.gradient_parts.empty())
      gradient_of_[values_[parameter.gradient_parts.front().index()].shares] = parameter.gradient;
  }
  addNodeVariables();
  addValueVariables();
  chooseScale();
  addUnaryTables();
  addRelations();
}

void ShardingProblem::addNodeVariables() {
  for (NodeId node : nodes_) {
    const NodeChoices& choices = cache_->of(node);
    node_variable_[node.index()] = variables_.size();
    variables_.push_back({.node = node,
                          .choices = &choices,
                          .value = {},
                          .specs = nullptr,
                          .options = limits_.strategies(node, choices)});
    PIPESHARD_CHECK(!variables_.back().options.empty(), "{} has no strategy left",
                    describeNode(training_.graph.node(node)));
  }
}

void ShardingProblem::addValueVariables() {
  std::map<ValueId, std::vector<ValueId>> groups;
  for (size_t index = 0; index < values_.size(); ++index) {
    if (values_[index].held && !values_[index].constant)
      groups[values_[index].shares].push_back(ValueId(index));
  }
  // Gradients first: what they may be decides what their parts may be.
  for (const bool gradients : {true, false}) {
    for (const auto& [first, members] : groups) {
      const bool is_gradient = std::any_of(gradient_of_.begin(), gradient_of_.end(),
                                           [&](const auto& entry) { return entry.second == first; });
      if (is_gradient == gradients && needsVariable(first, members)) addValueVariable(first, members);
    }
  }
}

bool ShardingProblem::needsVariable(ValueId first, const std::vector<ValueId>& members) const {
  const StageValue& value = values_[first.index()];
  if (members.size() > 1 || !value.producer.valid() || limits_.given.contains(first) ||
      limits_.among.contains(first) || options_.crossings.contains(first))
    return true;
  if (value.fixed_replicated || !value.partial_allowed || first == training_.loss ||
      gradient_of_.contains(first))
    return true;
  if (value.readers.empty()) return false;
  if (value.readers.size() > 1 || value.readers.front().positions.size() > 1) return true;
  return limits_.keep_all;
}

void ShardingProblem::addSpecs(ValueId member, std::vector<int>& specs) const {
  const StageValue& value = values_[member.index()];
  if (value.producer.valid()) {
    const ShardingVariable& producer = variables_[variableOf(value.producer)];
    for (int option : producer.options) addMissing(producer.choices->outputs[value.output][option], specs);
  }
  for (const ValueReader& reader : value.readers) {
    const ShardingVariable& variable = variables_[variableOf(reader.node)];
    for (size_t position : reader.positions) {
      for (int option : variable.options) addMissing(variable.choices->inputs[position][option], specs);
    }
  }
}

// Parts may be accumulated as the gradient is wanted: each microbatch scatters its share.
void ShardingProblem::addGradientSpecs(ValueId part, std::vector<int>& specs) const {
  const auto gradient = gradient_of_.find(part);
  if (gradient == gradient_of_.end() || variableOf(gradient->second) < 0) return;
  for (int spec : variables_[variableOf(gradient->second)].options) addMissing(spec, specs);
}

void ShardingProblem::addValueVariable(ValueId first, const std::vector<ValueId>& members) {
  ShardingVariable variable{
      .node = {}, .choices = nullptr, .value = first, .specs = &cache_->specsOf(first), .options = {}};
  bool fixed = false;
  bool partial = true;
  for (ValueId member : members) {
    fixed = fixed || values_[member.index()].fixed_replicated;
    partial = partial && values_[member.index()].partial_allowed;
  }
  std::vector<int> specs = {variable.specs->replicatedSpec()};
  if (!fixed) {
    for (ValueId member : members) addSpecs(member, specs);
    addGradientSpecs(first, specs);
    if (limits_.all_specs) {
      for (const ShardingSpec& spec : possibleSpecs(training_.graph.shape(first), mesh_, partial))
        addMissing(variable.specs->number(spec), specs);
    }
    std::sort(specs.begin(), specs.end());
  }
  const auto given = limits_.given.find(first);
  const auto among = limits_.among.find(first);
  const bool listed = given != limits_.given.end() || among != limits_.among.end();
  if (among != limits_.among.end()) {
    specs.clear();
    for (const ShardingSpec& spec : among->second) addMissing(variable.specs->number(spec), specs);
  }
  if (given != limits_.given.end()) specs = {variable.specs->number(given->second)};
  for (int number : specs) {
    const ShardingSpec& spec = variable.specs->spec(number);
    const bool allowed = (partial || spec.partial.empty()) && (fixed || limits_.kept(first, spec));
    if (allowed || listed) variable.options.push_back(number);
  }
  // it cannot lie as the method wants
  if (variable.options.empty()) variable.options.push_back(variable.specs->replicatedSpec());
  value_variable_[first.index()] = variables_.size();
  variables_.push_back(std::move(variable));
}

// The largest scale at which costs stay far from kForbiddenCost and ties never outweigh a nanosecond.
void ShardingProblem::chooseScale() {
  double replicated = 0;
  for (const ShardingVariable& variable : variables_) {
    if (variable.choices == nullptr) continue;
    int64_t most = 0;
    for (const StrategyCost& cost : variable.choices->costs) most = std::max(most, cost.total());
    replicated += static_cast<double>(most) * static_cast<double>(runs(variable.node));
  }
  int64_t relations = 0;
  for (const StageValue& value : values_) relations += std::ssize(value.readers) + 1;
  const int64_t ties =
      relations * kCommunicationTie + std::ssize(nodes_) * (kCommunicationTie + mesh_.rank());
  scale_ = 1;
  while (scale_ <= ties) scale_ *= 2;
  if (replicated * static_cast<double>(scale_) > 1e15) scale_ = 1;
}

void ShardingProblem::addUnaryTables() {
  for (int index = 0; index < std::ssize(variables_); ++index) {
    const ShardingVariable& variable = variables_[index];
    network_.sizes.push_back(variable.options.size());
    CostTable table{{network_.sizes.back()}, {}};
    const auto crossing =
        variable.choices == nullptr ? options_.crossings.find(variable.value) : options_.crossings.end();
    for (int option : variable.options) {
      int64_t cost = 0;
      if (crossing != options_.crossings.end())
        cost = crossing->second(variable.specs->spec(option)) * options_.microbatches * scale_;
      if (variable.choices != nullptr) {
        const StrategyCost& parts = variable.choices->costs[option];
        cost = parts.total() * runs(variable.node) * scale_;
        if (scale_ > 1) {
          cost += replicatedAxes(variable.choices->strategies[option], mesh_) +
                  (parts.communication_ns > 0 ? kCommunicationTie : 0);
        }
      }
      table.costs.push_back(cost);
    }
    network_.tables.push_back({{index}, network_.pool->add(std::move(table))});
  }
}

void ShardingProblem::relateValue(ValueId id, std::vector<Relation>& relations) const {
  const StageValue& value = values_[id.index()];
  const int kept = variableOf(id);
  if (kept < 0) {
    if (!value.producer.valid() || value.readers.empty()) return;
    const ValueReader& reader = value.readers.front();
    relations.push_back(Relation::between(variableOf(value.producer), variableOf(reader.node),
                                          runs(reader.node), value.output, reader.positions));
    return;
  }
  if (value.producer.valid()) {
    relations.push_back(
        Relation::between(variableOf(value.producer), kept, runs(value.producer), value.output, {}));
  }
  for (const ValueReader& reader : value.readers) {
    relations.push_back(
        Relation::between(kept, variableOf(reader.node), runs(reader.node), -1, reader.positions));
  }
}

void ShardingProblem::addRelations() {
  std::vector<Relation> relations;
  for (size_t index = 0; index < values_.size(); ++index) {
    if (values_[index].held && !values_[index].constant) relateValue(ValueId(index), relations);
  }
  for (const auto& [part, gradient] : gradient_of_) {
    if (!gradient.valid() || variableOf(part) < 0 || variableOf(gradient) < 0) continue;
    relations.push_back(Relation::between(variableOf(part), variableOf(gradient), 1, -1, {}));
  }
  std::sort(relations.begin(), relations.end());
  for (size_t begin = 0; begin < relations.size();) {
    size_t end = begin;
    while (end < relations.size() && relations[end].first == relations[begin].first &&
           relations[end].second == relations[begin].second)
      ++end;
    addTable(relations, begin, end);
    begin = end;
  }
}

int ShardingProblem::domainOf(const ShardingVariable& variable) {
  const void* what =
      variable.choices != nullptr ? static_cast<const void*>(variable.choices) : variable.specs;
  std::vector<int64_t> key = {reinterpret_cast<int64_t>(what)};
  key.insert(key.end(), variable.options.begin(), variable.options.end());
  return domains_.try_emplace(std::move(key), domains_.size()).first->second;
}

namespace {

// By option: the numbers of the specs at one end of a relation.
std::vector<std::vector<int>> specsAt(const ShardingVariable& variable, int output,
                                      const std::vector<size_t>& inputs) {
  std::vector<std::vector<int>> specs;
  for (int option : variable.options) {
    std::vector<int>& numbers = specs.emplace_back();
    if (variable.choices == nullptr) {
      numbers.push_back(option);
    } else if (output >= 0) {
      numbers.push_back(variable.choices->outputs[output][option]);
    } else {
      for (size_t input : inputs) addMissing(variable.choices->inputs[input][option], numbers);
    }
  }
  return specs;
}

}  // namespace

void ShardingProblem::addTable(const std::vector<Relation>& relations, size_t begin, size_t end) {
  const ShardingVariable& first = variables_[relations[begin].first];
  const ShardingVariable& second = variables_[relations[begin].second];
  std::vector<int64_t> key = {domainOf(first), domainOf(second)};
  for (size_t index = begin; index < end; ++index) {
    const Relation& relation = relations[index];
    key.insert(key.end(), {relation.forward ? 1 : 0, relation.runs, relation.from_output,
                           std::ssize(relation.to_inputs)});
    key.insert(key.end(), relation.to_inputs.begin(), relation.to_inputs.end());
  }
  const auto [place, is_new] = tables_.try_emplace(std::move(key), -1);
  if (is_new) {
    CostTable table{{static_cast<int>(first.options.size()), static_cast<int>(second.options.size())}, {}};
    table.costs.assign(first.options.size() * second.options.size(), 0);
    for (size_t index = begin; index < end; ++index) {
      const Relation& relation = relations[index];
      const ShardingVariable& source = relation.forward ? first : second;
      const ShardingVariable& target = relation.forward ? second : first;
      SpecTable& specs =
          source.specs != nullptr ? *source.specs : *source.choices->output_tables[relation.from_output];
      const std::vector<std::vector<int>> from = specsAt(source, relation.from_output, {});
      const std::vector<std::vector<int>> to = specsAt(target, -1, relation.to_inputs);
      for (size_t f = 0; f < from.size(); ++f) {
        for (size_t t = 0; t < to.size(); ++t) {
          int64_t cost = 0;
          for (int number : to[t]) cost += specs.cost(from[f].front(), number);
          int64_t& entry = table.costs[relation.forward ? f * to.size() + t : t * from.size() + f];
          entry += cost * relation.runs * scale_ + (scale_ > 1 && cost > 0 ? kCommunicationTie : 0);
        }
      }
    }
    place->second = network_.pool->add(std::move(table));
  }
  network_.tables.push_back({{relations[begin].first, relations[begin].second}, place->second});
}

const ShardingSpec& ShardingProblem::outputSpec(ValueId id, const std::vector<int>& choice) const {
  const StageValue& value = values_[id.index()];
  const size_t producer = variableOf(value.producer);
  const size_t option = variables_[producer].options[choice[producer]];
  return variables_[producer].choices->strategies[option].outputs[value.output];
}

// Of a value without a variable.
ShardingSpec ShardingProblem::keptAlone(ValueId id, const std::vector<int>& choice) const {
  const StageValue& value = values_[id.index()];
  const ShardingSpec& made = outputSpec(id, choice);
  if (value.readers.empty()) return made;
  const size_t reader = variableOf(value.readers.front().node);
  const size_t option = variables_[reader].options[choice[reader]];
  const ShardingSpec& wanted =
      variables_[reader].choices->strategies[option].inputs[value.readers.front().positions.front()];
  const Shape& shape = training_.graph.shape(id);
  return largestShard(wanted, shape, mesh_) < largestShard(made, shape, mesh_) ? wanted : made;
}

StageSharding ShardingProblem::sharding(const std::vector<int>& choice) const {
  StageSharding result{mesh_, std::vector<Strategy>(training_.graph.nodes.size()),
                       std::vector<ShardingSpec>(values_.size())};
  for (NodeId node : nodes_) {
    const size_t variable = variableOf(node);
    const size_t option = variables_[variable].options[choice[variable]];
    result.strategies[node.index()] = variables_[variable].choices->strategies[option];
  }
  for (size_t index = 0; index < values_.size(); ++index) {
    const ValueId id(index);
    if (!values_[index].held) continue;
    const int variable = values_[index].constant ? -1 : variableOf(id);
    if (values_[index].constant) {
      result.kept[index] = replicated(training_.graph.shape(id).size());
    } else if (variable >= 0) {
      const ShardingVariable& kept = variables_[variable];
      result.kept[index] = kept.specs->spec(kept.options[choice[variable]]);
    } else {
      result.kept[index] = keptAlone(id, choice);
    }
  }
  return result;
}

}  // namespace pipeshard
