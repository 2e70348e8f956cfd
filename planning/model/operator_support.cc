#include "planning/model/operator_support.h"

#include <map>
#include <utility>

#include <fmt/format.h>

#include "ir/operators/operator_facts.h"
#include "onnx_import/autodiff/training.h"
#include "sharding/rules/factor_rule.h"

namespace pipeshard {

bool canRun(const Node& node) { return hasKernel(node); }

bool canTrain(const Node& node) { return canRun(node) && hasGradientRule(node.domain, node.op_type); }

std::vector<OperatorSupport> operatorSupport(const Graph& graph) {
  std::map<std::string, OperatorSupport> found;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    const std::string op = fmt::format("{}::{}", node.domain.empty() ? "onnx" : node.domain, node.op_type);
    OperatorSupport& entry = found[op];
    if (entry.count++ > 0) continue;
    entry.op = op;
    entry.example = node.name;
    entry.kernel = canRun(node);
    entry.gradient = hasGradientRule(node.domain, node.op_type);
    entry.factor_rule = factorRule(graph, NodeId(n)).has_value();
  }
  std::vector<OperatorSupport> result;
  for (auto& [op, entry] : found) result.push_back(std::move(entry));
  return result;
}

}  // namespace pipeshard
