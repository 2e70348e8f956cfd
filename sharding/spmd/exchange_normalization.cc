// Normalisations over axes that are cut: sums of the parts become means of the whole, the mean first, then
// squares around it.

#include "sharding/spmd/batch_moments.h"
#include "sharding/spmd/form_table.h"

namespace pipeshard {
namespace {

// The normalised axes are those from `axis` on; X is input 0 or, for the gradient, input 1.
bool isGradient(const Node& node) { return !node.domain.empty() && node.op_type != "RMSNormalization"; }
size_t inputX(const Node& node) { return isGradient(node) ? 1 : 0; }

size_t firstAxis(const Node& node, size_t rank) { return normalizeAxis(node.intAttribute("axis", -1), rank); }

const ExchangeForm* layerCut(const Graph& graph, const Node& node, const FactorRule& rule, int factor) {
  const TensorFactors& x = rule.inputs[inputX(node)];
  if (!isReal(graph, node.inputs[inputX(node)])) return nullptr;
  for (size_t axis = firstAxis(node, x.size()); axis < x.size(); ++axis) {
    if (soleFactor(x, axis) == factor) return wholeOutputs();
  }
  return nullptr;
}

class LayerForm {
 public:
  explicit LayerForm(FormContext& context) : context_(context), emit_(context.emit) {
    const size_t position = inputX(context.node);
    const Shape& whole = context.wholeInput(position);
    x_ = context.inputs[position];
    type_ = emit_.type(x_);
    std::vector<int> factors;
    int64_t count = 1;
    for (size_t axis = firstAxis(context.node, whole.size()); axis < whole.size(); ++axis) {
      axes_.push_back(axis);
      factors.push_back(soleFactor(context.rule.inputs[position], axis));
      count *= whole[axis];
    }
    groups_ = context.groupsOf(factors);
    count_ = emit_.scalar(type_, static_cast<double>(count));
  }

  // X, Scale, B -> Y, Mean, InvStdDev
  void layer() {
    const ValueId mean = meanOf(x_);
    const ValueId centred = emit_.binary("Sub", x_, mean);
    const ValueId inverse = inverseRoot(centred);
    giveStatistic(1, mean);
    giveStatistic(2, inverse);
    const ValueId normal = emit_.binary("Mul", centred, inverse);
    if (!context_.hasInput(2)) return emit_.giveElementwise(0, "Mul", {normal, context_.inputs[1]});
    emit_.giveElementwise(0, "Add", {emit_.binary("Mul", normal, context_.inputs[1]), context_.inputs[2]});
  }

  // X, Scale -> Y, and InvRms of ours
  void rootMeanSquare() {
    const ValueId inverse = inverseRoot(x_);
    giveStatistic(1, inverse);
    emit_.giveElementwise(0, "Mul", {emit_.binary("Mul", x_, inverse), context_.inputs[1]});
  }

  // From dY, X, Scale, InvRms, with g = dY Scale and x' = X InvRms:   dX = InvRms (g - x' mean(g x'))
  void rootMeanSquareGradient() {
    const ValueId g = emit_.binary("Mul", context_.inputs[0], context_.inputs[2]);
    const ValueId inverse = context_.inputs[3];
    const ValueId normal = emit_.binary("Mul", x_, inverse);
    const ValueId along = emit_.binary("Mul", normal, meanOf(emit_.binary("Mul", g, normal)));
    emit_.giveElementwise(0, "Mul", {emit_.binary("Sub", g, along), inverse});
  }

  // From dY, X, Scale, Mean, InvStdDev, with g = dY Scale and x' = (X - Mean) InvStdDev:
  //   dX = InvStdDev (g - mean(g) - x' mean(g x'))
  void inputGradient() {
    const ValueId g = emit_.binary("Mul", context_.inputs[0], context_.inputs[2]);
    const ValueId inverse = emit_.cast(context_.inputs[4], type_);
    const ValueId centred = emit_.binary("Sub", x_, emit_.cast(context_.inputs[3], type_));
    const ValueId normal = emit_.binary("Mul", centred, inverse);
    // Both sums in one exchange, side by side along the last axis.
    const ValueId sum = emit_.reduce("ReduceSum", g, axes_);
    const ValueId dot = emit_.reduce("ReduceSum", emit_.binary("Mul", g, normal), axes_);
    const int64_t last = axes_.back();
    Shape both_shape = emit_.shape(sum);
    both_shape[last] = 2;
    const ValueId parts = emit_.op("Concat", {sum, dot}, type_, both_shape, {{"axis", last}});
    const ValueId means = emit_.binary("Div", emit_.allReduce(parts, groups_), count_);
    const ValueId rest = emit_.binary("Sub", g, oneOf(means, 0, last));
    const ValueId along = emit_.binary("Mul", normal, oneOf(means, 1, last));
    emit_.giveElementwise(0, "Mul", {emit_.binary("Sub", rest, along), inverse});
  }

 private:
  ValueId meanOf(ValueId value) {
    return emit_.binary("Div", emit_.allReduce(emit_.reduce("ReduceSum", value, axes_), groups_), count_);
  }
  // 1 / sqrt(mean(value^2) + epsilon)
  ValueId inverseRoot(ValueId value) {
    const auto epsilon = static_cast<double>(context_.node.floatAttribute("epsilon", 1e-5f));
    const ValueId square = meanOf(emit_.binary("Mul", value, value));
    return emit_.unary("Reciprocal",
                       emit_.unary("Sqrt", emit_.binary("Add", square, emit_.scalar(type_, epsilon))));
  }
  void giveStatistic(size_t output, ValueId value) {
    if (emit_.wants(output))
      emit_.giveCast(output, value, context_.exchange.whole.dataType(context_.node.outputs[output]));
  }
  ValueId oneOf(ValueId values, int64_t index, int64_t axis) {
    Shape shape = emit_.shape(values);
    shape[axis] = 1;
    return emit_.op("Slice",
                    {values, emit_.integers({index}), emit_.integers({index + 1}), emit_.integers({axis})},
                    type_, shape);
  }

  FormContext& context_;
  NodeEmitter& emit_;
  ValueId x_;
  DataType type_ = DataType::kUndefined;
  std::vector<int64_t> axes_;
  std::vector<GroupId> groups_;
  ValueId count_;
};

// Everything but the channels. The weight gradient's outputs are sums of the rows' parts.
const ExchangeForm* batchCut(const Graph& graph, const Node& node, const FactorRule& rule, int factor) {
  static const ExchangeForm sums{{true, true}};
  const TensorFactors& x = rule.inputs[inputX(node)];
  if (!needsBatchMoments(node) || !isReal(graph, node.inputs[inputX(node)])) return nullptr;
  for (size_t axis = 0; axis < x.size(); ++axis) {
    if (axis != 1 && soleFactor(x, axis) == factor)
      return node.op_type == "BatchNormalizationWeightGrad" ? &sums : wholeOutputs();
  }
  return nullptr;
}

void emitBatch(FormContext& context) {
  const size_t position = inputX(context.node);
  const Shape& whole = context.wholeInput(position);
  std::vector<int> factors;
  for (size_t axis = 0; axis < whole.size(); ++axis) {
    if (axis != 1) factors.push_back(soleFactor(context.rule.inputs[position], axis));
  }
  const BatchTogether together{context.groupsOf(factors), elementCount(whole) / whole.at(1)};
  emitBatchNormalization(context.emit, context.node, context.inputs, together);
}

// X / norm along one axis; norms in float64, as in the CPU kernel.
const ExchangeForm* lpCut(const Graph& graph, const Node& node, const FactorRule& rule, int factor) {
  const size_t axis = firstAxis(node, rule.inputs[0].size());
  return isReal(graph, node.inputs[0]) && soleFactor(rule.inputs[0], axis) == factor ? wholeOutputs()
                                                                                     : nullptr;
}

void emitLp(FormContext& context) {
  NodeEmitter& emit = context.emit;
  const int64_t axis = firstAxis(context.node, context.wholeInput(0).size());
  const DataType type = emit.type(context.inputs[0]);
  const bool squares = context.node.intAttribute("p", 2) == 2;
  const ValueId x = emit.cast(context.inputs[0], DataType::kFloat64);
  const ValueId part = emit.reduce(squares ? "ReduceSumSquare" : "ReduceL1", x, {axis});
  ValueId norm = emit.allReduce(part, context.groupsOf({soleFactor(context.rule.inputs[0], axis)}));
  if (squares) norm = emit.unary("Sqrt", norm);
  if (type == DataType::kFloat64) return emit.giveElementwise(0, "Div", {x, norm});
  emit.giveCast(0, emit.binary("Div", x, norm), type);
}

}  // namespace

void registerNormalizationForms(FormTable& table) {
  table.add("", "LayerNormalization", {layerCut, [](FormContext& context) { LayerForm(context).layer(); }});
  table.add("", "RMSNormalization",
            {layerCut, [](FormContext& context) { LayerForm(context).rootMeanSquare(); }});
  table.add(kPipeshardDomain, "RMSNormalization",
            {layerCut, [](FormContext& context) { LayerForm(context).rootMeanSquare(); }});
  table.add(kPipeshardDomain, "RMSNormalizationInputGrad",
            {layerCut, [](FormContext& context) { LayerForm(context).rootMeanSquareGradient(); }});
  table.add(kPipeshardDomain, "LayerNormalizationInputGrad",
            {layerCut, [](FormContext& context) { LayerForm(context).inputGradient(); }});
  table.add("", "BatchNormalization", {batchCut, emitBatch});
  table.add(kPipeshardDomain, "BatchNormalizationInputGrad", {batchCut, emitBatch});
  table.add(kPipeshardDomain, "BatchNormalizationWeightGrad", {batchCut, emitBatch});
  table.add("", "LpNormalization", {lpCut, emitLp});
}

}  // namespace pipeshard
