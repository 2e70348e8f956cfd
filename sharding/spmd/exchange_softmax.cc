// Softmax and its logarithm over axes that are cut: maxima, then sums of exponentials, over all devices of a
// row.
#include "sharding/spmd/exchange_softmax.h"

#include <algorithm>

namespace pipeshard {

ShiftedSum shiftedSum(NodeEmitter& emit, ValueId x, const std::vector<int64_t>& axes,
                      const std::vector<GroupId>& groups) {
  ShiftedSum result;
  result.most = emit.allReduce(emit.reduce("ReduceMax", x, axes), groups, "max");
  result.shifted = emit.binary("Sub", x, result.most);
  result.exponential = emit.unary("Exp", result.shifted);
  result.sum = emit.allReduce(emit.reduce("ReduceSum", result.exponential, axes), groups);
  return result;
}

namespace {

// Axes that the operator takes together (whole in the rule), and their factors.
struct WholeAxes {
  std::vector<int64_t> axes;
  std::vector<int> factors;
};

WholeAxes wholeAxes(const Node& node, const Shape& shape) {
  const bool flattening = node.domain.empty() && node.opset_version < 13;
  const int axis = normalizeAxis(node.intAttribute("axis", flattening ? 1 : -1), shape.size());
  const int end = flattening ? shape.size() : axis + 1;
  WholeAxes result;
  for (int a = axis; a < end; ++a) result.axes.push_back(a);
  return result;
}

WholeAxes wholeAxes(const FormContext& context) {
  WholeAxes result = wholeAxes(context.node, context.wholeInput(0));
  for (const int64_t axis : result.axes) result.factors.push_back(soleFactor(context.rule.inputs[0], axis));
  return result;
}

const ExchangeForm* softmaxCut(const Graph& graph, const Node& node, const FactorRule& rule, int factor) {
  const std::vector<int64_t> axes = wholeAxes(node, graph.shape(node.inputs[0])).axes;
  const auto holds = [&](int64_t axis) { return soleFactor(rule.inputs[0], axis) == factor; };
  return isReal(graph, node.inputs[0]) && std::any_of(axes.begin(), axes.end(), holds) ? wholeOutputs()
                                                                                       : nullptr;
}

void emitSoftmax(FormContext& context) {
  const WholeAxes whole = wholeAxes(context);
  const ShiftedSum parts =
      shiftedSum(context.emit, context.inputs[0], whole.axes, context.groupsOf(whole.factors));
  context.emit.giveElementwise(0, "Div", {parts.exponential, parts.sum});
}

void emitLogSoftmax(FormContext& context) {
  const WholeAxes whole = wholeAxes(context);
  const ShiftedSum parts =
      shiftedSum(context.emit, context.inputs[0], whole.axes, context.groupsOf(whole.factors));
  context.emit.giveElementwise(0, "Sub", {parts.shifted, context.emit.unary("Log", parts.sum)});
}

// dX = Y (dY - sum(dY Y))
void emitSoftmaxGrad(FormContext& context) {
  NodeEmitter& emit = context.emit;
  const WholeAxes whole = wholeAxes(context);
  const ValueId dy = context.inputs[0];
  const ValueId y = context.inputs[1];
  const ValueId dot = emit.allReduce(emit.reduce("ReduceSum", emit.binary("Mul", dy, y), whole.axes),
                                     context.groupsOf(whole.factors));
  emit.giveElementwise(0, "Mul", {emit.binary("Sub", dy, dot), y});
}

// dX = dY - exp(Y) sum(dY)
void emitLogSoftmaxGrad(FormContext& context) {
  NodeEmitter& emit = context.emit;
  const WholeAxes whole = wholeAxes(context);
  const ValueId dy = context.inputs[0];
  const ValueId sum =
      emit.allReduce(emit.reduce("ReduceSum", dy, whole.axes), context.groupsOf(whole.factors));
  emit.giveElementwise(0, "Sub", {dy, emit.binary("Mul", emit.unary("Exp", context.inputs[1]), sum)});
}

}  // namespace

void registerSoftmaxForms(FormTable& table) {
  table.add("", "Softmax", {softmaxCut, emitSoftmax});
  table.add("", "LogSoftmax", {softmaxCut, emitLogSoftmax});
  table.add(kPipeshardDomain, "SoftmaxGrad", {softmaxCut, emitSoftmaxGrad});
  table.add(kPipeshardDomain, "LogSoftmaxGrad", {softmaxCut, emitLogSoftmaxGrad});
}

}  // namespace pipeshard
