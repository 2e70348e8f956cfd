// Softmax and normalisations: the axes that are normalised over must be whole, the others are independent.
#include "sharding/rules/rule_builder.h"

namespace pipeshard {

namespace {

// One factor per axis of input 0; those from `begin` to `end` are whole.
std::vector<int> factorsWithWholeAxes(RuleBuilder& builder, size_t begin, size_t end) {
  std::vector<int> factors = builder.factorsOf(builder.inputShape(0));
  for (size_t axis = begin; axis < end; ++axis) builder.setKind(factors[axis], FactorKind::kWhole);
  return factors;
}

// Before opset 13 the default axis is 1 and all axes from it on are flattened into one.
std::optional<FactorRule> softmaxRule(const Graph& graph, const Node& node) {
  RuleBuilder builder(graph, node);
  const size_t rank = builder.inputShape(0).size();
  const bool flattening = node.opset_version < 13;
  const size_t axis = normalizeAxis(node.intAttribute("axis", flattening ? 1 : -1), rank);
  const std::vector<int> factors = factorsWithWholeAxes(builder, axis, flattening ? rank : axis + 1);
  builder.alignInput(0, factors);
  builder.alignOutput(0, factors);
  return builder.build(builder.outputElements(0) * kNormalizationFlops);
}

// All inputs and outputs of one shape, and attribute axis (by default the last) is whole.
std::optional<FactorRule> alongAxisRule(const Graph& graph, const Node& node) {
  RuleBuilder builder(graph, node);
  const size_t axis = normalizeAxis(node.intAttribute("axis", -1), builder.inputShape(0).size());
  const std::vector<int> factors = factorsWithWholeAxes(builder, axis, axis + 1);
  for (size_t input = 0; input < node.inputs.size(); ++input) builder.alignInput(input, factors);
  builder.alignOutput(0, factors);
  return builder.build(builder.outputElements(0) * kNormalizationFlops);
}

// Outputs 1 and 2 (mean, inverse deviation) have size 1 from `axis` on, so only the row factors stay in them;
// a row axis keeps its factor even when its size is 1.
void setStatistics(RuleBuilder& builder, bool input, size_t position, const std::vector<int>& factors,
                   size_t axis) {
  for (size_t row = 0; row < axis; ++row) {
    if (input) builder.setInput(position, row, {factors[row]});
    if (!input) builder.setOutput(position, row, {factors[row]});
  }
}

std::optional<FactorRule> layerNormalizationRule(const Graph& graph, const Node& node) {
  RuleBuilder builder(graph, node);
  const size_t rank = builder.inputShape(0).size();
  const size_t axis = normalizeAxis(node.intAttribute("axis", -1), rank);
  const std::vector<int> factors = factorsWithWholeAxes(builder, axis, rank);
  builder.alignInput(0, factors);
  builder.alignInput(1, factors);
  builder.alignInput(2, factors);
  builder.alignOutput(0, factors);
  setStatistics(builder, false, 1, factors, axis);
  setStatistics(builder, false, 2, factors, axis);
  return builder.build(builder.outputElements(0) * kNormalizationFlops);
}

// dY, X, Scale, Mean, InvStdDev -> dX, or with InvRms alone
std::optional<FactorRule> layerNormalizationInputGradRule(const Graph& graph, const Node& node) {
  RuleBuilder builder(graph, node);
  const size_t rank = builder.inputShape(0).size();
  const size_t axis = normalizeAxis(node.intAttribute("axis", -1), rank);
  const std::vector<int> factors = factorsWithWholeAxes(builder, axis, rank);
  for (size_t input = 0; input < 3; ++input) builder.alignInput(input, factors);
  for (size_t input = 3; input < node.inputs.size(); ++input)
    setStatistics(builder, true, input, factors, axis);
  builder.alignOutput(0, factors);
  return builder.build(builder.outputElements(0) * kNormalizationFlops);
}

// dY, X, Mean, InvStdDev -> dScale, dBias, or dY, X, InvRms -> dScale: sums over the rows; the columns are
// independent since the statistics are given.
std::optional<FactorRule> layerNormalizationWeightGradRule(const Graph& graph, const Node& node) {
  RuleBuilder builder(graph, node);
  const size_t rank = builder.inputShape(0).size();
  const size_t axis = normalizeAxis(node.intAttribute("axis", -1), rank);
  const std::vector<int> factors = builder.factorsOf(builder.inputShape(0));
  builder.alignInput(0, factors);
  builder.alignInput(1, factors);
  for (size_t input = 2; input < node.inputs.size(); ++input)
    setStatistics(builder, true, input, factors, axis);
  for (size_t row = 0; row < axis; ++row) builder.setKind(factors[row], FactorKind::kSum);
  for (size_t column = axis; column < rank; ++column) {
    for (size_t output = 0; output < node.outputs.size(); ++output)
      builder.setOutput(output, column - axis, {factors[column]});
  }
  return builder.build(builder.inputElements(0) * 4);
}

// X [n, c, spatial..], Scale [c], B [c]: channels and examples are independent.
std::optional<FactorRule> instanceNormalizationRule(const Graph& graph, const Node& node) {
  RuleBuilder builder(graph, node);
  const std::vector<int> factors = factorsWithWholeAxes(builder, 2, builder.inputShape(0).size());
  builder.alignInput(0, factors);
  builder.setInput(1, 0, {factors[1]});
  builder.setInput(2, 0, {factors[1]});
  builder.alignOutput(0, factors);
  return builder.build(builder.outputElements(0) * kNormalizationFlops);
}

// With given statistics everything is independent. Computing them needs the whole microbatch.
std::optional<FactorRule> batchNormalizationRule(const Graph& graph, const Node& node) {
  RuleBuilder builder(graph, node);
  const size_t rank = builder.inputShape(0).size();
  if (rank < 2) return std::nullopt;
  const std::vector<int> factors = builder.factorsOf(builder.inputShape(0));
  if (node.intAttribute("training_mode", 0) != 0) {
    for (size_t axis = 0; axis < rank; ++axis) {
      if (axis != 1) builder.setKind(factors[axis], FactorKind::kWhole);
    }
  }
  builder.alignInput(0, factors);
  builder.alignOutput(0, factors);
  for (size_t input = 1; input < node.inputs.size(); ++input) builder.setInput(input, 0, {factors[1]});
  for (size_t output = 1; output < node.outputs.size(); ++output) builder.setOutput(output, 0, {factors[1]});
  return builder.build(builder.outputElements(0) * kNormalizationFlops);
}

// dY, X, Scale -> dX and dY, X -> dScale, dBias: only channels are independent.
std::optional<FactorRule> batchNormalizationGradRule(const Graph& graph, const Node& node) {
  RuleBuilder builder(graph, node);
  const size_t rank = builder.inputShape(0).size();
  if (rank < 2) return std::nullopt;
  const std::vector<int> factors = builder.factorsOf(builder.inputShape(0), FactorKind::kWhole);
  builder.setKind(factors[1], FactorKind::kParallel);
  for (size_t axis = 0; axis < rank; ++axis) {
    builder.setInput(0, axis, {factors[axis]});
    builder.setInput(1, axis, {factors[axis]});
    if (node.op_type == "BatchNormalizationInputGrad") builder.setOutput(0, axis, {factors[axis]});
  }
  builder.setInput(2, 0, {factors[1]});
  if (node.op_type == "BatchNormalizationWeightGrad") {
    builder.setOutput(0, 0, {factors[1]});
    builder.setOutput(1, 0, {factors[1]});
  }
  return builder.build(builder.inputElements(0) * kNormalizationFlops);
}

}  // namespace

void registerNormalizationRules(RuleTable& table) {
  table.addAll("", {"Softmax", "LogSoftmax", "Hardmax"}, softmaxRule);
  table.addAll("", {"LayerNormalization", "RMSNormalization"}, layerNormalizationRule);
  table.add("", "LpNormalization", alongAxisRule);
  table.add("", "InstanceNormalization", instanceNormalizationRule);
  table.add("", "BatchNormalization", batchNormalizationRule);
  table.addAll(kPipeshardDomain, {"BatchNormalizationInputGrad", "BatchNormalizationWeightGrad"},
               batchNormalizationGradRule);
  table.addAll(kPipeshardDomain, {"SoftmaxGrad", "LogSoftmaxGrad"}, alongAxisRule);
  table.add(kPipeshardDomain, "RMSNormalization", layerNormalizationRule);
  table.addAll(kPipeshardDomain, {"LayerNormalizationInputGrad", "RMSNormalizationInputGrad"},
               layerNormalizationInputGradRule);
  table.addAll(kPipeshardDomain, {"LayerNormalizationWeightGrad", "RMSNormalizationWeightGrad"},
               layerNormalizationWeightGradRule);
}

}  // namespace pipeshard
