#include "onnx_import/row_numbers/index_grid.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace pipeshard {
namespace {

constexpr int kDeepest = 16;  // nodes that a component is followed through

int64_t product(Shape::const_iterator begin, Shape::const_iterator end) {
  return std::accumulate(begin, end, int64_t{1}, std::multiplies<>());
}

std::optional<IndexLine> lineOfNumbers(const Shape& shape, const std::vector<int64_t>& numbers) {
  IndexLine line{-1, {numbers[0]}};
  int64_t stride = 1;
  for (int axis = 0; axis < std::ssize(shape); ++axis) {
    const int64_t step = product(shape.begin() + axis + 1, shape.end());
    std::vector<int64_t> along(shape[axis]);
    for (int64_t i = 0; i < shape[axis]; ++i) along[i] = numbers[i * step];
    if (std::all_of(along.begin(), along.end(), [&](int64_t n) { return n == numbers[0]; })) continue;
    line = {axis, std::move(along)};
    stride = step;
    break;
  }
  const int64_t length = std::ssize(line.numbers);
  for (int64_t i = 0; i < std::ssize(numbers); ++i) {
    if (numbers[i] != line.numbers[i / stride % length]) return std::nullopt;
  }
  return line;
}

// Which axis of `to` is this axis (longer than 1) of `from`, where the elements keep their order; -1: none.
int sameAxis(const Shape& from, int axis, const Shape& to) {
  const int64_t before = product(from.begin(), from.begin() + axis);
  for (int i = 0; i < std::ssize(to); ++i) {
    if (to[i] == from[axis] && product(to.begin(), to.begin() + i) == before) return i;
  }
  return -1;
}

class GridReader {
 public:
  GridReader(const Graph& graph, const std::vector<NodeId>& producer) : graph_(graph), producer_(producer) {}

  std::optional<std::vector<IndexLine>> read(ValueId indices) const {
    if (!hasElements(indices) || graph_.shape(indices).empty()) return std::nullopt;
    if (const Constant* constant = graph_.constant(indices)) return readConstant(*constant);
    const Node* concat = producerOf(indices);
    const int64_t last = std::ssize(graph_.shape(indices)) - 1;
    if (concat == nullptr || !concat->is("Concat")) return std::nullopt;
    const int64_t axis = concat->intAttribute("axis", 0);
    if (axis != -1 && axis != last) return std::nullopt;
    std::vector<IndexLine> lines;
    for (const ValueId component : concat->inputs) {
      if (!hasElements(component) || graph_.shape(component).back() != 1) return std::nullopt;
      std::optional<IndexLine> line = follow(component);
      if (!line) return std::nullopt;
      lines.push_back(std::move(*line));
    }
    return lines;
  }

 private:
  const Node* producerOf(ValueId value) const {
    const bool made = value.index() < producer_.size() && producer_[value.index()].valid();
    return made ? &graph_.node(producer_[value.index()]) : nullptr;
  }

  bool hasElements(ValueId value) const {
    return value.valid() && hasStaticType(graph_.value(value)) && elementCount(graph_.shape(value)) > 0;
  }

  static bool isReadable(const Constant& constant) {
    return constant.data_type == DataType::kInt64 || constant.data_type == DataType::kInt32;
  }

  static std::optional<std::vector<IndexLine>> readConstant(const Constant& constant) {
    if (!isReadable(constant)) return std::nullopt;
    const std::vector<int64_t> numbers = integerElements(constant);
    const Shape shape(constant.shape.begin(), constant.shape.end() - 1);
    const int64_t components = constant.shape.back();
    std::vector<IndexLine> lines;
    for (int64_t component = 0; component < components; ++component) {
      std::vector<int64_t> own;
      for (int64_t i = component; i < std::ssize(numbers); i += components) own.push_back(numbers[i]);
      std::optional<IndexLine> line = lineOfNumbers(shape, own);
      if (!line) return std::nullopt;
      lines.push_back(std::move(*line));
    }
    return lines;
  }

  // The line of a value that a chain of nodes makes of a constant.
  std::optional<IndexLine> follow(ValueId value) const {
    std::vector<ValueId> chain;
    while (graph_.constant(value) == nullptr) {
      const Node* node = producerOf(value);
      const bool known = node != nullptr && (node->is("Expand") || node->is("Unsqueeze") ||
                                             node->is("Reshape") || node->is("Squeeze"));
      if (!known || std::ssize(chain) == kDeepest || !hasElements(node->inputs[0])) return std::nullopt;
      chain.push_back(value);
      value = node->inputs[0];
    }
    const Constant& constant = *graph_.constant(value);
    if (!isReadable(constant) || elementCount(constant.shape) == 0) return std::nullopt;
    std::optional<IndexLine> line = lineOfNumbers(constant.shape, integerElements(constant));
    for (auto made = chain.rbegin(); line && line->axis >= 0 && made != chain.rend(); ++made) {
      const Node& node = *producerOf(*made);
      const Shape &from = graph_.shape(node.inputs[0]), &to = graph_.shape(*made);
      line->axis = node.is("Expand") ? line->axis + static_cast<int>(std::ssize(to) - std::ssize(from))
                                     : sameAxis(from, line->axis, to);
      if (line->axis < 0) return std::nullopt;
    }
    return line;
  }

  const Graph& graph_;
  const std::vector<NodeId>& producer_;
};

}  // namespace

std::optional<std::vector<IndexLine>> indexGrid(const Graph& graph, const std::vector<NodeId>& producer,
                                                ValueId indices) {
  return GridReader(graph, producer).read(indices);
}

}  // namespace pipeshard
