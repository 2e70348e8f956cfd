#include "onnx_import/loss/needed_outputs.h"

#include <algorithm>

#include <fmt/format.h>

#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "onnx_import/lowering/unknown_operators.h"

namespace pipeshard {
namespace {

// `outputs`: all that there are, "output_probability (ai.onnx.ml::ZipMap)".
[[noreturn]] void refuseAll(const std::vector<std::string>& outputs) {
  const bool has_map = std::ranges::any_of(
      outputs, [](const std::string& output) { return output.ends_with("(ai.onnx.ml::ZipMap)"); });
  fail(
      ErrorCode::kBadModel,
      "every output needs an operator that is not supported: {}; export the model without them{}, or train a "
      "part of it that does not need them: --loss KIND:VALUE,LABELS names any value of the file",
      listed(outputs, 6),
      has_map ? " (skl2onnx: options={'zipmap': False} gives the probabilities as a tensor)" : "");
}

}  // namespace

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
  if (graph.outputs.empty() && !left_out.empty()) refuseAll(left_out);
  return left_out;
}

}  // namespace pipeshard
