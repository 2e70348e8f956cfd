#include "onnx_import/patterns/attention_views.h"

#include "ir/operators/operator_facts.h"

namespace pipeshard {

Shape leadingAxes(const Shape& shape) { return Shape(shape.begin(), shape.end() - 2); }

Shape withMatrices(Shape leading, const Shape& matrices) {
  leading.insert(leading.end(), matrices.end() - 2, matrices.end());
  return leading;
}

// From the last axis on, so that the first, the batch's, has what is left. An axis has at least one.
std::optional<std::vector<int>> axesOfEach(const Shape& coarse, const Shape& fine) {
  if (coarse.size() > fine.size()) return std::nullopt;
  if (coarse.empty()) return fine.empty() ? std::optional(std::vector<int>()) : std::nullopt;
  std::vector<int> counts(coarse.size(), 0);
  size_t end = fine.size();
  for (size_t axis = coarse.size(); axis-- > 0;) {
    int64_t size = 1;
    while (end > axis && (counts[axis] == 0 || axis == 0 || size < coarse[axis])) {
      size *= fine[--end];
      ++counts[axis];
    }
    if (size != coarse[axis]) return std::nullopt;
  }
  return counts;
}

// The same axes at every size of the batch, at one row, too: [s,1,hd] is [s,h,d], and [1,h] its heads.
std::optional<Shape> headsOfRows(const Graph& graph, const UseDef& uses, ValueId operand) {
  const NodeId transpose = uses.producer[operand.index()];
  if (!transpose.valid() || !graph.node(transpose).is("Transpose")) return std::nullopt;
  const std::vector<int64_t> order = graph.node(transpose).intsAttribute("perm");
  const NodeId view = uses.producer[graph.node(transpose).inputs[0].index()];
  if (order.size() != 3 || order[0] != 1 || !view.valid() || !isView(graph.node(view))) return std::nullopt;
  const Shape& from = graph.shape(graph.node(view).inputs[0]);
  const Shape& to = graph.shape(graph.node(view).outputs[0]);
  if (from.size() != 3 || from[0] != to[0] || from[1] == 0 || to[1] % from[1] != 0) return std::nullopt;
  const int64_t heads = to[1] / from[1];
  return heads > 1 && from[2] == heads * to[2] ? std::optional(Shape{from[1], heads}) : std::nullopt;
}

std::optional<Shape> viewOfOverlay(const Shape& overlay, const Shape& coarse, const Shape& fine) {
  const auto counts = axesOfEach(coarse, fine);
  if (!counts || overlay.size() > coarse.size() + 2) return std::nullopt;
  if (overlay.size() <= 2) return overlay;
  const Shape given = leadingAxes(overlay);
  const size_t missing = coarse.size() - given.size();
  size_t begin = 0;
  for (size_t axis = 0; axis < missing; ++axis) begin += (*counts)[axis];
  Shape view;
  for (size_t axis = 0; axis < given.size(); ++axis) {
    const int count = (*counts)[missing + axis];
    if (count > 1 && given[axis] != 1 && given[axis] != coarse[missing + axis]) return std::nullopt;
    for (int i = 0; i < count; ++i)
      view.push_back(count == 1 ? given[axis] : given[axis] == 1 ? 1 : fine[begin + i]);
    begin += count;
  }
  return withMatrices(view, overlay);
}

}  // namespace pipeshard
