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
    registerAttentionForms(forms);
    return forms;
  }();
  return table;
}

}  // namespace

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
