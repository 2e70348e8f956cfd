// Attention's gradients with the queries cut, or the heads that share keys and values (a group): every device
// has all keys, and its own queries. What they give to the gradients of keys and values is a partial sum; the
// gradient of its queries is whole. So a long sequence lies in parts over the devices, as in the forward
// pass, whose rule can cut queries as it is (sharding/rules/attention.cc).
//
//   Q, dY [h,8,d] "R,S0,R", K, V [h,8,d] "R" on mesh [2]  ->  dQ "R,S0,R"; dK, dV "R,R,R" partial along 0
#include "ir/operators/attention_form.h"
#include "sharding/spmd/form_table.h"

namespace pipeshard {
namespace {

const ExchangeForm* attentionGradCut(const Graph& graph, const Node& node, const FactorRule& rule,
                                     int factor) {
  static const ExchangeForm form{{false, true, true}};
  const AttentionForm inputs = attentionForm(node);
  const TensorFactors& query = rule.inputs[inputs.query];
  const size_t rank = query.size();
  if (rank < 2 || !isReducible(graph, node.inputs[inputs.key()])) return nullptr;
  const bool of_queries = soleFactor(query, rank - 2) == factor;
  const bool of_group =
      isGrouped(graph.shape(node.inputs[inputs.query]), graph.shape(node.inputs[inputs.key()])) &&
      soleFactor(query, rank - 3) == factor;
  return of_queries || of_group ? &form : nullptr;
}

// The same operator on the parts.
void emitAttentionGrad(FormContext& context) {
  NodeEmitter& emit = context.emit;
  const auto first = static_cast<size_t>(attentionForm(context.node).query);
  std::vector<ValueId> outputs;
  for (size_t position = 0; position < context.node.outputs.size(); ++position) {
    const ValueId like = context.inputs[first + position];
    outputs.push_back(emit.target(position, emit.type(like), emit.shape(like)));
  }
  emit.copy(context.inputs, context.node.attributes, std::move(outputs));
}

}  // namespace

void registerAttentionForms(FormTable& table) {
  table.add(kPipeshardDomain, "AttentionGrad", {attentionGradCut, emitAttentionGrad});
}

}  // namespace pipeshard
