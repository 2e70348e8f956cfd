// Operators that move elements without computing: transposition, slices, joins, padding, and shapes.
#include <numeric>

#include "sharding/rules/rule_builder.h"

namespace pipeshard {

namespace {

FactorRule move(RuleBuilder& builder) { return builder.build(builder.outputElements(0) * kMoveFlops); }

std::optional<FactorRule> transposeRule(const Graph& graph, const Node& node) {
  RuleBuilder builder(graph, node);
  const std::vector<int> factors = builder.factorsOf(builder.inputShape(0));
  const std::vector<int64_t> permutation = node.intsAttribute("perm");
  builder.alignInput(0, factors);
  for (size_t axis = 0; axis < factors.size(); ++axis) {
    size_t from = factors.size() - 1 - axis;
    if (!permutation.empty()) from = permutation[axis];
    builder.setOutput(0, axis, {factors[from]});
  }
  return move(builder);
}

std::optional<FactorRule> expandRule(const Graph& graph, const Node& node) {
  RuleBuilder builder(graph, node);
  const std::vector<int> factors = builder.factorsOf(builder.outputShape(0));
  builder.alignInput(0, factors);
  builder.alignOutput(0, factors);
  return move(builder);
}

// Input 0 and output 0 of equal rank: axes for which `kept` is true are independent, the others cannot be
// cut.
template <typename Kept>
std::optional<FactorRule> axisByAxis(const Graph& graph, const Node& node, Kept kept) {
  RuleBuilder builder(graph, node);
  const Shape& shape = builder.inputShape(0);
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    if (!kept(axis)) continue;
    const int factor = builder.factor(fmt::format("a{}", axis), shape[axis]);
    builder.setInput(0, axis, {factor});
    for (size_t output = 0; output < node.outputs.size(); ++output) builder.setOutput(output, axis, {factor});
  }
  return move(builder);
}

std::optional<FactorRule> tileRule(const Graph& graph, const Node& node) {
  const auto repeats = constantInput(graph, node, 1);
  if (!repeats) return std::nullopt;
  return axisByAxis(graph, node, [&](size_t axis) { return (*repeats)[axis] == 1; });
}

// Starts, axes and steps are inputs 1, 3 and 4, or attributes before opset 10 (which has no steps). An axis
// is untouched when it is not named, or is taken whole and forwards.
std::optional<FactorRule> sliceRule(const Graph& graph, const Node& node) {
  const size_t rank = graph.shape(node.inputs[0]).size();
  const bool old = node.inputs.size() == 1;
  const auto given = [&](size_t input) { return input < node.inputs.size() && node.inputs[input].valid(); };
  const auto starts = old ? std::optional(node.intsAttribute("starts")) : constantInput(graph, node, 1);
  auto axes = old ? std::optional(node.intsAttribute("axes")) : constantInput(graph, node, 3);
  auto steps = constantInput(graph, node, 4);
  if (!starts || (given(3) && !axes) || (given(4) && !steps)) return std::nullopt;
  if (!axes || axes->empty()) {
    axes.emplace(starts->size());
    std::iota(axes->begin(), axes->end(), 0);
  }
  if (!steps) steps.emplace(starts->size(), 1);
  const Shape& in = graph.shape(node.inputs[0]);
  const Shape& out = graph.shape(node.outputs[0]);
  std::vector<bool> kept(rank, true);
  for (size_t i = 0; i < axes->size(); ++i) {
    const size_t axis = normalizeAxis((*axes)[i], rank);
    kept[axis] = (*steps)[i] == 1 && in[axis] == out[axis];
  }
  return axisByAxis(graph, node, [&](size_t axis) { return kept[axis]; });
}

std::optional<FactorRule> splitRule(const Graph& graph, const Node& node) {
  const size_t split = normalizeAxis(node.intAttribute("axis", 0), graph.shape(node.inputs[0]).size());
  return axisByAxis(graph, node, [&](size_t axis) { return axis != split; });
}

std::optional<FactorRule> triluRule(const Graph& graph, const Node& node) {
  const size_t rank = graph.shape(node.inputs[0]).size();
  return axisByAxis(graph, node, [&](size_t axis) { return axis + 2 < rank; });
}

std::optional<FactorRule> padRule(const Graph& graph, const Node& node) {
  const size_t rank = graph.shape(node.inputs[0]).size();
  const auto pads =
      node.inputs.size() > 1 ? constantInput(graph, node, 1) : std::optional(node.intsAttribute("pads"));
  const auto axes = constantInput(graph, node, 3);
  const bool has_axes = node.inputs.size() > 3 && node.inputs[3].valid();
  if (!pads || (has_axes && !axes)) return std::nullopt;
  std::vector<bool> kept(rank, true);
  const size_t count = pads->size() / 2;
  for (size_t i = 0; i < count; ++i) {
    size_t axis = i;
    if (has_axes) axis = normalizeAxis((*axes)[i], rank);
    kept.at(axis) = (*pads)[i] == 0 && (*pads)[i + count] == 0;
  }
  return axisByAxis(graph, node, [&](size_t axis) { return kept[axis]; });
}

std::optional<FactorRule> concatRule(const Graph& graph, const Node& node) {
  RuleBuilder builder(graph, node);
  const Shape& out = builder.outputShape(0);
  const size_t joined = normalizeAxis(node.intAttribute("axis", 0), out.size());
  for (size_t axis = 0; axis < out.size(); ++axis) {
    if (axis == joined) continue;
    const int factor = builder.factor(fmt::format("a{}", axis), out[axis]);
    for (size_t input = 0; input < node.inputs.size(); ++input) builder.setInput(input, axis, {factor});
    builder.setOutput(0, axis, {factor});
  }
  return move(builder);
}

// Every element is the same, so any part is like any other.
std::optional<FactorRule> constantOfShapeRule(const Graph& graph, const Node& node) {
  RuleBuilder builder(graph, node);
  builder.alignOutput(0, builder.factorsOf(builder.outputShape(0)));
  return move(builder);
}

// The content depends on the whole of what is read (its shape, its bounds).
std::optional<FactorRule> wholeRule(const Graph& graph, const Node& node) {
  RuleBuilder builder(graph, node);
  return builder.build(builder.outputElements(0) * kMoveFlops);
}

}  // namespace

void registerMovementRules(RuleTable& table) {
  table.add("", "Transpose", transposeRule);
  table.add("", "Expand", expandRule);
  table.add("", "Tile", tileRule);
  table.add("", "Slice", sliceRule);
  table.add("", "Split", splitRule);
  table.add("", "Trilu", triluRule);
  table.add("", "Pad", padRule);
  table.add("", "Concat", concatRule);
  table.add("", "ConstantOfShape", constantOfShapeRule);
  table.addAll("", {"Range", "Shape", "Size", "EyeLike"}, wholeRule);
}

}  // namespace pipeshard
