#include "onnx_import/exporter/cross_entropies.h"

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "ir/graph/exporter_marks.h"
#include "onnx_import/exporter/replacement_writer.h"

namespace pipeshard {
namespace {

const std::map<std::string, Attribute> kWithoutAxes = {{"keepdims", int64_t{0}}};

// The smoothing that the exporter has dropped; 0 for a node without one:
// cross_entropy_loss(input, target, weight, reduction, ignore_index, label_smoothing)
double droppedSmoothing(const Node& node) {
  constexpr size_t kSmoothing = 5;
  if (!node.is("SoftmaxCrossEntropyLoss")) return 0;
  const ExportedCall call = exportedCall(node);
  if (!isCallOf(call, "cross_entropy_loss")) return 0;
  const std::vector<std::string> arguments = argumentTexts(call);
  return arguments.size() > kSmoothing ? std::strtod(arguments[kSmoothing].c_str(), nullptr) : 0;
}

bool canRestore(const Graph& graph, const Node& node) {
  if (node.opset_version < kAxesAreInputs || node.outputs.size() != 1 || node.inputs.size() < 2 ||
      !node.inputs[0].valid() || !node.inputs[1].valid())
    return false;
  const Value& scores = graph.value(node.inputs[0]);
  return scores.shape && scores.shape->size() >= 2 && isFloatingPoint(scores.data_type) &&
         isInteger(graph.dataType(node.inputs[1]));
}

class SmoothedLoss {
 public:
  SmoothedLoss(Graph& graph, GraphBuilder& builder, const Node& node)
      : writer_(graph, builder, node),
        node_(node),
        type_(graph.dataType(node.inputs[0])),
        label_type_(graph.dataType(node.inputs[1])),
        rank_(graph.value(node.inputs[0]).shape->size()),
        labels_(node.inputs[1]),
        weights_(node.inputs.size() > 2 ? node.inputs[2] : ValueId()) {}

  std::vector<Node> written(double smoothing) {
    const ValueId logarithms = add("LogSoftmax", {node_.inputs[0]}, {{"axis", int64_t{1}}});
    std::vector<ValueId> inputs = {logarithms, labels_};
    if (weights_.valid()) inputs.push_back(weights_);
    const ValueId likelihood = add("NegativeLogLikelihoodLoss", std::move(inputs), node_.attributes);
    const ValueId uniform = uniformOf(logarithms);
    const ValueId sharp = add("Mul", {likelihood, number(1 - smoothing)});
    writer_.addLast("Add", {sharp, add("Mul", {uniform, number(-smoothing)})});
    return writer_.take();
  }

 private:
  ValueId add(const char* op_type, std::vector<ValueId> inputs,
              std::map<std::string, Attribute> attributes = {}) {
    return writer_.add(op_type, std::move(inputs), type_, std::move(attributes));
  }
  ValueId number(double value) { return writer_.number(type_, value); }

  // The u of the header.
  ValueId uniformOf(ValueId logarithms) {
    if (node_.hasAttribute("ignore_index")) {
      const double index = static_cast<double>(node_.intAttribute("ignore_index", 0));
      ignored_ = writer_.add("Equal", {labels_, writer_.number(label_type_, index)}, DataType::kBool);
    }
    if (weights_.valid()) logarithms = add("Mul", {logarithms, weightsOfClasses()});
    const ValueId each = counted(add("ReduceMean", {logarithms, writer_.integers({1})}, kWithoutAxes));
    const std::string reduction = node_.stringAttribute("reduction", "mean");
    if (reduction == "none") return each;
    if (reduction == "sum") return add("ReduceSum", {each}, kWithoutAxes);
    if (!weights_.valid() && !ignored_.valid()) return add("ReduceMean", {each}, kWithoutAxes);
    const ValueId sum = add("ReduceSum", {each}, kWithoutAxes);
    return add("Div", {sum, add("ReduceSum", {counted(weightsOfLabels())}, kWithoutAxes)});
  }

  // 0 where the label is ignored.
  ValueId counted(ValueId each) {
    return ignored_.valid() ? add("Where", {ignored_, number(0), each}) : each;
  }

  // [C], to be multiplied with scores [N, C, ...].
  ValueId weightsOfClasses() {
    if (rank_ == 2) return weights_;
    std::vector<int64_t> shape(rank_ - 1, 1);
    shape[0] = -1;
    return add("Reshape", {weights_, writer_.integers(shape)});
  }

  ValueId weightsOfLabels() {
    if (!weights_.valid()) return number(1);
    ValueId labels = labels_;
    if (ignored_.valid())  // may be no class
      labels = writer_.add("Where", {ignored_, writer_.number(label_type_, 0), labels}, label_type_);
    return add("Gather", {weights_, labels}, {{"axis", int64_t{0}}});
  }

  ReplacementWriter writer_;
  const Node& node_;
  DataType type_, label_type_;
  size_t rank_;
  ValueId labels_, weights_, ignored_;
};

int droppedSmoothings(const Graph& graph) {
  return static_cast<int>(std::count_if(graph.nodes.begin(), graph.nodes.end(),
                                        [](const Node& node) { return droppedSmoothing(node) > 0; }));
}

void restoreLabelSmoothing(Graph& graph) {
  if (droppedSmoothings(graph) == 0) return;
  GraphBuilder builder(graph);
  std::vector<Node> nodes = std::move(graph.nodes);
  graph.nodes.clear();
  for (Node& node : nodes) {
    const double smoothing = droppedSmoothing(node);
    if (smoothing <= 0 || !canRestore(graph, node)) {
      graph.nodes.push_back(std::move(node));
      continue;
    }
    for (Node& made : SmoothedLoss(graph, builder, node).written(smoothing))
      graph.nodes.push_back(std::move(made));
  }
}

std::string crossEntropies(int count) {
  return count == 1 ? "a cross-entropy" : fmt::format("{} cross-entropies", count);
}

bool hasSoftLabels(const Graph& graph, const Node& node) {
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

void takeSoftLabels(Graph& graph) {
  GraphBuilder builder(graph);
  std::vector<Node> nodes = std::move(graph.nodes);
  graph.nodes.clear();
  for (Node& node : nodes) {
    if (!hasSoftLabels(graph, node)) {
      graph.nodes.push_back(std::move(node));
      continue;
    }
    for (Node& made : written(graph, builder, node)) graph.nodes.push_back(std::move(made));
  }
}

}  // namespace

std::vector<std::string> restoreCrossEntropies(Graph& graph) {
  const int dropped = droppedSmoothings(graph);
  takeSoftLabels(graph);
  restoreLabelSmoothing(graph);
  const int left = droppedSmoothings(graph);
  std::vector<std::string> notes;
  if (dropped > left) {
    notes.push_back(fmt::format("the label_smoothing of {}, which the exporter drops, is put back",
                                crossEntropies(dropped - left)));
  }
  if (left > 0) {
    notes.push_back(
        fmt::format("the label_smoothing of {} is not in the file (the exporter drops it), and is put back "
                    "for opset 18 and later and scores of known rank and type only: the loss is without",
                    crossEntropies(left)));
  }
  return notes;
}

}  // namespace pipeshard
