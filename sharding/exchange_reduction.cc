// Axes that are folded away and cut: maxima, minima and roots of sums are exchanged at once, and the first place of an extreme is the
// first of those that the parts found.
#include <algorithm>

#include "sharding/form_table.h"

namespace pipeshard {
namespace {

std::string_view extremeOf(const std::string& op_type) { return op_type.ends_with("Max") ? "max" : "min"; }

// ReduceMax, ReduceMin and ReduceL2: factors that the output lacks, of a kind that is no plain sum.
const ExchangeForm* reduceCut(const Graph& graph, const Node& node, const FactorRule& rule, int factor) {
  const FactorKind kind = rule.factors[static_cast<size_t>(factor)].kind;
  const bool folded = kind == FactorKind::kMax || kind == FactorKind::kMin || kind == FactorKind::kWhole;
  return folded && isReal(graph, node.inputs[0]) ? wholeOutputs() : nullptr;
}

std::vector<int> foldedFactors(const FactorRule& rule) {
  std::vector<int> factors;
  for (size_t f = 0; f < rule.factors.size(); ++f) {
    if (rule.factors[f].kind != FactorKind::kParallel) factors.push_back(static_cast<int>(f));
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
  const auto axis = static_cast<size_t>(normalizeAxis(node.intAttribute("axis", 0), graph.shape(node.inputs[0]).size()));
  return isReal(graph, node.inputs[0]) && soleFactor(rule.inputs[0], axis) == factor ? wholeOutputs() : nullptr;
}

// Who found the extreme of all names its place; the others name one behind (before) all places. Places are exact in float64.
void emitArg(FormContext& context) {
  NodeEmitter& emit = context.emit;
  const auto axis = normalizeAxis(context.node.intAttribute("axis", 0), context.wholeInput(0).size());
  const auto position = static_cast<size_t>(axis);
  const std::vector<int> groups = context.groupsOf({soleFactor(context.rule.inputs[0], position)});
  const bool last = context.node.intAttribute("select_last_index", 0) != 0;
  const bool greatest = context.node.is("ArgMax");
  const ValueId best = emit.reduce(greatest ? "ReduceMax" : "ReduceMin", context.inputs[0], {axis});
  const ValueId best_of_all = emit.allReduce(best, groups, greatest ? "max" : "min");
  Shape kept = emit.shape(best);
  const ValueId place = emit.op(context.node.op_type, {context.inputs[0]}, DataType::kInt64, kept,
                                {{"axis", int64_t{axis}}, {"keepdims", int64_t{1}}, {"select_last_index", int64_t{last}}});
  const ShardingSpec& spec = context.strategy.inputs[0];
  const int64_t start = context.inputShard(0).start[position];
  const ValueId offset = emit.ofDevice("start of " + axisKey(spec, context.wholeInput(0), position), DataType::kInt64, start);
  const ValueId found = emit.cast(emit.binary("Add", place, offset), DataType::kFloat64);
  const double nowhere = last ? -1 : static_cast<double>(context.wholeInput(0)[position]);
  const ValueId candidate = emit.where(emit.compare("Equal", best, best_of_all), found, emit.scalar(DataType::kFloat64, nowhere));
  const ValueId chosen = emit.allReduce(candidate, groups, last ? "max" : "min");
  const bool keep = context.node.intAttribute("keepdims", 1) != 0;
  emit.giveCast(0, keep ? chosen : emit.squeeze(chosen, position), DataType::kInt64);
}

}  // namespace

void registerReductionForms(FormTable& table) {
  table.add("", "ReduceMax", {reduceCut, emitReduceExtreme});
  table.add("", "ReduceMin", {reduceCut, emitReduceExtreme});
  table.add("", "ReduceL2", {reduceCut, emitReduceL2});
  table.add("", "ArgMax", {argCut, emitArg});
  table.add("", "ArgMin", {argCut, emitArg});
}

}  // namespace pipeshard
