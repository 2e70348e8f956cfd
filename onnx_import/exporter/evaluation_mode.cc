#include "onnx_import/exporter/evaluation_mode.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "ir/base/error.h"
#include "ir/graph/weight_role.h"
#include "ir/operators/attention_form.h"
#include "onnx_import/exporter/module_mode.h"

namespace pipeshard {
namespace {

bool isMask(const Value& value) { return value.drawn && value.drawn->kind == RandomNumbers::Kind::kTrue; }

// Several dropouts may share a factor, so that each gets its own.
ValueId makeOne(GraphBuilder& builder, const Constant& factor) {
  Constant one = makeScalar(factor.data_type, 1);
  one.shape = factor.shape;
  const ValueId made = builder.addConstant("evaluation.factor", std::move(one));
  markMade(builder.graph().value(made));
  return made;
}

// The dropout inside an attention that became one node.
void keepAllProbabilities(GraphBuilder& builder, Node& attention) {
  const AttentionForm form = attentionForm(attention);
  if (form.keep < 0 || !isMask(builder.graph().value(attention.inputs[form.keep]))) return;
  const Constant* factor = builder.graph().constant(attention.inputs[form.factor()]);
  PIPESHARD_CHECK(factor != nullptr, "the factor of {} is no constant", describeNode(attention));
  attention.inputs[form.factor()] = makeOne(builder, Constant(*factor));
}

// Takes the factor out of a mask's product.
void keepEverything(GraphBuilder& builder, const UseDef& uses, const Node& where) {
  Graph& graph = builder.graph();
  const NodeId producer = uses.producer[where.inputs.at(1).index()];
  if (producer.valid() && graph.node(producer).is("Mul")) {
    for (ValueId& factor : graph.node(producer).inputs) {
      const Constant* constant = graph.constant(factor);
      if (constant == nullptr || elementCount(constant->shape) != 1) continue;
      factor = makeOne(builder, Constant(*constant));
      return;
    }
  }
  fail(ErrorCode::kBadModel,
       "{} drops at random in a form that has no evaluation mode here; expected what a Dropout is lowered to",
       describeNode(where));
}

}  // namespace

EvaluationMode setEvaluationMode(Graph& prepared) {
  EvaluationMode mode;
  dropUpdatedStatistics(prepared);
  const UseDef uses = computeUseDef(prepared);
  GraphBuilder builder(prepared);
  for (size_t n = 0; n < prepared.nodes.size(); ++n) {
    if (prepared.nodes[n].domain == kPipeshardDomain && prepared.nodes[n].op_type == "Attention")
      keepAllProbabilities(builder, prepared.nodes[n]);
    const Node where = prepared.nodes[n];
    if (where.is("Where") && where.inputs[0].valid() && isMask(prepared.value(where.inputs[0])))
      keepEverything(builder, uses, where);
  }
  for (const ValueId input : prepared.inputs) {
    Value& value = prepared.value(input);
    if (isMask(value)) value.drawn->probability = 1;
    mode.drawn += value.drawn && !isMask(value) ? 1 : 0;
  }
  removeDeadCode(prepared);
  return mode;
}

}  // namespace pipeshard
