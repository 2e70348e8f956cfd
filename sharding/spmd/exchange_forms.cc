#include "sharding/spmd/exchange_forms.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "sharding/spmd/form_table.h"

namespace pipeshard {
namespace {

const FormTable& formTable() {
  static const FormTable table = [] {
    FormTable forms;
    registerGatherForms(forms);
    registerSoftmaxForms(forms);
    registerLossForms(forms);
    registerNormalizationForms(forms);
    registerReductionForms(forms);
    return forms;
  }();
  return table;
}

}  // namespace

void FormTable::add(std::string_view domain, std::string_view op_type, Form form) {
  const bool fresh = forms_.emplace(std::pair(std::string(domain), std::string(op_type)), form).second;
  PIPESHARD_CHECK(fresh, "two exchange forms for {}::{}", domain, op_type);
}

const Form* FormTable::find(const std::string& domain, const std::string& op_type) const {
  const auto found = forms_.find({domain, op_type});
  return found == forms_.end() ? nullptr : &found->second;
}

Shard FormContext::inputShard(size_t position) const {
  return shardOf(strategy.inputs.at(position), wholeInput(position), exchange.mesh, exchange.device);
}

Shard FormContext::outputShard(size_t position) const {
  return shardOf(strategy.outputs.at(position), wholeOutput(position), exchange.mesh, exchange.device);
}

std::vector<int> FormContext::groupsOf(const std::vector<int>& factors) const {
  std::vector<int> groups;
  for (size_t axis = 0; axis < strategy.uses.size(); ++axis) {
    const AxisUse& use = strategy.uses[axis];
    if (use.kind != AxisUse::Kind::kFactor ||
        std::find(factors.begin(), factors.end(), use.index) == factors.end())
      continue;
    if (exchange.mesh.axisSize(static_cast<int>(axis)) > 1)
      groups.push_back(exchange.groups.group_of_axis.at(axis));
  }
  return groups;
}

std::string axisKey(const ShardingSpec& spec, const Shape& whole, size_t axis) {
  return fmt::format("{} along {}", whole[axis], fmt::join(spec.axes[axis], ","));
}

const ExchangeForm* wholeOutputs() {
  static const ExchangeForm form{{false, false, false}};
  return &form;
}

const ExchangeForm* partialOutput() {
  static const ExchangeForm form{{true}};
  return &form;
}

bool isReal(const Graph& graph, ValueId value) {
  const DataType type = graph.dataType(value);
  return type == DataType::kFloat32 || type == DataType::kFloat64;
}

bool isReducible(const Graph& graph, ValueId value) {
  const DataType type = graph.dataType(value);
  return isReal(graph, value) || type == DataType::kInt32 || type == DataType::kInt64;
}

int soleFactor(const TensorFactors& tensor, size_t axis) {
  return axis < tensor.size() && tensor[axis].size() == 1 ? tensor[axis].front() : -1;
}

const ExchangeForm* exchangeForm(const Graph& graph, const Node& node, const FactorRule& rule, int factor) {
  const Form* form = formTable().find(node.domain, node.op_type);
  return form == nullptr ? nullptr : form->cut(graph, node, rule, factor);
}

std::vector<ValueId> emitExchangeForm(GraphBuilder& builder, const ExchangeContext& context, const Node& node,
                                      const Strategy& strategy, const std::vector<ValueId>& inputs) {
  const Form* form = formTable().find(node.domain, node.op_type);
  const auto rule = factorRule(context.whole, node);
  PIPESHARD_CHECK(form != nullptr && rule, "{} has no exchange form", describeNode(node));
  const auto first =
      std::find_if(node.outputs.begin(), node.outputs.end(), [](ValueId output) { return output.valid(); });
  PIPESHARD_CHECK(first != node.outputs.end(), "{} has no output", describeNode(node));
  NodeEmitter emit(builder, node, context.whole.value(*first).name, {}, context.emitted);
  FormContext form_context{context, node, *rule, strategy, inputs, emit};
  form->emit(form_context);
  std::vector<ValueId> outputs = emit.outputs();
  outputs.resize(node.outputs.size());
  return outputs;
}

}  // namespace pipeshard
