#include "sharding/spmd/operator_work.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "ir/graph/graph_print.h"

namespace pipeshard {
namespace {

bool isShaped(const TensorFactors& tensor) {
  return std::any_of(tensor.begin(), tensor.end(), [](const auto& axis) { return !axis.empty(); });
}

SizeOf sizeOf(const FactorRule& rule, int factor) {
  if (rule.added_once && rule.added_once->factor == factor) return SizeOf::kSummed;
  switch (rule.factors[factor].kind) {
    case FactorKind::kWhole: return SizeOf::kWhole;
    case FactorKind::kSum:
    case FactorKind::kMean:
    case FactorKind::kMax:
    case FactorKind::kMin: return SizeOf::kSummed;
    case FactorKind::kParallel: break;
  }
  if (rule.inputs.size() < 2 || !isShaped(rule.inputs[0]) || !isShaped(rule.inputs[1]))
    return SizeOf::kShared;
  const bool first = holdsFactor(rule.inputs[0], factor);
  const bool second = holdsFactor(rule.inputs[1], factor);
  if (first == second) return SizeOf::kShared;
  return first ? SizeOf::kRows : SizeOf::kColumns;
}

std::string attributesOf(const Node& node) {
  std::string text;
  for (const auto& [name, attribute] : node.attributes) {
    const bool counts = std::holds_alternative<int64_t>(attribute) ||
                        std::holds_alternative<std::vector<int64_t>>(attribute) ||
                        std::holds_alternative<std::string>(attribute);
    if (counts) text += fmt::format("{}{}={}", text.empty() ? "" : " ", name, printAttribute(attribute));
  }
  return text;
}

}  // namespace

OperatorWork operatorWork(const Graph& graph, const Node& node, const std::optional<FactorRule>& rule,
                          const NodeWork& work, const std::vector<int64_t>& factor_sizes) {
  OperatorWork result;
  result.op = node.domain.empty() ? node.op_type : node.domain + "::" + node.op_type;
  result.attributes = attributesOf(node);
  for (const ValueId output : node.outputs) {
    if (!output.valid()) continue;
    result.type = graph.dataType(output);
    break;
  }
  const bool multiplies =
      work.work_class == WorkClass::kContraction || work.work_class == WorkClass::kConvolution;
  if (multiplies) result.type = work.type;  // of what is multiplied
  result.flops = std::llround(work.flops);
  result.bytes = work.bytes;
  if (!rule) return result;
  for (int f = 0; f < std::ssize(rule->factors); ++f) {
    result.sizes[static_cast<size_t>(sizeOf(*rule, f))] *=
        factor_sizes.empty() ? rule->factors[f].size : factor_sizes[f];
  }
  return result;
}

int64_t nodeTime(const CostModel& model, const Graph& graph, const Node& node,
                 const std::optional<FactorRule>& rule, const NodeWork& work,
                 const std::vector<int64_t>& factor_sizes) {
  if (rule && rule->flops == 0) return 0;
  if (model.times) {
    const std::optional<int64_t> measured =
        model.times->operatorTime(operatorWork(graph, node, rule, work, factor_sizes), model.busy);
    if (measured) return std::llround(static_cast<double>(*measured) * model.devices_per_core);
  }
  return computeCost(model, work);
}

}  // namespace pipeshard
