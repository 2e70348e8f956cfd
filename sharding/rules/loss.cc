// Classification losses: scores [n, classes, d..], labels [n, d..], weights [classes]. A label names a class,
// so the class axis must be whole; the other axes are summed, averaged or kept, as `reduction` says.
#include "sharding/rules/rule_builder.h"

namespace pipeshard {

namespace {

struct LossFactors {
  std::vector<int> scores;  // n, classes (whole), d..
  std::vector<int> labels;  // n, d..
};

LossFactors lossFactors(RuleBuilder& builder, const Shape& scores, FactorKind kind) {
  LossFactors result;
  result.scores = builder.factorsOf(scores, kind);
  builder.setKind(result.scores[1], FactorKind::kWhole);
  result.labels = result.scores;
  result.labels.erase(result.labels.begin() + 1);
  return result;
}

FactorKind reducedKind(const Node& node) {
  const std::string reduction = node.stringAttribute("reduction", "mean");
  if (reduction == "none") return FactorKind::kParallel;
  return reduction == "sum" ? FactorKind::kSum : FactorKind::kMean;
}

void setPerLabel(RuleBuilder& builder, bool input, size_t position, const std::vector<int>& labels) {
  for (size_t axis = 0; axis < labels.size(); ++axis) {
    if (input) builder.setInput(position, axis, {labels[axis]});
    if (!input) builder.setOutput(position, axis, {labels[axis]});
  }
}

// scores, labels, weights -> loss, and of SoftmaxCrossEntropyLoss log probabilities, of ours two numbers of
// each label
std::optional<FactorRule> lossRule(const Graph& graph, const Node& node) {
  RuleBuilder builder(graph, node);
  if (builder.inputShape(0).size() < 2) return std::nullopt;
  const FactorKind kind = reducedKind(node);
  const LossFactors factors = lossFactors(builder, builder.inputShape(0), kind);
  builder.alignInput(0, factors.scores);
  setPerLabel(builder, true, 1, factors.labels);
  builder.setInput(2, 0, {factors.scores[1]});
  if (kind == FactorKind::kParallel) setPerLabel(builder, false, 0, factors.labels);
  if (node.domain == kPipeshardDomain) {
    for (const size_t position : {1, 2}) setPerLabel(builder, false, position, factors.labels);
  } else {
    builder.alignOutput(1, factors.scores);
  }
  return builder.build(builder.inputElements(0) * kNormalizationFlops);
}

// dLoss, scores, two numbers of each label, labels, weights -> dScores. A mean divides by the number of all
// labels.
std::optional<FactorRule> lossGradRule(const Graph& graph, const Node& node) {
  RuleBuilder builder(graph, node);
  const FactorKind kind = reducedKind(node);
  const LossFactors factors = lossFactors(
      builder, builder.inputShape(1), kind == FactorKind::kMean ? FactorKind::kWhole : FactorKind::kParallel);
  if (kind == FactorKind::kParallel) setPerLabel(builder, true, 0, factors.labels);
  builder.alignInput(1, factors.scores);
  for (const size_t position : {2, 3, 4}) setPerLabel(builder, true, position, factors.labels);
  builder.setInput(5, 0, {factors.scores[1]});
  builder.alignOutput(0, factors.scores);
  return builder.build(builder.inputElements(1) * 4);
}

}  // namespace

void registerLossRules(RuleTable& table) {
  table.addAll("", {"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"}, lossRule);
  table.add(kPipeshardDomain, "CrossEntropyLoss", lossRule);
  table.add(kPipeshardDomain, "CrossEntropyLossGrad", lossGradRule);
}

}  // namespace pipeshard
