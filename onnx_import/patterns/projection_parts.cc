// Follows the product's output as long as one node reads it. Up to some Reshape the columns are the last
// axis; behind it the parts have an axis of their own:
//
//   [b,s,3n]  ─Reshape→  [b,s,3,h,d]  ─Transpose→  [3,b,h,s,d]
#include "onnx_import/patterns/projection_parts.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace pipeshard {
namespace {

int64_t product(Shape::const_iterator begin, Shape::const_iterator end) {
  return std::accumulate(begin, end, int64_t{1}, std::multiplies<>());
}

// [first, first + count) of an axis.
struct Range {
  int64_t first = 0, count = 0;
};

class Follower : PatternReader {
 public:
  Follower(const PatternGraph& patterns, NodeId product)
      : PatternReader(patterns), at_(node(product).outputs[0]) {
    axis_ = shape(at_).size() - 1;
    columns_ = shape(at_).back();
  }

  ProjectionParts follow() {
    while (readers(at_).size() == 1 && !patterns_.is_output[at_.index()] && step(readers(at_)[0])) {
    }
    if (!patterns_.is_output[at_.index()]) takeApart();
    return std::move(result_);
  }

 private:
  bool hasOwnAxis() const { return parts_ > 0; }

  // Goes on behind the node, unless that takes the parts apart, or does something else.
  bool step(NodeId id) {
    const Node& made = node(id);
    if (made.outputs.size() != 1 || !made.opaque.empty()) return false;
    const Shape& to = shape(made.outputs[0]);
    std::optional<size_t> axis;
    const bool had_own_axis = hasOwnAxis();
    if (made.is("Add")) {
      if (addsBias(made)) axis = axis_;
    } else if (made.is("Transpose")) {
      axis = behindTranspose(made);
    } else if (made.is("Reshape") || made.is("Squeeze") || made.is("Unsqueeze")) {
      axis = hasOwnAxis() ? sameAxis(to) : behindReshape(to);
    }
    if (!axis) return false;
    axis_ = *axis;
    at_ = made.outputs[0];
    if (hasOwnAxis() && !had_own_axis) result_.own_axis = result_.steps.size();
    result_.steps.push_back(id);
    return true;
  }

  bool addsBias(const Node& add) {
    if (hasOwnAxis() || result_.bias.valid()) return false;
    const ValueId other = add.inputs[add.inputs[0] == at_ ? 1 : 0];
    if (!graph().initializers.contains(other) || shape(other) != Shape{columns_}) return false;
    if (shape(add.outputs[0]) != shape(at_) || readers(other).size() != 1) return false;
    result_.bias = other;
    return true;
  }

  std::optional<size_t> behindTranspose(const Node& transpose) const {
    const std::vector<int64_t> order = transpose.intsAttribute("perm");
    if (order.size() != shape(at_).size()) return std::nullopt;
    const auto found = std::ranges::find(order, static_cast<int64_t>(axis_)) - order.begin();
    if (!hasOwnAxis() && found + 1 != std::ssize(order)) return std::nullopt;
    return found;
  }

  // The columns remain the last axis, or are viewed as [parts, ..].
  std::optional<size_t> behindReshape(const Shape& to) {
    if (to.empty()) return std::nullopt;
    if (to.back() == columns_) return to.size() - 1;
    for (size_t axis = to.size() - 1; axis-- > 0;) {
      if (product(to.begin() + static_cast<std::ptrdiff_t>(axis), to.end()) != columns_ || to[axis] == 1)
        continue;
      parts_ = to[axis];
      return axis;
    }
    return std::nullopt;
  }

  // The axis of the parts, with as many elements before it and in it.
  std::optional<size_t> sameAxis(const Shape& to) const {
    const Shape& from = shape(at_);
    const int64_t before = product(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(axis_));
    for (size_t axis = 0; axis < to.size(); ++axis) {
      if (to[axis] == parts_ && product(to.begin(), to.begin() + static_cast<std::ptrdiff_t>(axis)) == before)
        return axis;
    }
    return std::nullopt;
  }

  // What `reader` takes of axis_; nothing where it takes something else.
  std::optional<Range> taken(const Node& reader) const {
    const Shape& from = shape(at_);
    const auto integers = [&](size_t position) -> std::optional<std::vector<int64_t>> {
      if (position >= reader.inputs.size() || !reader.inputs[position].valid()) return std::nullopt;
      const Constant* constant = graph().constant(reader.inputs[position]);
      return constant == nullptr ? std::nullopt : std::optional(integerElements(*constant));
    };
    const int64_t size = from[axis_];
    if (reader.is("Gather")) {
      const auto indices = integers(1);
      if (!indices || indices->size() != 1 || reader.inputs[0] != at_) return std::nullopt;
      if (normalizeAxis(reader.intAttribute("axis", 0), std::ssize(from)) != static_cast<int>(axis_))
        return std::nullopt;
      return Range{indices->front() + (indices->front() < 0 ? size : 0), 1};
    }
    if (!reader.is("Slice")) return std::nullopt;
    const auto starts = integers(1), axes = integers(3), steps = integers(4);
    if (!starts || starts->size() != 1 || (steps && steps->front() != 1)) return std::nullopt;
    if (normalizeAxis(axes ? axes->front() : 0, std::ssize(from)) != static_cast<int>(axis_))
      return std::nullopt;
    return Range{starts->front() + (starts->front() < 0 ? size : 0), shape(reader.outputs[0])[axis_]};
  }

  // Split: one node gives all parts. Else every reader takes one.
  void takeApart() {
    struct Piece {
      Range range;
      ValueId value;
    };
    std::vector<Piece> pieces;
    for (const NodeId id : readers(at_)) {
      const Node& reader = node(id);
      if (reader.is("Split")) {
        if (normalizeAxis(reader.intAttribute("axis", 0), std::ssize(shape(at_))) != static_cast<int>(axis_))
          return;
        int64_t first = 0;
        for (const ValueId output : reader.outputs) {
          pieces.push_back({{first, shape(output)[axis_]}, output});
          first += pieces.back().range.count;
        }
      } else {
        const std::optional<Range> range = taken(reader);
        if (!range) return;
        pieces.push_back({*range, reader.outputs[0]});
      }
      result_.readers.push_back(id);
    }
    std::ranges::sort(pieces, {}, [](const Piece& piece) { return piece.range.first; });
    std::vector<int64_t> counts;
    int64_t end = 0;
    for (const Piece& piece : pieces) {
      if (piece.range.first != end || !piece.value.valid())
        return;  // a part that is read twice, or by nobody
      end += piece.range.count;
      counts.push_back(piece.range.count);
    }
    if (pieces.size() < 2 || end != shape(at_)[axis_] || columns_ <= std::ssize(pieces)) return;
    for (const Piece& piece : pieces) result_.values.push_back(piece.value);
    if (std::ranges::count(counts, counts[0]) != std::ssize(counts) || (hasOwnAxis() && counts[0] != 1))
      result_.reason = fmt::format("its parts have {} columns", fmt::join(counts, ", "));
  }

  ValueId at_;
  size_t axis_ = 0;  // of the columns; from some Reshape on of the parts
  int64_t columns_ = 0;
  int64_t parts_ = 0;  // 0: they have no axis of their own
  ProjectionParts result_;
};

}  // namespace

ProjectionParts projectionParts(const PatternGraph& patterns, NodeId product) {
  return Follower(patterns, product).follow();
}

}  // namespace pipeshard
