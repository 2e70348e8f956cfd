#include "sharding/summands.h"

#include <algorithm>

namespace pipeshard {

bool addsToResult(const Graph& graph, const Node& node) {
  if (node.is("Gemm")) return node.inputs.size() < 3 || !node.inputs[2].valid();
  if (node.domain == kPipeshardDomain && node.op_type == "GatherGrad") return true;
  const bool product = node.is("MatMul") || (node.domain == "com.microsoft" && node.op_type == "FusedMatMul");
  if (!product) return false;
  const Shape& result = graph.shape(node.outputs.at(0));
  return result.size() <= 2 || std::all_of(result.begin(), result.end() - 2, [](int64_t size) { return size == 1; });
}

bool isView(const Node& node) {
  return node.is("Reshape") || node.is("Squeeze") || node.is("Unsqueeze") || node.is("Flatten") || node.is("Identity");
}

}  // namespace pipeshard
