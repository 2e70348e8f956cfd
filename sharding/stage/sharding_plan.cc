#include "sharding/stage/sharding_plan.h"

#include <functional>
#include <set>

#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "ir/base/near_matches.h"

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
                           const ShardingPlan& plan, const FaultHandler& fault) {
  StageSharding sharding{LogicalMesh{plan.mesh}, std::vector<Strategy>(training.graph.nodes.size()),
                         std::vector<ShardingSpec>(training.graph.values.size())};
  readStrategies(training, nodes, plan, fault, sharding);
  readSpecs(training, nodes, plan, fault, sharding);
  return sharding;
}

}  // namespace

StageSharding shardingOfPlan(const TrainingGraph& training, const std::vector<NodeId>& nodes,
                             const ShardingPlan& plan) {
  return readSharding(training, nodes, plan,
                      [](const std::string& message) { fail(ErrorCode::kConfiguration, "{}", message); });
}

std::vector<std::string> shardingFaults(const TrainingGraph& training, const std::vector<NodeId>& nodes,
                                        const ShardingPlan& plan) {
  std::vector<std::string> faults;
  readSharding(training, nodes, plan, [&](const std::string& message) { faults.push_back(message); });
  return faults;
}

}  // namespace pipeshard
