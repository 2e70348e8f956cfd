#include "sharding/spmd/strategy_cost.h"

#include <algorithm>

#include "sharding/spmd/local_nodes.h"
#include "sharding/spmd/operator_work.h"
#include "sharding/spmd/work_count.h"

namespace pipeshard {

namespace {

class NodeCost {
 public:
  NodeCost(const Graph& graph, const Node& node, const LogicalMesh& mesh, const CostModel& model)
      : graph_(graph),
        node_(node),
        mesh_(mesh),
        model_(model),
        builder_(graph, node, mesh),
        whole_(nodeWork(graph, node, builder_.rule())) {
    groups_.group_of_axis = idsBelow<GroupId>(mesh.rank());
  }

  StrategyCost of(const Strategy& strategy) const {
    if (builder_.exchangesAny(strategy.uses)) return ofExchange(strategy);
    if (builder_.rule() && builder_.rule()->flops == 0) return {};  // a view
    int64_t bytes = 0;
    for (size_t i = 0; i < node_.inputs.size(); ++i) {
      // rewritten: one number per axis of the output
      const bool sizes = i == sizesInput(node_);
      if (sizes) bytes += graph_.shape(node_.outputs[0]).size() * sizeof(int64_t);
      if (!sizes) bytes += bytesOf(node_.inputs[i], strategy.inputs[i]);
    }
    for (size_t o = 0; o < node_.outputs.size(); ++o) bytes += bytesOf(node_.outputs[o], strategy.outputs[o]);
    const std::vector<int64_t> sizes = localSizes(strategy);
    return {nodeTime(model_, graph_, node_, builder_.rule(),
                     {flops(sizes), bytes, whole_.work_class, whole_.type}, sizes),
            0};
  }

 private:
  // Of the rule's factors, on the device with the largest part.
  std::vector<int64_t> localSizes(const Strategy& strategy) const {
    std::vector<int64_t> sizes;
    if (!builder_.rule()) return sizes;
    for (const Factor& factor : builder_.rule()->factors) sizes.push_back(factor.size);
    for (size_t axis = 0; axis < strategy.uses.size(); ++axis) {
      if (strategy.uses[axis].kind != AxisUse::Kind::kFactor) continue;
      int64_t& part = sizes[strategy.uses[axis].index];
      const int64_t devices = mesh_.axisSize(axis);
      part = (part + devices - 1) / devices;
    }
    return sizes;
  }

  double flops(const std::vector<int64_t>& sizes) const {
    double flops = whole_.flops;
    for (size_t factor = 0; factor < sizes.size(); ++factor) {
      const int64_t size = builder_.rule()->factors[factor].size;
      if (sizes[factor] != size)
        flops = flops / static_cast<double>(size) * static_cast<double>(sizes[factor]);
    }
    return flops;
  }

  int64_t bytesOf(ValueId value, const ShardingSpec& spec) const {
    if (!value.valid()) return 0;
    return largestShard(spec, graph_.shape(value), mesh_) * dataTypeSize(graph_.dataType(value));
  }

  // Counted from the nodes that the last device, which has the largest shards, would run.
  StrategyCost ofExchange(const Strategy& strategy) const {
    const DeviceId device(mesh_.deviceCount() - 1);
    Graph local;
    local.opset_imports = graph_.opset_imports;
    GraphBuilder builder(local);
    std::vector<ValueId> inputs(node_.inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      const ValueId id = node_.inputs[i];
      if (!id.valid()) continue;
      const Constant* constant = graph_.constant(id);
      if (constant != nullptr) {
        inputs[i] = builder.addConstant(graph_.value(id).name,
                                        localConstant(*constant, strategy.inputs[i], mesh_, device));
      } else {
        inputs[i] = builder.addValue(graph_.value(id).name, graph_.dataType(id),
                                     shardOf(strategy.inputs[i], graph_.shape(id), mesh_, device).size);
      }
    }
    EmittedValues emitted;
    emitLocalNode(builder, builder_, {graph_, mesh_, device, groups_, &emitted}, node_, strategy,
                  std::move(inputs));
    const WorkCount count = countWork(local, mesh_, groups_, model_);
    return {count.compute_ns, count.communication_ns};
  }

  const Graph& graph_;
  const Node& node_;
  const LogicalMesh& mesh_;
  const CostModel& model_;
  StrategyBuilder builder_;
  NodeWork whole_;
  MeshGroups groups_;  // by mesh axis
};

}  // namespace

StrategyCost strategyCost(const Graph& graph, const Node& node, const LogicalMesh& mesh,
                          const Strategy& strategy, const CostModel& model) {
  return NodeCost(graph, node, mesh, model).of(strategy);
}

}  // namespace pipeshard
