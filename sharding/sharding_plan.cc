#include "sharding/sharding_plan.h"

#include <set>

#include "ir/error.h"

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

}  // namespace

const std::string& nodeKey(const Graph& graph, NodeId node) {
  for (ValueId output : graph.node(node).outputs) {
    if (output.valid()) return graph.value(output).name;
  }
  PIPESHARD_CHECK(false, "{} has no output", describeNode(graph.node(node)));
  return graph.node(node).name;
}

void describeSharding(const TrainingGraph& training, const std::vector<NodeId>& nodes, const StageSharding& sharding, ShardingPlan& plan) {
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

StageSharding shardingOfPlan(const TrainingGraph& training, const std::vector<NodeId>& nodes, const ShardingPlan& plan) {
  const Graph& graph = training.graph;
  StageSharding sharding{LogicalMesh{plan.mesh}, std::vector<Strategy>(graph.nodes.size()), std::vector<ShardingSpec>(graph.values.size())};
  std::set<std::string> known;
  for (NodeId id : nodes) {
    const Node& node = graph.node(id);
    const std::string& key = nodeKey(graph, id);
    known.insert(key);
    const auto found = plan.strategies.find(key);
    std::vector<AxisUse> uses(plan.mesh.size());
    if (found != plan.strategies.end()) {
      try {
        uses = parseUses(graph, node, sharding.mesh, found->second);
      } catch (Error& error) {
        throw error.addContext(fmt::format("strategies.{}", key));
      }
    }
    const std::optional<Strategy> strategy = makeStrategy(graph, node, sharding.mesh, uses);
    if (!strategy) {
      fail(ErrorCode::kConfiguration, "strategies.{}: {} cannot run as \"{}\" on mesh {} with these shapes; choose another strategy", key,
           describeNode(node), printUses(graph, node, uses), printMesh(sharding.mesh));
    }
    sharding.strategies[id.index()] = *strategy;
  }
  for (const auto& [name, text] : plan.strategies) {
    if (!known.contains(name)) fail(ErrorCode::kConfiguration, "strategies.{}: the stage has no node with an output of this name", name);
  }
  known.clear();
  for (ValueId value : valuesOf(graph, nodes)) {
    const std::string& name = graph.value(value).name;
    known.insert(name);
    const auto found = plan.specs.find(name);
    ShardingSpec spec = replicated(graph.shape(value).size());
    if (found != plan.specs.end()) {
      spec = parseSpec(found->second);
      const std::string fault = specFault(spec, graph.shape(value), sharding.mesh);
      if (!fault.empty())
        fail(ErrorCode::kConfiguration, "specs.{}: \"{}\" does not fit {}: {}", name, found->second, shapeToString(graph.shape(value)),
             fault);
    }
    sharding.kept[value.index()] = std::move(spec);
  }
  for (const auto& [name, text] : plan.specs) {
    if (!known.contains(name)) fail(ErrorCode::kConfiguration, "specs.{}: the stage has no value of this name", name);
  }
  return sharding;
}

}  // namespace pipeshard
