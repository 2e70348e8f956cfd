#include "onnx_import/forms/preview_optimizers.h"

#include <fmt/format.h>

#include "ir/base/error.h"
#include "onnx_import/format/training_info.h"
#include "onnx_import/prepare/expand.h"
#include "onnx_import/prepare/inference.h"

namespace pipeshard {
namespace {

bool isPreviewOptimizer(const Node& node) {
  return node.domain == kTrainingDomain &&
         (node.op_type == "Adam" || node.op_type == "Adagrad" || node.op_type == "Momentum");
}

// The learning rate, if it is a number of the file.
std::string rateOf(const Graph& graph, const Node& node) {
  const Constant* rate =
      node.inputs.empty() || !node.inputs[0].valid() ? nullptr : graph.constant(node.inputs[0]);
  return rate != nullptr && elementCount(rate->shape) == 1
             ? fmt::format("{}", static_cast<float>(numericElements(*rate).front()))
             : "...";
}

}  // namespace

void lowerPreviewOptimizers(Graph& graph) {
  try {
    Graph typed = graph;
    inferShapes(typed);
    graph = std::move(typed);
  } catch (const Error&) {
    // What contradicts itself before sizes are known, or for good, is told when the graph is prepared.
  }
  expandUnsupported(graph, [](const Node& node) { return !isPreviewOptimizer(node); });
}

std::string previewOptimizerHint(const Graph& graph) {
  for (const Node& node : graph.nodes) {
    if (!isPreviewOptimizer(node)) continue;
    const std::string rate = rateOf(graph, node),
                      name = fmt::format("{} ({})", node.op_type, kTrainingDomain);
    const float decay = node.floatAttribute("norm_coefficient", 0);
    if (node.op_type == "Adagrad") return fmt::format("; {} is none of pipeshard's optimizers", name);
    if (node.op_type == "Momentum") {
      if (node.floatAttribute("beta", 1) == 1) return "";
      return fmt::format(
          "; {} weighs gradients by {} from the second step on; --optimizer "
          "sgd:lr={},momentum={},weight_decay={} weighs all by 1",
          name, node.floatAttribute("beta", 1), rate, node.floatAttribute("alpha", 0), decay);
    }
    return fmt::format(
        "; {} adds epsilon before it corrects the moments, and leaves the step of count 0 "
        "uncorrected; --optimizer adam:lr={},beta1={},beta2={},eps={},weight_decay={} is near to it",
        name, rate, node.floatAttribute("alpha", 0.9F), node.floatAttribute("beta", 0.999F),
        node.floatAttribute("epsilon", 1e-6F), decay);
  }
  return "";
}

}  // namespace pipeshard
