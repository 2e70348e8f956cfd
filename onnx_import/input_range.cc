#include <algorithm>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "ir/error.h"
#include "onnx_import/prepare.h"

namespace pipeshard {
namespace {

std::optional<int64_t> axisSize(const Graph& graph, ValueId id, int64_t axis) {
  if (!id.valid() || !graph.value(id).shape) return std::nullopt;
  const Shape& shape = *graph.value(id).shape;
  if (axis < 0) axis += static_cast<int64_t>(shape.size());
  if (axis < 0 || axis >= static_cast<int64_t>(shape.size()) || shape[static_cast<size_t>(axis)] < 0) return std::nullopt;
  return shape[static_cast<size_t>(axis)];
}

// How many values input `position` of the node may take when it selects something, else nullopt.
std::optional<int64_t> selectableCount(const Graph& graph, const Node& node, size_t position) {
  if (!node.domain.empty()) return std::nullopt;
  if (position == 1 && (node.op_type == "Gather" || node.op_type == "GatherElements" || node.op_type == "ScatterElements")) {
    return axisSize(graph, node.inputs[0], node.intAttribute("axis", 0));
  }
  if (position == 1 && (node.op_type == "SoftmaxCrossEntropyLoss" || node.op_type == "NegativeLogLikelihoodLoss")) {
    return axisSize(graph, node.inputs[0], 1);
  }
  if (position == 0 && node.op_type == "OneHot" && node.inputs.size() > 1) {
    const Constant* depth = node.inputs[1].valid() ? graph.constant(node.inputs[1]) : nullptr;
    if (depth == nullptr || depth->bytes.empty()) return std::nullopt;
    return static_cast<int64_t>(numericElements(*depth).front());
  }
  return std::nullopt;
}

// The node's first output holds the elements of input `position`, possibly rearranged and beside others.
bool passesOn(const Node& node, size_t position) {
  static const std::unordered_set<std::string_view> kFirstInput = {
      "Cast", "CastLike", "Reshape", "Slice", "Squeeze", "Unsqueeze", "Transpose",      "Expand",
      "Pad",  "Identity", "Flatten", "Split", "Tile",    "Gather",    "GatherElements", "Clip"};
  if (!node.domain.empty()) return false;
  if (node.op_type == "Concat") return true;
  if (node.op_type == "Where") return position == 1 || position == 2;
  return position == 0 && kFirstInput.contains(node.op_type);
}

}  // namespace

IntegerRange inputRange(const Graph& graph, ValueId input) {
  const DataType type = graph.value(input).data_type;
  if (isFloatingPoint(type)) return {0, 0};
  std::vector<bool> holds(graph.values.size(), false);
  holds[input.index()] = true;
  std::optional<int64_t> high;
  for (const Node& node : graph.nodes) {
    for (size_t position = 0; position < node.inputs.size(); ++position) {
      const ValueId id = node.inputs[position];
      if (!id.valid() || !holds[id.index()]) continue;
      if (const auto count = selectableCount(graph, node, position)) high = std::min(high.value_or(*count), *count);
      if (!passesOn(node, position)) continue;
      for (ValueId output : node.outputs) {
        if (output.valid()) holds[output.index()] = true;
      }
    }
  }
  return {0, high.value_or(2)};
}

}  // namespace pipeshard
