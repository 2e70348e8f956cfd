// Operators that fold axes away.
#include <algorithm>

#include "ir/operators/reduced_axes.h"
#include "sharding/rules/rule_builder.h"

namespace pipeshard {

namespace {

// What the parts of a cut reduced axis are to the whole. Where a function follows the sum (a root, a
// logarithm) they are nothing useful.
FactorKind reducedKind(const std::string& op_type) {
  if (op_type == "ReduceSum" || op_type == "ReduceSumSquare" || op_type == "ReduceL1")
    return FactorKind::kSum;
  if (op_type == "ReduceMean") return FactorKind::kMean;
  if (op_type == "ReduceMax") return FactorKind::kMax;
  if (op_type == "ReduceMin") return FactorKind::kMin;
  return FactorKind::kWhole;
}

FactorRule reduce(const Graph& graph, const Node& node, const std::vector<int>& axes, bool keep_dimensions,
                  FactorKind kind) {
  RuleBuilder builder(graph, node);
  const Shape& shape = builder.inputShape(0);
  const std::vector<int> factors = builder.factorsOf(shape);
  builder.alignInput(0, factors);
  size_t output_axis = 0;
  for (int axis = 0; axis < std::ssize(shape); ++axis) {
    const bool reduced = std::binary_search(axes.begin(), axes.end(), axis);
    if (reduced) builder.setKind(factors[axis], kind);
    if (!reduced) builder.setOutput(0, output_axis, {factors[axis]});
    if (!reduced || keep_dimensions) ++output_axis;
  }
  return builder.build(builder.inputElements(0) * kMoveFlops);
}

std::optional<FactorRule> reduceRule(const Graph& graph, const Node& node) {
  const size_t rank = graph.shape(node.inputs[0]).size();
  const auto axes = axesOf(graph, node, 1, rank);
  if (!axes) return std::nullopt;
  return reduce(graph, node, reducedAxes(node, *axes, rank), node.intAttribute("keepdims", 1) != 0,
                reducedKind(node.op_type));
}

std::optional<FactorRule> argReduceRule(const Graph& graph, const Node& node) {
  const int axis = normalizeAxis(node.intAttribute("axis", 0), graph.shape(node.inputs[0]).size());
  return reduce(graph, node, {axis}, node.intAttribute("keepdims", 1) != 0, FactorKind::kWhole);
}

std::optional<FactorRule> cumSumRule(const Graph& graph, const Node& node) {
  const auto axis = constantInput(graph, node, 1);
  if (!axis || axis->size() != 1) return std::nullopt;
  RuleBuilder builder(graph, node);
  const std::vector<int> factors = builder.factorsOf(builder.inputShape(0));
  builder.setKind(factors[normalizeAxis(axis->front(), factors.size())], FactorKind::kWhole);
  builder.alignInput(0, factors);
  builder.alignOutput(0, factors);
  return builder.build(builder.outputElements(0) * kMoveFlops);
}

// X, K -> values, indices: the k largest along one axis.
std::optional<FactorRule> topKRule(const Graph& graph, const Node& node) {
  RuleBuilder builder(graph, node);
  const Shape& shape = builder.inputShape(0);
  const size_t axis = normalizeAxis(node.intAttribute("axis", -1), shape.size());
  std::vector<int> factors = builder.factorsOf(shape);
  builder.setKind(factors[axis], FactorKind::kWhole);
  builder.alignInput(0, factors);
  factors[axis] = builder.factor("k", builder.outputShape(0)[axis], FactorKind::kWhole);
  builder.alignOutput(0, factors);
  builder.alignOutput(1, factors);
  return builder.build(builder.inputElements(0) * kTranscendentalFlops);
}

}  // namespace

void registerReductionRules(RuleTable& table) {
  table.addAll("",
               {"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
                "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"},
               reduceRule);
  table.addAll("", {"ArgMax", "ArgMin"}, argReduceRule);
  table.add("", "CumSum", cumSumRule);
  table.add("", "TopK", topKRule);
}

}  // namespace pipeshard
