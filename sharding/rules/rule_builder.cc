#include "sharding/rules/rule_builder.h"

#include <algorithm>

#include "ir/base/error.h"

namespace pipeshard {

void RuleTable::add(std::string_view domain, std::string_view op_type, RuleFunction function) {
  const bool fresh =
      functions_.emplace(std::pair(std::string(domain), std::string(op_type)), function).second;
  PIPESHARD_CHECK(fresh, "two rules for {}::{}", domain, op_type);
}

void RuleTable::addAll(std::string_view domain, const std::vector<std::string_view>& op_types,
                       RuleFunction function) {
  for (std::string_view op_type : op_types) add(domain, op_type, function);
}

RuleFunction RuleTable::find(const std::string& domain, const std::string& op_type) const {
  const auto found = functions_.find({domain, op_type});
  return found == functions_.end() ? nullptr : found->second;
}

std::vector<std::pair<std::string, std::string>> RuleTable::operators() const {
  std::vector<std::pair<std::string, std::string>> names;
  for (const auto& [name, function] : functions_) names.push_back(name);
  return names;
}

RuleBuilder::RuleBuilder(const Graph& graph, const Node& node) : graph_(graph), node_(node) {
  for (ValueId input : node.inputs) rule_.inputs.emplace_back(input.valid() ? graph.shape(input).size() : 0);
  for (ValueId output : node.outputs)
    rule_.outputs.emplace_back(output.valid() ? graph.shape(output).size() : 0);
}

int RuleBuilder::factor(std::string name, int64_t size, FactorKind kind) {
  rule_.factors.push_back({std::move(name), size, kind});
  return std::ssize(rule_.factors) - 1;
}

std::vector<int> RuleBuilder::factorsOf(const Shape& shape, FactorKind kind, std::string_view prefix) {
  std::vector<int> factors;
  for (size_t axis = 0; axis < shape.size(); ++axis)
    factors.push_back(factor(fmt::format("{}{}", prefix, axis), shape[axis], kind));
  return factors;
}

void RuleBuilder::setInput(size_t input, size_t axis, std::vector<int> factors) {
  if (hasInput(input)) rule_.inputs[input].at(axis) = std::move(factors);
}

void RuleBuilder::setOutput(size_t output, size_t axis, std::vector<int> factors) {
  if (hasOutput(output)) rule_.outputs[output].at(axis) = std::move(factors);
}

void RuleBuilder::align(TensorFactors& tensor, const Shape& shape, const std::vector<int>& factors) {
  const size_t common = std::min(shape.size(), factors.size());
  for (size_t back = 1; back <= common; ++back) {
    const int factor = factors[factors.size() - back];
    const size_t axis = shape.size() - back;
    if (rule_.factors[factor].size == shape[axis]) tensor[axis] = {factor};
  }
}

void RuleBuilder::alignInput(size_t input, const std::vector<int>& factors) {
  if (hasInput(input)) align(rule_.inputs[input], inputShape(input), factors);
}

void RuleBuilder::alignOutput(size_t output, const std::vector<int>& factors) {
  if (hasOutput(output)) align(rule_.outputs[output], outputShape(output), factors);
}

FactorRule RuleBuilder::build(double flops) {
  rule_.flops = flops;
  return std::move(rule_);
}

std::optional<std::vector<int64_t>> constantInput(const Graph& graph, const Node& node, size_t input) {
  if (input >= node.inputs.size() || !node.inputs[input].valid()) return std::nullopt;
  const Constant* constant = graph.constant(node.inputs[input]);
  if (constant == nullptr ||
      (constant->data_type != DataType::kInt64 && constant->data_type != DataType::kInt32))
    return std::nullopt;
  return integerElements(*constant);
}

std::optional<std::vector<int>> axesOf(const Graph& graph, const Node& node, size_t axes_input, size_t rank) {
  std::vector<int64_t> given = node.intsAttribute("axes");
  if (axes_input < node.inputs.size() && node.inputs[axes_input].valid()) {
    auto elements = constantInput(graph, node, axes_input);
    if (!elements) return std::nullopt;
    given = std::move(*elements);
  }
  std::vector<int> axes;
  for (int64_t axis : given) axes.push_back(normalizeAxis(axis, rank));
  std::sort(axes.begin(), axes.end());
  return axes;
}

}  // namespace pipeshard
