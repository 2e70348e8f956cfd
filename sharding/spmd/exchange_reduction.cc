// Axes that are folded away and cut: maxima, minima and roots of sums are exchanged at once, and the first
// place of an extreme is the first of those that the parts found. Running sums need the totals of the parts
// before.
#include <algorithm>

#include <fmt/format.h>

#include "sharding/spmd/form_table.h"

namespace pipeshard {
namespace {

std::string_view extremeOf(const std::string& op_type) { return op_type.ends_with("Max") ? "max" : "min"; }

// ReduceMax, ReduceMin and ReduceL2: factors that the output lacks, of a kind that is no plain sum.
const ExchangeForm* reduceCut(const Graph& graph, const Node& node, const FactorRule& rule, int factor) {
  const FactorKind kind = rule.factors[factor].kind;
  const bool folded = kind == FactorKind::kMax || kind == FactorKind::kMin || kind == FactorKind::kWhole;
  return folded && isReducible(graph, node.inputs[0]) ? wholeOutputs() : nullptr;
}

std::vector<int> foldedFactors(const FactorRule& rule) {
  std::vector<int> factors;
  for (size_t f = 0; f < rule.factors.size(); ++f) {
    if (rule.factors[f].kind != FactorKind::kParallel) factors.push_back(f);
  }
  return factors;
}

void emitReduceExtreme(FormContext& context) {
  NodeEmitter& emit = context.emit;
  const ValueId part = emit.value(emit.type(context.inputs[0]), context.outputShard(0).size);
  emit.copy(context.inputs, context.node.attributes, {part});
  emit.giveAllReduce(0, part, context.groupsOf(foldedFactors(context.rule)), extremeOf(context.node.op_type));
}

void emitReduceL2(FormContext& context) {
  NodeEmitter& emit = context.emit;
  const DataType type = emit.type(context.inputs[0]);
  const ValueId part = emit.value(type, context.outputShard(0).size);
  emit.copyAs("ReduceSumSquare", context.inputs, context.node.attributes, {part});
  const ValueId total = emit.allReduce(part, context.groupsOf(foldedFactors(context.rule)));
  emit.giveElementwise(0, "Sqrt", {total});
}

const ExchangeForm* argCut(const Graph& graph, const Node& node, const FactorRule& rule, int factor) {
  const size_t axis = normalizeAxis(node.intAttribute("axis", 0), graph.shape(node.inputs[0]).size());
  return isReducible(graph, node.inputs[0]) && soleFactor(rule.inputs[0], axis) == factor ? wholeOutputs()
                                                                                          : nullptr;
}

// Who found the extreme of all names its place; the others name one behind (before) all places.
void emitArg(FormContext& context) {
  NodeEmitter& emit = context.emit;
  const auto axis = normalizeAxis(context.node.intAttribute("axis", 0), context.wholeInput(0).size());
  const size_t position = axis;
  const std::vector<GroupId> groups = context.groupsOf({soleFactor(context.rule.inputs[0], position)});
  const bool last = context.node.intAttribute("select_last_index", 0) != 0;
  const bool greatest = context.node.is("ArgMax");
  const ValueId best = emit.reduce(greatest ? "ReduceMax" : "ReduceMin", context.inputs[0], {axis});
  const ValueId best_of_all = emit.allReduce(best, groups, greatest ? "max" : "min");
  Shape kept = emit.shape(best);
  const ValueId place =
      emit.op(context.node.op_type, {context.inputs[0]}, DataType::kInt64, kept,
              {{"axis", int64_t{axis}}, {"keepdims", int64_t{1}}, {"select_last_index", int64_t{last}}});
  const ShardingSpec& spec = context.strategy.inputs[0];
  const ValueId offset =
      emit.ofPlace("start of " + axisKey(spec, context.wholeInput(0), position), DataType::kInt64,
                   context.exchange.device, context.startsOf(spec, context.wholeInput(0), position));
  const ValueId found = emit.binary("Add", place, offset);
  const double nowhere = last ? -1 : static_cast<double>(context.wholeInput(0)[position]);
  const ValueId candidate =
      emit.where(emit.compare("Equal", best, best_of_all), found, emit.scalar(DataType::kInt64, nowhere));
  if (context.node.intAttribute("keepdims", 1) != 0)
    return emit.giveAllReduce(0, candidate, groups, last ? "max" : "min");
  emit.giveAllReduce(0, emit.squeeze(candidate, position), groups, last ? "max" : "min");
}

const ExchangeForm* cumSumCut(const Graph& graph, const Node& node, const FactorRule& rule, int factor) {
  const bool cut = rule.factors[factor].kind == FactorKind::kWhole;
  return cut && isReducible(graph, node.inputs[0]) ? wholeOutputs() : nullptr;
}

// Which parts of an axis lie before the device's, or behind it: [parts] along `axis` of so many axes.
Constant otherParts(const LogicalMesh& mesh, DeviceId device, const std::vector<int>& mesh_axes, bool behind,
                    int64_t axis, size_t axes) {
  int64_t index = 0, parts = 1;
  for (const int mesh_axis : mesh_axes) {
    index = index * mesh.axisSize(mesh_axis) + mesh.coordinate(device, mesh_axis);
    parts *= mesh.axisSize(mesh_axis);
  }
  Constant mask{DataType::kBool, Shape(axes, 1), std::vector<std::byte>(parts)};
  mask.shape[axis] = parts;
  for (int64_t part = 0; part < parts; ++part)
    mask.bytes[part] = std::byte(behind ? part > index : part < index);
  return mask;
}

// The part's own running sum, and the totals of the parts before it (behind it, in reverse).
void emitCumSum(FormContext& context) {
  NodeEmitter& emit = context.emit;
  const int64_t axis = std::find_if(context.rule.factors.begin(), context.rule.factors.end(),
                                    [](const Factor& factor) { return factor.kind == FactorKind::kWhole; }) -
                       context.rule.factors.begin();  // the factors are the axes
  const ShardingSpec& spec = context.strategy.inputs[0];
  const std::vector<int>& mesh_axes = spec.axes[axis];
  const DataType type = emit.type(context.inputs[0]);
  const ValueId own = emit.value(type, emit.shape(context.inputs[0]));
  emit.copy(context.inputs, context.node.attributes, {own});
  ValueId totals = emit.reduce("ReduceSum", context.inputs[0], {axis});
  for (auto mesh_axis = mesh_axes.rbegin(); mesh_axis != mesh_axes.rend(); ++mesh_axis) {
    const int64_t devices = context.exchange.mesh.axisSize(*mesh_axis);
    if (devices == 1) continue;
    const std::vector<int64_t> sizes(devices, emit.shape(totals)[axis]);
    Shape gathered = emit.shape(totals);
    gathered[axis] *= devices;
    const GroupId group = context.exchange.groups.group_of_axis.at(*mesh_axis);
    totals = emit.op("pipeshard::AllGather", {totals}, type, gathered,
                     {{"group", static_cast<int64_t>(group.index())}, {"axis", axis}, {"sizes", sizes}});
  }
  const bool reverse = context.node.intAttribute("reverse", 0) != 0;
  const size_t axes = emit.shape(totals).size();
  const std::string key = fmt::format("parts {} {} on axis {} of {}", reverse ? "behind" : "before",
                                      axisKey(spec, context.wholeInput(0), axis), axis, axes);
  const ValueId mask =
      emit.constantOfPlace(key, context.exchange.device,
                           [mesh = context.exchange.mesh, mesh_axes, reverse, axis, axes](DeviceId device) {
                             return otherParts(mesh, device, mesh_axes, reverse, axis, axes);
                           });
  const ValueId others = emit.where(mask, totals, emit.scalar(type, 0));
  emit.giveElementwise(0, "Add", {own, emit.reduce("ReduceSum", others, {axis})});
}

}  // namespace

void registerReductionForms(FormTable& table) {
  table.add("", "ReduceMax", {reduceCut, emitReduceExtreme});
  table.add("", "ReduceMin", {reduceCut, emitReduceExtreme});
  table.add("", "ReduceL2", {reduceCut, emitReduceL2});
  table.add("", "ArgMax", {argCut, emitArg});
  table.add("", "ArgMin", {argCut, emitArg});
  table.add("", "CumSum", {cumSumCut, emitCumSum});
}

}  // namespace pipeshard
