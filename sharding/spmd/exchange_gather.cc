// Indexing into an axis that is cut: every device answers for the indices of its own part, and gives zeros
// for the others.
#include <fmt/format.h>

#include "sharding/spmd/local_indices.h"

namespace pipeshard {
namespace {

int64_t axisOf(const Node& node, const Shape& data) {
  return normalizeAxis(node.intAttribute("axis", 0), data.size());
}

// data, indices -> gathered
const ExchangeForm* gatherCut(const Graph& graph, const Node& node, const FactorRule& rule, int factor) {
  const int64_t axis = axisOf(node, graph.shape(node.inputs[0]));
  return isReducible(graph, node.inputs[0]) && soleFactor(rule.inputs[0], axis) == factor ? partialOutput()
                                                                                          : nullptr;
}

// dY, indices, shape -> dData: the data's own part
const ExchangeForm* gatherGradCut(const Graph& graph, const Node& node, const FactorRule& rule, int factor) {
  return soleFactor(rule.outputs[0], axisOf(node, graph.shape(node.outputs[0]))) == factor ? wholeOutputs()
                                                                                           : nullptr;
}

// The mask has the shape of the indices, the gathered tensor that of the data with the indices' axes in place
// of `axis`.
ValueId asGathered(NodeEmitter& emit, ValueId mine, size_t data_rank, size_t axis) {
  const size_t rank = emit.shape(mine).size();
  std::vector<int64_t> behind;
  for (size_t i = 0; i + axis + 1 < data_rank; ++i) behind.push_back(rank + i);
  return emit.unsqueeze(mine, behind);
}

void emitGather(FormContext& context) {
  NodeEmitter& emit = context.emit;
  const int64_t axis = axisOf(context.node, context.wholeInput(0));
  const AxisPart part = axisPart(context, context.strategy.inputs[0], context.wholeInput(0), axis);
  const LocalIndices local = localIndices(emit, context.inputs[1], part, true);
  const bool by_element = context.node.is("GatherElements");
  const Shape data = emit.shape(context.inputs[0]);
  Shape shape = emit.shape(context.inputs[1]);
  if (!by_element) {
    shape.insert(shape.begin(), data.begin(), data.begin() + axis);
    shape.insert(shape.end(), data.begin() + axis + 1, data.end());
  }
  const DataType type = emit.type(context.inputs[0]);
  const ValueId gathered =
      emit.op(context.node.op_type, {context.inputs[0], local.index}, type, shape, {{"axis", axis}});
  const ValueId mine = by_element ? local.mine : asGathered(emit, local.mine, data.size(), axis);
  emit.give(0, "Where", {mine, gathered, emit.scalar(type, 0)}, type, shape);
}

void emitGatherGrad(FormContext& context) {
  NodeEmitter& emit = context.emit;
  const int64_t axis = axisOf(context.node, context.wholeOutput(0));
  const Shard shard = context.outputShard(0);
  const LocalIndices local =
      localIndices(emit, context.inputs[1],
                   axisPart(context, context.strategy.outputs[0], context.wholeOutput(0), axis), true);
  const bool by_element = context.node.op_type == "GatherElementsGrad";
  const ValueId mine = by_element ? local.mine : asGathered(emit, local.mine, shard.size.size(), axis);
  const DataType type = emit.type(context.inputs[0]);
  const ValueId gradient = emit.where(mine, context.inputs[0], emit.scalar(type, 0));
  const ValueId shape =
      emit.integersOfDevice(fmt::format("shard {} of {}", printSpec(context.strategy.outputs[0]),
                                        shapeToString(context.wholeOutput(0))),
                            shard.size);
  emit.give(0, "pipeshard::" + context.node.op_type, {gradient, local.index, shape}, type, shard.size,
            {{"axis", axis}});
}

// indices, depth, values: the depth is the output's axis.
const ExchangeForm* oneHotCut(const Graph& graph, const Node& node, const FactorRule& rule, int factor) {
  const size_t axis = normalizeAxis(node.intAttribute("axis", -1), graph.shape(node.outputs[0]).size());
  const DataType indices = graph.dataType(node.inputs[0]);
  if (indices != DataType::kInt32 && indices != DataType::kInt64) return nullptr;
  return soleFactor(rule.outputs[0], axis) == factor ? wholeOutputs() : nullptr;
}

// An index that is nobody's turns no place on: another device's is made one.
void emitOneHot(FormContext& context) {
  NodeEmitter& emit = context.emit;
  const int64_t axis = normalizeAxis(context.node.intAttribute("axis", -1), context.wholeOutput(0).size());
  const Shard shard = context.outputShard(0);
  const AxisPart part = axisPart(context, context.strategy.outputs[0], context.wholeOutput(0), axis);
  const LocalIndices local = localIndices(emit, context.inputs[0], part, true);
  const DataType type = emit.type(context.inputs[0]);
  const ValueId index =
      emit.where(local.mine, local.index, emit.scalar(type, static_cast<double>(part.whole)));
  const ValueId depth = emit.ofDevice("size of " + part.key, emit.type(context.inputs[1]), part.size);
  emit.give(0, "OneHot", {index, depth, context.inputs[2]}, emit.type(context.inputs[2]), shard.size,
            {{"axis", axis}});
}

}  // namespace

void registerGatherForms(FormTable& table) {
  table.add("", "Gather", {gatherCut, emitGather});
  table.add("", "GatherElements", {gatherCut, emitGather});
  table.add(kPipeshardDomain, "GatherGrad", {gatherGradCut, emitGatherGrad});
  table.add(kPipeshardDomain, "GatherElementsGrad", {gatherGradCut, emitGatherGrad});
  table.add("", "OneHot", {oneHotCut, emitOneHot});
}

}  // namespace pipeshard
