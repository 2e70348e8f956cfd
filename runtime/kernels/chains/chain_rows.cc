#include "runtime/kernels/chains/chain_rows.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <string_view>

#include "ir/operators/operator_facts.h"

namespace pipeshard::kernels {
namespace {

// Operators whose rows are those of their first input, up to the attribute `axis` (or the last axis).
bool normalizesLastAxes(const Node& node) {
  static const std::set<std::string_view> standard{"Softmax", "LogSoftmax", "LayerNormalization"};
  static const std::set<std::string_view> ours{"SoftmaxGrad", "LogSoftmaxGrad", "LayerNormalizationInputGrad",
                                               "RMSNormalization", "RMSNormalizationInputGrad"};
  if (node.domain.empty()) return standard.contains(node.op_type) && node.opset_version >= 13;
  return node.domain == kPipeshardDomain && ours.contains(node.op_type);
}

// Element by element; Dropout gives a mask of its own, ScheduledRate a number.
bool isElementwise(const Node& node) {
  static const std::set<std::string_view> others{"Dropout", "ScheduledRate"};
  return runsOn(Backend::kCpu, node) && operatorFacts(node).work == WorkClass::kElementwise &&
         !others.contains(node.op_type);
}

int64_t product(const Shape& shape, size_t axes) {
  return std::accumulate(shape.begin(), shape.begin() + static_cast<ptrdiff_t>(axes), int64_t{1},
                         std::multiplies<>());
}

// Whether a tensor beside one of shape `whole`, aligned at the last axis, has a row for each of the rows that
// the first `axes` axes make (true), or is read whole by all (false). Nothing: neither.
std::optional<bool> moves(const Shape& whole, size_t axes, const Shape& shape) {
  if (shape.size() > whole.size()) return std::nullopt;
  const size_t missing = whole.size() - shape.size();
  const size_t leading = axes > missing ? axes - missing : 0;
  if (product(shape, leading) == 1) return false;
  const bool same = product(whole, missing) == 1 &&
                    std::equal(shape.begin(), shape.begin() + static_cast<ptrdiff_t>(leading),
                               whole.begin() + static_cast<ptrdiff_t>(missing));
  return same ? std::optional(true) : std::nullopt;
}

size_t firstNormalizedAxis(const Graph& graph, const Node& node) {
  const auto rank = static_cast<int64_t>(graph.shape(node.inputs[0]).size());
  const int64_t axis = node.intAttribute("axis", -1);
  return static_cast<size_t>(std::clamp<int64_t>(axis < 0 ? axis + rank : axis, 0, rank));
}

bool isFlat(const Graph& graph, const Node& node) {
  const int64_t elements = elementCount(graph.shape(node.outputs[0]));
  const auto fits = [&](ValueId id) {
    const int64_t count = id.valid() ? elementCount(graph.shape(id)) : 1;
    return count == elements || count == 1;
  };
  return std::all_of(node.inputs.begin(), node.inputs.end(), fits);
}

std::optional<NodeRows> seeAlongAxes(const Graph& graph, const Node& node, size_t axes) {
  NodeRows seen{false, axes, {}};
  const Shape& whole = graph.shape(node.outputs[0]);
  for (const ValueId id : node.inputs) {
    const std::optional<bool> moving =
        id.valid() ? moves(whole, axes, graph.shape(id)) : std::optional(false);
    if (!moving) return std::nullopt;
    seen.inputs_move.push_back(*moving);
  }
  for (const ValueId id : node.outputs) {
    if (id.valid() && moves(whole, axes, graph.shape(id)) != std::optional(true)) return std::nullopt;
  }
  return seen;
}

}  // namespace

bool worksOnRows(const Node& node) { return isElementwise(node) || normalizesLastAxes(node); }

std::optional<NodeRows> seeAsRows(const Graph& graph, const Node& node, int64_t rows) {
  const Shape& whole = graph.shape(node.outputs[0]);
  const int64_t elements = elementCount(whole);
  if (rows <= 1 || elements % rows != 0) return std::nullopt;
  const bool has_axes = !isElementwise(node);
  if (!has_axes && isFlat(graph, node)) {
    NodeRows seen{true, 0, {}};
    for (const ValueId id : node.inputs)
      seen.inputs_move.push_back(id.valid() && elementCount(graph.shape(id)) == elements);
    for (const ValueId id : node.outputs) {
      if (id.valid() && elementCount(graph.shape(id)) != elements) return std::nullopt;
    }
    return seen;
  }
  const size_t most = has_axes ? firstNormalizedAxis(graph, node) : whole.size();
  for (size_t axes = 1; axes <= most; ++axes) {
    if (product(whole, axes) != rows) continue;
    if (std::optional<NodeRows> seen = seeAlongAxes(graph, node, axes)) return seen;
  }
  return std::nullopt;
}

std::vector<int64_t> rowCounts(const Graph& graph, const Node& node) {
  const Shape& whole = graph.shape(node.outputs[0]);
  std::set<int64_t> counts;
  for (size_t axes = 1; axes <= whole.size(); ++axes) {
    const int64_t rows = product(whole, axes);
    if (rows > 1 && seeAsRows(graph, node, rows)) counts.insert(rows);
  }
  return {counts.begin(), counts.end()};
}

bool loopsOverRows(const Node& node, const NodeRows& seen) {
  // Of several operands each has a loop of its own, whatever the others' shapes are.
  const bool is_variadic = node.inputs.size() > 2 && !node.is("Where");
  return isElementwise(node) && (seen.flat || is_variadic || node.is("Mean"));
}

std::optional<int64_t> rowsOfWholeVectors(int64_t elements, int64_t rows) {
  if (elements % kWholeVectors != 0) return std::nullopt;
  return kWholeVectors / std::gcd(kWholeVectors, elements / rows);
}

Shape shapeOfRows(const Graph& graph, const Node& node, const NodeRows& seen, int64_t rows, int64_t count,
                  ValueId id, bool moves) {
  const Shape& shape = graph.shape(id);
  if (seen.flat) return moves ? Shape{count * (elementCount(shape) / rows)} : Shape{};
  const size_t missing = graph.shape(node.outputs[0]).size() - shape.size();
  const size_t leading = seen.axes > missing ? seen.axes - missing : 0;
  Shape rest(shape.begin() + static_cast<ptrdiff_t>(leading), shape.end());
  if (moves) rest.insert(rest.begin(), count);
  return rest;
}

Node nodeOfRows(const Graph& graph, const Node& node) {
  Node of_rows = node;
  if (isElementwise(node)) return of_rows;
  const auto rank = static_cast<int64_t>(graph.shape(node.inputs[0]).size());
  of_rows.attributes["axis"] = static_cast<int64_t>(firstNormalizedAxis(graph, node)) - rank;
  return of_rows;
}

}  // namespace pipeshard::kernels
