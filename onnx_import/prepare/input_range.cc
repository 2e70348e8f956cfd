#include "onnx_import/prepare/input_range.h"

#include <algorithm>
#include <vector>

#include "ir/graph/exporter_marks.h"
#include "ir/operators/operator_facts.h"

namespace pipeshard {
namespace {

std::optional<int64_t> axisSize(const Graph& graph, ValueId id, int64_t axis) {
  if (!id.valid() || !graph.value(id).shape) return std::nullopt;
  const Shape& shape = *graph.value(id).shape;
  if (axis < 0) axis += std::ssize(shape);
  if (axis < 0 || axis >= std::ssize(shape) || shape[axis] < 0) return std::nullopt;
  return shape[axis];
}

// How many values input `position` of the node may take when it selects something, else nullopt.
std::optional<int64_t> selectableCount(const Graph& graph, const Node& node, size_t position) {
  if (!node.domain.empty()) return std::nullopt;
  if (position == 1 &&
      (node.op_type == "Gather" || node.op_type == "GatherElements" || node.op_type == "ScatterElements")) {
    return axisSize(graph, node.inputs[0], node.intAttribute("axis", 0));
  }
  if (position == 1 && operatorFacts(node).takes_labels) return axisSize(graph, node.inputs[0], 1);
  if (position == 0 && node.op_type == "OneHot" && node.inputs.size() > 1) {
    const Constant* depth = node.inputs[1].valid() ? graph.constant(node.inputs[1]) : nullptr;
    if (depth == nullptr || depth->bytes.empty()) return std::nullopt;
    return numericElements(*depth).front();
  }
  return std::nullopt;
}

// The node's first output holds the elements of input `position`, possibly rearranged and beside others.
bool passesOn(const OperatorFacts& facts, size_t position) {
  return facts.keeps.contains(position) || facts.passes.contains(position);
}

// A call of PyTorch's embedding, which refuses the indices below 0 that a Gather takes.
bool isEmbedding(const Node& node) { return isCallOf(exportedCall(node), "aten.embedding."); }

// What input `position` of the node may hold when a number out of range makes it, or the module that it is
// from, fail.
std::optional<AllowedIntegers> acceptedBy(const Graph& graph, const Node& node, size_t position) {
  const std::optional<int64_t> count = selectableCount(graph, node, position);
  if (!count || node.op_type == "OneHot") return std::nullopt;
  if (!operatorFacts(node).takes_labels)
    return AllowedIntegers{node.op_type == "Gather" && isEmbedding(node) ? 0 : -*count, *count};
  AllowedIntegers labels{0, *count};
  if (node.hasAttribute("ignore_index")) labels.ignored = node.intAttribute("ignore_index", 0);
  return labels;
}

// What both accept. A number that only one of them ignores is left to the operators.
AllowedIntegers intersect(const AllowedIntegers& a, const AllowedIntegers& b) {
  return {std::max(a.low, b.low), std::min(a.high, b.high), a.ignored ? a.ignored : b.ignored};
}

}  // namespace

std::optional<AllowedIntegers> allowedIntegers(const Graph& graph, ValueId input) {
  if (!isInteger(graph.value(input).data_type)) return std::nullopt;
  enum class Holds : uint8_t { kNothing, kSome, kAll };
  std::vector<Holds> holds(graph.values.size(), Holds::kNothing);
  holds[input.index()] = Holds::kAll;
  std::optional<AllowedIntegers> of_all, of_some;
  for (const Node& node : graph.nodes) {
    const OperatorFacts& facts = operatorFacts(node);
    for (size_t position = 0; position < node.inputs.size(); ++position) {
      const ValueId id = node.inputs[position];
      if (!id.valid() || holds[id.index()] == Holds::kNothing) continue;
      const bool all = holds[id.index()] == Holds::kAll;
      std::optional<AllowedIntegers>& allowed = all ? of_all : of_some;
      if (const auto accepted = acceptedBy(graph, node, position))
        allowed = allowed ? intersect(*allowed, *accepted) : *accepted;
      if (!passesOn(facts, position)) continue;
      for (ValueId output : node.outputs) {
        if (!output.valid() || !isInteger(graph.value(output).data_type)) continue;
        holds[output.index()] = std::max(holds[output.index()],
                                         all && facts.keeps.contains(position) ? Holds::kAll : Holds::kSome);
      }
    }
  }
  if (of_some) of_some->exact = false;
  return of_all ? of_all : of_some;
}

IntegerRange inputRange(const Graph& graph, ValueId input) {
  const DataType type = graph.value(input).data_type;
  if (isFloatingPoint(type)) return {0, 0};
  std::vector<bool> holds(graph.values.size(), false);
  holds[input.index()] = true;
  std::optional<int64_t> high;
  for (const Node& node : graph.nodes) {
    const OperatorFacts& facts = operatorFacts(node);
    for (size_t position = 0; position < node.inputs.size(); ++position) {
      const ValueId id = node.inputs[position];
      if (!id.valid() || !holds[id.index()]) continue;
      if (const auto count = selectableCount(graph, node, position))
        high = std::min(high.value_or(*count), *count);
      if (!passesOn(facts, position)) continue;
      for (ValueId output : node.outputs) {
        if (output.valid()) holds[output.index()] = true;
      }
    }
  }
  return {0, high.value_or(2)};
}

}  // namespace pipeshard
