#include "onnx_import/exporter/soft_labels.h"

#include <utility>
#include <vector>

#include "onnx_import/exporter/label_smoothing.h"
#include "onnx_import/exporter/replacement_writer.h"

namespace pipeshard {
namespace {

bool hasSoftLabels(const Graph& graph, const Node& node) {
  constexpr int kAxesAreInputs = 18;  // of reductions, from this opset on
  return node.is("SoftmaxCrossEntropyLoss") && node.inputs.size() == 2 && node.inputs[1].valid() &&
         node.outputs.size() == 1 && node.opset_version >= kAxesAreInputs &&
         isFloatingPoint(graph.value(node.inputs[1]).data_type);
}

std::vector<Node> written(Graph& graph, GraphBuilder& builder, const Node& node) {
  ReplacementWriter writer(graph, builder, node);
  const DataType type = graph.value(node.inputs[1]).data_type;
  const ValueId classes = writer.integers({1});
  const ValueId logs = writer.add("LogSoftmax", {node.inputs[0]}, type, {{"axis", int64_t{1}}});
  const ValueId products = writer.add("Mul", {logs, node.inputs[1]}, type);
  ValueId sums = writer.add("ReduceSum", {products, classes}, type, {{"keepdims", int64_t{0}}});
  if (const double smoothing = droppedSmoothing(node); smoothing > 0) {
    const ValueId means = writer.add("ReduceMean", {logs, classes}, type, {{"keepdims", int64_t{0}}});
    const ValueId sharp = writer.add("Mul", {sums, writer.number(type, 1 - smoothing)}, type);
    const ValueId smooth = writer.add("Mul", {means, writer.number(type, smoothing)}, type);
    sums = writer.add("Add", {sharp, smooth}, type);
  }
  const std::string reduction = node.stringAttribute("reduction", "mean");
  if (reduction == "none") {
    writer.addLast("Neg", {sums});
  } else {
    const ValueId losses = writer.add("Neg", {sums}, type);
    writer.addLast(reduction == "sum" ? "ReduceSum" : "ReduceMean", {losses}, {{"keepdims", int64_t{0}}});
  }
  return writer.take();
}

}  // namespace

int takeSoftLabels(Graph& graph) {
  int found = 0;
  GraphBuilder builder(graph);
  std::vector<Node> nodes = std::move(graph.nodes);
  graph.nodes.clear();
  for (Node& node : nodes) {
    if (!hasSoftLabels(graph, node)) {
      graph.nodes.push_back(std::move(node));
      continue;
    }
    ++found;
    for (Node& made : written(graph, builder, node)) graph.nodes.push_back(std::move(made));
  }
  return found;
}

}  // namespace pipeshard
