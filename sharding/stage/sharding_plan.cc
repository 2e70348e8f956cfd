#include "sharding/stage/sharding_plan.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "ir/base/near_matches.h"
#include "sharding/rules/factor_rule.h"

namespace pipeshard {
namespace {

// Everything that the nodes read or make, constants aside.
std::vector<ValueId> valuesOf(const Graph& graph, const std::vector<NodeId>& nodes) {
  std::vector<bool> listed(graph.values.size());
  std::vector<ValueId> values;
  const auto list = [&](ValueId id) {
    if (!id.valid() || listed[id.index()]) return;
    listed[id.index()] = true;
    values.push_back(id);
  };
  for (NodeId node : nodes) {
    for (ValueId input : graph.node(node).inputs) list(input);
    for (ValueId output : graph.node(node).outputs) list(output);
  }
  return values;
}

// The names that may have been meant, for the end of a message.
std::string meant(const std::string& name, const std::vector<std::string>& known) {
  const std::vector<std::string> near = nearMatches(name, known);
  return near.empty() ? "" : fmt::format("; did you mean {}?", fmt::join(near, " or "));
}

}  // namespace

const std::string& nodeKey(const Graph& graph, NodeId node) {
  for (ValueId output : graph.node(node).outputs) {
    if (output.valid()) return graph.value(output).name;
  }
  PIPESHARD_CHECK(false, "{} has no output", describeNode(graph.node(node)));
  return graph.node(node).name;
}

void describeSharding(const TrainingGraph& training, const std::vector<NodeId>& nodes,
                      const StageSharding& sharding, ShardingPlan& plan) {
  const Graph& graph = training.graph;
  plan.mesh = sharding.mesh.shape;
  plan.strategies.clear();
  plan.specs.clear();
  for (NodeId node : nodes) {
    const std::vector<AxisUse>& uses = sharding.strategies[node.index()].uses;
    const std::string text = printUses(graph, graph.node(node), uses);
    if (text != printUses(graph, graph.node(node), {})) plan.strategies[nodeKey(graph, node)] = text;
  }
  for (ValueId value : valuesOf(graph, nodes)) {
    const ShardingSpec& spec = sharding.kept[value.index()];
    if (!spec.isReplicated()) plan.specs[graph.value(value).name] = printSpec(spec);
  }
}

namespace {

using FaultHandler = std::function<void(const std::string&)>;

void readStrategies(const TrainingGraph& training, const std::vector<NodeId>& nodes, const ShardingPlan& plan,
                    const FaultHandler& fault, StageSharding& sharding) {
  const Graph& graph = training.graph;
  std::vector<std::string> known;
  for (NodeId id : nodes) {
    const Node& node = graph.node(id);
    const std::string& key = nodeKey(graph, id);
    known.push_back(key);
    const auto found = plan.strategies.find(key);
    std::vector<AxisUse> uses(plan.mesh.size());
    try {
      if (found != plan.strategies.end()) uses = parseUses(graph, node, sharding.mesh, found->second);
    } catch (const Error& error) {
      fault(fmt::format("strategies.{}: {}", key, error.message()));
      continue;
    }
    const std::optional<Strategy> strategy = makeStrategy(graph, node, sharding.mesh, uses);
    if (strategy) sharding.strategies[id.index()] = *strategy;
    if (strategy) continue;
    fault(fmt::format(
        "strategies.{}: {} cannot run as \"{}\" on mesh {} with these shapes; choose another strategy", key,
        describeNode(node), printUses(graph, node, uses), printMesh(sharding.mesh)));
  }
  const std::set<std::string> names(known.begin(), known.end());
  for (const auto& [name, text] : plan.strategies) {
    if (!names.contains(name))
      fault(fmt::format("strategies.{}: the stage has no node with an output of this name{}", name,
                        meant(name, known)));
  }
}

void readSpecs(const TrainingGraph& training, const std::vector<NodeId>& nodes, const ShardingPlan& plan,
               const FaultHandler& fault, StageSharding& sharding) {
  const Graph& graph = training.graph;
  std::vector<std::string> known;
  for (ValueId value : valuesOf(graph, nodes)) {
    const std::string& name = graph.value(value).name;
    known.push_back(name);
    const auto found = plan.specs.find(name);
    ShardingSpec spec = replicated(graph.shape(value).size());
    if (found != plan.specs.end()) {
      spec = parseSpec(found->second);
      const std::string reason = specFault(spec, graph.shape(value), sharding.mesh);
      if (!reason.empty())
        fault(fmt::format("specs.{}: \"{}\" does not fit {}: {}", name, found->second,
                          shapeToString(graph.shape(value)), reason));
    }
    sharding.kept[value.index()] = std::move(spec);
  }
  const std::set<std::string> names(known.begin(), known.end());
  for (const auto& [name, text] : plan.specs) {
    if (!names.contains(name))
      fault(fmt::format("specs.{}: the stage has no value of this name{}", name, meant(name, known)));
  }
}

StageSharding readSharding(const TrainingGraph& training, const std::vector<NodeId>& nodes,
                           const ShardingPlan& plan, LogicalMesh mesh, const FaultHandler& fault) {
  StageSharding sharding{std::move(mesh), std::vector<Strategy>(training.graph.nodes.size()),
                         std::vector<ShardingSpec>(training.graph.values.size())};
  readStrategies(training, nodes, plan, fault, sharding);
  readSpecs(training, nodes, plan, fault, sharding);
  return sharding;
}

// Where a rule holds a factor: in an output or input, which, at which axis, before how many larger factors.
std::set<std::tuple<bool, size_t, size_t, int>> placesOfFactor(const FactorRule& rule, int factor) {
  std::set<std::tuple<bool, size_t, size_t, int>> places;
  const auto collect = [&](bool of_output, const std::vector<TensorFactors>& tensors) {
    for (size_t t = 0; t < tensors.size(); ++t) {
      for (size_t axis = 0; axis < tensors[t].size(); ++axis) {
        const std::vector<int>& factors = tensors[t][axis];
        int behind = 0;
        for (size_t i = factors.size(); i-- > 0;) {
          if (factors[i] == factor) places.emplace(of_output, t, axis, behind);
          if (rule.factors[factors[i]].size > 1) ++behind;
        }
      }
    }
  };
  collect(false, rule.inputs);
  collect(true, rule.outputs);
  return places;
}

// "1:r3" -> "1:r2"
std::string renamedUse(const FactorRule& from, const FactorRule& to, const std::string& use) {
  const size_t name = use.find(':') + 1;  // 0: it has none
  const auto named = [&](const Factor& factor) { return name > 0 && factor.name == use.substr(name); };
  const auto found = std::find_if(from.factors.begin(), from.factors.end(), named);
  if (found == from.factors.end()) return use;
  const auto places = placesOfFactor(from, static_cast<int>(found - from.factors.begin()));
  for (int factor = 0; factor < std::ssize(to.factors); ++factor) {
    if (to.factors[factor].size > 1 && placesOfFactor(to, factor) == places)
      return use.substr(0, name) + to.factors[factor].name;
  }
  return use;
}

}  // namespace

void renameFactors(const Graph& from, const Graph& to, ShardingPlan& plan) {
  std::unordered_map<std::string_view, NodeId> counterparts;
  for (const NodeId id : idsBelow<NodeId>(to.nodes.size())) counterparts.emplace(nodeKey(to, id), id);
  std::unordered_set<std::string_view> values;
  for (const Value& value : to.values) values.insert(value.name);
  // one row needs no sum over rows, and has no value of one
  for (const Value& value : from.values) {
    if (!values.contains(value.name)) plan.specs.erase(value.name);
  }
  for (const NodeId id : idsBelow<NodeId>(from.nodes.size())) {
    const auto strategy = plan.strategies.find(nodeKey(from, id));
    const auto counterpart = counterparts.find(nodeKey(from, id));
    if (strategy == plan.strategies.end()) continue;
    if (counterpart == counterparts.end()) {
      plan.strategies.erase(strategy);
      continue;
    }
    const std::optional<FactorRule> rule = factorRule(from, id), other = factorRule(to, counterpart->second);
    if (!rule || !other) continue;
    std::istringstream uses(strategy->second);
    std::vector<std::string> renamed;
    for (std::string use; uses >> use;) renamed.push_back(renamedUse(*rule, *other, use));
    strategy->second = fmt::format("{}", fmt::join(renamed, " "));
  }
}

StageSharding shardingOfPlan(const TrainingGraph& training, const std::vector<NodeId>& nodes,
                             const ShardingPlan& plan, int64_t rows, const std::vector<int64_t>& rowless) {
  return readSharding(training, nodes, plan, LogicalMesh{plan.mesh, rows, rowless},
                      [](const std::string& message) { fail(ErrorCode::kConfiguration, "{}", message); });
}

std::vector<std::string> shardingFaults(const TrainingGraph& training, const std::vector<NodeId>& nodes,
                                        const ShardingPlan& plan) {
  std::vector<std::string> faults;
  readSharding(training, nodes, plan, LogicalMesh{plan.mesh},
               [&](const std::string& message) { faults.push_back(message); });
  return faults;
}

}  // namespace pipeshard
