#include "sharding/rules/factor_rule.h"

#include <algorithm>

#include <fmt/format.h>

#include "sharding/rules/rule_builder.h"

namespace pipeshard {

namespace {

const RuleTable& ruleTable() {
  static const RuleTable table = [] {
    RuleTable rules;
    registerElementwiseRules(rules);
    registerMatmulRules(rules);
    registerReductionRules(rules);
    registerMovementRules(rules);
    registerReshapeRules(rules);
    registerNormalizationRules(rules);
    registerAttentionRules(rules);
    registerConvolutionRules(rules);
    registerLossRules(rules);
    registerGatherRules(rules);
    return rules;
  }();
  return table;
}

std::string_view kindSuffix(FactorKind kind) {
  switch (kind) {
    case FactorKind::kParallel: return "";
    case FactorKind::kSum: return ",sum";
    case FactorKind::kMean: return ",mean";
    case FactorKind::kMax: return ",max";
    case FactorKind::kMin: return ",min";
    case FactorKind::kWhole: return ",whole";
  }
  return "";
}

// A scalar, or an absent tensor, prints as "-".
std::string printTensors(const FactorRule& rule, const std::vector<TensorFactors>& tensors) {
  std::string text;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (i > 0) text += ',';
    if (tensors[i].empty()) text += '-';
    for (const std::vector<int>& axis : tensors[i]) {
      text += '[';
      for (size_t k = 0; k < axis.size(); ++k) text += (k > 0 ? "," : "") + rule.factors[axis[k]].name;
      text += ']';
    }
  }
  return text;
}

}  // namespace

bool holdsFactor(const TensorFactors& tensor, int factor) {
  return std::any_of(tensor.begin(), tensor.end(), [factor](const std::vector<int>& axis) {
    return std::find(axis.begin(), axis.end(), factor) != axis.end();
  });
}

std::optional<FactorRule> factorRule(const Graph& graph, const Node& node) {
  const RuleFunction function = ruleTable().find(node.domain, node.op_type);
  return function == nullptr ? std::nullopt : function(graph, node);
}

std::vector<std::pair<std::string, std::string>> operatorsWithRule() { return ruleTable().operators(); }

std::optional<FactorRule> factorRule(const Graph& graph, NodeId node) {
  return factorRule(graph, graph.node(node));
}

int64_t nodeFlops(const Graph& graph, NodeId node) {
  double flops = 0;
  if (const auto rule = factorRule(graph, node)) {
    flops = rule->flops;
  } else {
    for (ValueId output : graph.node(node).outputs) {
      if (output.valid()) flops += static_cast<double>(elementCount(graph.shape(output)));
    }
  }
  constexpr double kLimit = 4e18;
  return flops < kLimit ? static_cast<int64_t>(flops) : static_cast<int64_t>(kLimit);
}

std::string printFactorRule(const FactorRule& rule) {
  std::string text;
  for (const Factor& factor : rule.factors) {
    text +=
        fmt::format("{}{}({}{})", text.empty() ? "" : " ", factor.name, factor.size, kindSuffix(factor.kind));
  }
  return fmt::format("{}: {} -> {}", text, printTensors(rule, rule.inputs), printTensors(rule, rule.outputs));
}

}  // namespace pipeshard
