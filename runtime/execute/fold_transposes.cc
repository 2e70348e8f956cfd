#include "runtime/execute/fold_transposes.h"

#include <algorithm>

#include "ir/operators/operator_facts.h"

namespace pipeshard {
namespace {

class Folder {
 public:
  Folder(Graph& graph, bool has_fused_matmul)
      : graph_(graph), has_fused_matmul_(has_fused_matmul), original_(graph.values.size()) {
    for (const Node& node : graph.nodes) {
      if (swapsLastTwoAxes(graph, node)) original_[node.outputs[0].index()] = node.inputs[0];
    }
  }

  int run() {
    for (Node& node : graph_.nodes) fold(node);
    if (folded_ > 0) removeUnread();
    return folded_;
  }

 private:
  void fold(Node& node) {
    if (!node.is("Gemm") && !(node.is("MatMul") && has_fused_matmul_)) return;
    for (const size_t operand : {0, 1}) {
      if (operand >= node.inputs.size() || !node.inputs[operand].valid()) continue;  // its kernel refuses it
      const ValueId original = original_[node.inputs[operand].index()];
      if (!original.valid()) continue;
      const char* flag = operand == 0 ? "transA" : "transB";
      const bool transposed = node.is("Gemm") && node.intAttribute(flag, 0) != 0;
      node.inputs[operand] = original;
      node.attributes[flag] = int64_t{!transposed};
      ++folded_;
    }
    if (!node.is("MatMul") || node.attributes.empty()) return;
    node.domain = "com.microsoft";
    node.op_type = "FusedMatMul";
    node.opset_version = 1;
  }

  void removeUnread() {
    std::vector<bool> read(graph_.values.size(), false);
    for (const ValueId id : graph_.outputs) read[id.index()] = true;
    for (const Node& node : graph_.nodes) {
      for (const ValueId id : node.inputs) {
        if (id.valid()) read[id.index()] = true;
      }
    }
    std::erase_if(graph_.nodes, [&](const Node& node) {
      const bool is_folded = node.outputs.size() == 1 && original_[node.outputs[0].index()].valid();
      return is_folded && !read[node.outputs[0].index()];
    });
  }

  Graph& graph_;
  const bool has_fused_matmul_;
  std::vector<ValueId> original_;  // by value: what a Transpose made it of
  int folded_ = 0;
};

}  // namespace

int foldTransposes(Graph& graph, const KernelRegistry& kernels) {
  return Folder(graph, kernels.has("com.microsoft", "FusedMatMul")).run();
}

}  // namespace pipeshard
