#include "onnx_import/exporter/mistaken_calls.h"

#include <algorithm>
#include <set>

#include "ir/base/error.h"
#include "ir/graph/exporter_marks.h"

namespace pipeshard {
namespace {

bool isArgument(const ExportedCall& call, size_t place, std::string_view text) {
  const std::vector<std::string> arguments = argumentTexts(call);
  return place < arguments.size() && arguments[place] == text;
}

// "norm" of "norm.running_mean"
std::string moduleOf(const std::string& name) {
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? "" : name.substr(0, dot);
}

}  // namespace

void refuseMistakenCalls(const Graph& graph, bool trains) {
  for (const Node& node : graph.nodes) {
    const ExportedCall call = exportedCall(node);
    if (node.is("ScatterElements") && isCallOf(call, "aten.scatter_reduce.") && isArgument(call, 4, "mean") &&
        node.stringAttribute("reduction", "none") == "none") {
      fail(ErrorCode::kBadModel,
           "{}: the module takes the mean (scatter_reduce with 'mean'), but the exporter has written an "
           "assignment, of which the last one stays; take 'sum' in the module, and divide by a sum of ones",
           describeNode(node));
    }
    if (trains && node.is("Gather") && isCallOf(call, "aten.embedding.") && isArgument(call, 3, "True")) {
      fail(ErrorCode::kBadModel,
           "{}: the module's embedding has scale_grad_by_freq=True, which divides its gradients by how often "
           "an index is in the batch; that is not there. Export the module without it",
           describeNode(node));
    }
  }
}

std::vector<std::string> changedBuffers(const Graph& graph) {
  std::set<std::string> normalizations;
  for (const Node& node : graph.nodes) {
    if (!node.is("BatchNormalization") || node.inputs.size() < 5 || !node.inputs[3].valid()) continue;
    normalizations.insert(moduleOf(graph.value(node.inputs[3]).name));
  }
  std::vector<std::string> changed;
  for (const std::string& name : mutatedBuffers(graph)) {
    const bool is_statistic = name.ends_with("running_mean") || name.ends_with("running_var") ||
                              name.ends_with("num_batches_tracked");
    if (!is_statistic || !normalizations.contains(moduleOf(name))) changed.push_back(name);
  }
  return changed;
}

}  // namespace pipeshard
