#include "onnx_import/loss/needed_outputs.h"

#include <algorithm>

#include <fmt/format.h>

#include "onnx_import/lowering/unknown_operators.h"

namespace pipeshard {

std::vector<std::string> leaveOutUnknownOutputs(Graph& graph, ValueId needed) {
  std::vector<const Node*> unknown(graph.nodes.size());
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (isUnknownOperator(graph, graph.nodes[n])) unknown[n] = &graph.nodes[n];
  }
  const auto isThere = [](const Node* node) { return node != nullptr; };
  std::vector<std::string> left_out;
  if (std::none_of(unknown.begin(), unknown.end(), isThere)) return left_out;
  std::erase_if(graph.outputs, [&](ValueId output) {
    if (output == needed) return false;
    const std::vector<bool> makes = ancestorsOf(graph, {output});
    for (size_t n = 0; n < makes.size(); ++n) {
      if (!makes[n] || unknown[n] == nullptr) continue;
      left_out.push_back(
          fmt::format("{} ({}::{})", graph.value(output).name, unknown[n]->domain, unknown[n]->op_type));
      return true;
    }
    return false;
  });
  return left_out;
}

}  // namespace pipeshard
