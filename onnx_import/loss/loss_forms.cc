#include "onnx_import/loss/loss_forms.h"

#include <algorithm>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "ir/operators/operator_facts.h"

namespace pipeshard {
namespace {

// What makes a value, behind nodes that leave its numbers as they are.
struct Maker {
  const Node* node = nullptr;  // nullptr: an input, an initializer
  bool reshaped = false;       // axes of its output are not those of the value
};

const Node* producerOf(const Graph& graph, ValueId value) {
  for (const Node& node : graph.nodes) {
    if (std::find(node.outputs.begin(), node.outputs.end(), value) != node.outputs.end()) return &node;
  }
  return nullptr;
}

Maker makerOf(const Graph& graph, ValueId value) {
  constexpr int kLongest = 16;  // nodes
  Maker maker;
  for (int i = 0; i < kLongest; ++i) {
    maker.node = producerOf(graph, value);
    if (maker.node == nullptr || maker.node->inputs.empty() || !maker.node->inputs[0].valid()) break;
    const Node& node = *maker.node;
    if (!isView(node) && !node.is("Cast")) break;
    maker.reshaped = maker.reshaped || (isView(node) && !node.is("Identity"));
    value = node.inputs[0];
  }
  return maker;
}

// Whether the node divides by a sum over the axis that the loss takes for the classes. Where axes were made
// others it is the last one, before and behind.
bool isOverClasses(const Graph& graph, const LossTerm& term, ValueId prediction, const Maker& maker) {
  const Node& node = *maker.node;
  const int64_t rank = std::ssize(*graph.value(prediction).shape);
  const std::optional<Shape>& made = graph.value(node.outputs[0]).shape;
  int64_t axis = node.intAttribute("axis", node.opset_version < 13 ? 1 : -1);
  const int64_t made_rank = made ? std::ssize(*made) : maker.reshaped ? 0 : rank;
  if (axis >= 0 && made_rank > 0) axis -= made_rank;  // from the end, as the rank may have changed
  const bool is_last = axis == -1;
  if (node.opset_version < 13 && !is_last) return false;  // over all axes from this one on
  if (!term.class_axis) return is_last || (!maker.reshaped && axis == 1 - rank);
  const int64_t asked = *term.class_axis < 0 ? *term.class_axis : *term.class_axis - rank;
  return maker.reshaped ? is_last && asked == -1 : axis == asked;
}

}  // namespace

void checkLossForm(const Graph& graph, const LossTerm& term, ValueId prediction) {
  using Kind = LossTerm::Kind;
  const bool of_classes = term.kind == Kind::kCrossEntropy || term.kind == Kind::kNegativeLogLikelihood;
  if (!of_classes && term.kind != Kind::kBinaryCrossEntropyWithLogits) return;
  const Maker maker = makerOf(graph, prediction);
  if (maker.node == nullptr || !maker.node->is(of_classes ? "Softmax" : "Sigmoid")) return;
  if (of_classes && !isOverClasses(graph, term, prediction, maker)) return;
  LossTerm meant = term;
  meant.prediction = graph.value(maker.node->inputs[0]).name;
  if (of_classes) meant.kind = Kind::kCrossEntropy;
  const std::string says =
      fmt::format("--loss {}: '{}' are probabilities ({} makes them)", lossToString(term),
                  graph.value(prediction).name, describeNode(*maker.node));
  if (of_classes) {
    fail(ErrorCode::kUsage, "{}, but {}; name the logits that it reads: --loss {}", says,
         term.kind == Kind::kCrossEntropy ? "cross-entropy takes a Softmax itself"
                                          : "nll reads their logarithms (those of a LogSoftmax)",
         lossToString(meant));
  }
  LossTerm of_probabilities = term;
  of_probabilities.kind = Kind::kBinaryCrossEntropy;
  fail(ErrorCode::kUsage,
       "{}, but bce-with-logits takes a Sigmoid itself; name the logits that it reads, --loss {}, or take "
       "--loss {}",
       says, lossToString(meant), lossToString(of_probabilities));
}

std::vector<std::string> likelyLosses(const Graph& graph, ValueId output) {
  const Value& value = graph.value(output);
  const bool has_classes = value.shape && value.shape->size() >= 2;
  const Maker maker = makerOf(graph, output);
  const auto isMadeBy = [&](std::string_view op_type) {
    return maker.node != nullptr && maker.node->is(op_type);
  };
  std::vector<std::string> losses;
  if (isMadeBy("Sigmoid")) {
    losses.push_back(fmt::format("bce:{},target", value.name));
  } else if (has_classes) {
    const std::string& logits = isMadeBy("Softmax") ? graph.value(maker.node->inputs[0]).name : value.name;
    losses.push_back(fmt::format("cross-entropy:{},labels", logits));
  }
  losses.push_back(fmt::format("mse:{},target", value.name));
  return losses;
}

}  // namespace pipeshard
