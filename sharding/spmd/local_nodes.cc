#include "sharding/spmd/local_nodes.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "ir/base/tensor_box.h"
#include "ir/operators/operator_facts.h"
#include "sharding/spmd/work_count.h"

namespace pipeshard {

namespace {

// Which part of the factor's elements this device works on.
double shareOf(const StrategyBuilder& strategies, const LogicalMesh& mesh, DeviceId device,
               const std::vector<AxisUse>& uses, int factor) {
  ShardingSpec spec{{{}}, {}};
  for (size_t axis = 0; axis < uses.size(); ++axis) {
    if (uses[axis] == AxisUse{AxisUse::Kind::kFactor, factor}) spec.axes[0].push_back(axis);
  }
  const int64_t size = strategies.rule()->factors[factor].size;
  return static_cast<double>(shardOf(spec, {size}, mesh, device).size[0]) / static_cast<double>(size);
}

ValueId scale(GraphBuilder& builder, ValueId mean, double share) {
  const DataType type = builder.graph().dataType(mean);
  const ValueId constant = builder.addConstant("share", makeScalar(type, share));
  const std::string name = builder.graph().value(mean).name + "_share";
  const ValueId scaled = builder.addValue(name, type, Shape(builder.graph().shape(mean)));
  const NodeId node = builder.addNode("", "Mul", {mean, constant}, {scaled});
  markPlacing(builder.graph().node(node));
  return scaled;
}

// The local sizes of the node's output, which nodes share where they share them on all devices.
ValueId sizesOf(GraphBuilder& builder, const ExchangeContext& context, const ShardingSpec& spec,
                const Node& node, size_t position) {
  const Shape& whole = context.whole.shape(node.outputs[0]);
  const std::string key = fmt::format("sizes {} {}", shapeToString(whole), printSpec(spec));
  if (const ValueId known = context.emitted->find(key); known.valid()) return known;
  const Shape shape = shardOf(spec, whole, context.mesh, context.device).size;
  const ValueId sizes = builder.addConstant(context.whole.value(node.inputs[position]).name,
                                            makeConstant<int64_t>({std::ssize(shape)}, shape));
  context.emitted->put(key, sizes);
  return sizes;
}

}  // namespace

Constant localConstant(const Constant& constant, const ShardingSpec& spec, const LogicalMesh& mesh,
                       DeviceId device) {
  const Shard shard = shardOf(spec, constant.shape, mesh, device);
  Constant local{constant.data_type, shard.size, {}};
  local.bytes.resize(byteCount(constant.data_type, shard.size));
  const bool keeps = std::all_of(spec.partial.begin(), spec.partial.end(),
                                 [&](int axis) { return mesh.coordinate(device, axis) == 0; });
  if (!keeps || local.bytes.empty()) return local;
  if (shard.size == constant.shape) return constant;
  const size_t element = dataTypeSize(constant.data_type);
  std::byte* to = local.bytes.data();
  forEachRun(constant.shape, shard, [&](int64_t first, int64_t count) {
    const size_t bytes = count * element;
    std::memcpy(to, constant.bytes.data() + first * element, bytes);
    to += bytes;
  });
  return local;
}

double meanShare(const StrategyBuilder& strategies, const LogicalMesh& mesh, DeviceId device,
                 const std::vector<AxisUse>& uses, size_t output) {
  double share = 1;
  for (int factor : strategies.meanFactors(uses, output))
    share *= shareOf(strategies, mesh, device, uses, factor);
  return share;
}

std::optional<size_t> sizesInput(const Node& node) {
  const int input = operatorFacts(node).sizes_input;
  if (input < 0 || input >= std::ssize(node.inputs)) return std::nullopt;
  return input;
}

std::vector<ValueId> emitLocalNode(GraphBuilder& builder, const StrategyBuilder& strategies,
                                   const ExchangeContext& context, const Node& node, const Strategy& strategy,
                                   std::vector<ValueId> inputs) {
  const Graph& whole = context.whole;
  const auto localShape = [&](size_t o) {
    return shardOf(strategy.outputs[o], whole.shape(node.outputs[o]), context.mesh, context.device).size;
  };
  if (const auto sizes = sizesInput(node))
    inputs[*sizes] = sizesOf(builder, context, strategy.outputs[0], node, *sizes);
  if (strategies.exchangesAny(strategy.uses))
    return emitExchangeForm(builder, context, node, strategy, inputs);
  Node local = node;
  local.opaque.clear();  // the exporter's sharding
  local.inputs = std::move(inputs);
  for (size_t o = 0; o < node.outputs.size(); ++o) {
    if (!node.outputs[o].valid()) continue;
    const Value& output = whole.value(node.outputs[o]);
    local.outputs[o] = builder.addValue(output.name, output.data_type, localShape(o));
  }
  std::vector<ValueId> outputs = local.outputs;
  builder.graph().nodes.push_back(std::move(local));
  for (size_t o = 0; o < node.outputs.size(); ++o) {
    if (!strategies.scalesMean(strategy.uses, o)) continue;
    outputs[o] =
        scale(builder, outputs[o], meanShare(strategies, context.mesh, context.device, strategy.uses, o));
  }
  return outputs;
}

}  // namespace pipeshard
