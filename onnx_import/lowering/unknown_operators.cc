#include "onnx_import/lowering/unknown_operators.h"

#include "ir/operators/operator_facts.h"
#include "onnx_import/lowering/lowering_rules.h"

namespace pipeshard {

bool isUnknownOperator(const Graph& graph, const Node& node) {
  return !node.domain.empty() && node.domain != kPipeshardDomain &&
         graph.findFunction(node.domain, node.op_type, node.overload) == nullptr &&
         findLowering(graph, node) == nullptr && !hasKernel(node);
}

}  // namespace pipeshard
