#include "ir/base/tensor_box.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

namespace pipeshard {
namespace {

bool overlap(const Shard& a, const Shard& b) {
  for (size_t axis = 0; axis < a.start.size(); ++axis) {
    const int64_t start = std::max(a.start[axis], b.start[axis]);
    const int64_t end = std::min(a.start[axis] + a.size[axis], b.start[axis] + b.size[axis]);
    if (start >= end) return false;
  }
  return true;
}

}  // namespace

Shard wholeBox(const Shape& whole) { return {Shape(whole.size(), 0), whole}; }

std::string printBox(const Shard& box) {
  return fmt::format("{} from {} on", shapeToString(box.size), shapeToString(box.start));
}

std::string boxFault(const Shape& whole, const Shard& box) {
  if (box.start.size() != whole.size() || box.size.size() != whole.size()) {
    return fmt::format("{} has another number of axes than {}", printBox(box), shapeToString(whole));
  }
  for (size_t axis = 0; axis < whole.size(); ++axis) {
    if (box.start[axis] < 0 || box.size[axis] < 0) {
      return fmt::format("start {} and size {} along axis {}: neither can be negative", box.start[axis],
                         box.size[axis], axis);
    }
    if (box.size[axis] > whole[axis] || box.start[axis] > whole[axis] - box.size[axis]) {
      return fmt::format("{} passes the end of axis {} of {}", printBox(box), axis, shapeToString(whole));
    }
  }
  return "";
}

std::string tilingFault(const Shape& whole, const std::vector<Shard>& boxes) {
  const int64_t all = elementCount(whole);  // refuses what could not be added up
  int64_t held = 0;
  for (size_t i = 0; i < boxes.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (overlap(boxes[j], boxes[i]))
        return fmt::format("{} and {} overlap", printBox(boxes[j]), printBox(boxes[i]));
    }
    held += elementCount(boxes[i].size);
  }
  if (held == all) return "";
  return fmt::format("the parts hold {} of the {} elements of {}", held, all, shapeToString(whole));
}

void transposeMatrix(std::span<const std::byte> from, int64_t rows, int64_t columns, size_t element,
                     std::span<std::byte> to) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      std::memcpy(to.data() + (column * rows + row) * element,
                  from.data() + (row * columns + column) * element, element);
    }
  }
}

Shape placeInBox(const Shard& box, int64_t element) {
  Shape place = box.start;
  for (size_t axis = place.size(); axis-- > 0;) {
    place[axis] += element % box.size[axis];
    element /= box.size[axis];
  }
  return place;
}

Shape firstAxisLast(Shape shape) {
  std::rotate(shape.begin(), shape.begin() + 1, shape.end());
  return shape;
}

Shard firstAxisLast(const Shard& box) { return {firstAxisLast(box.start), firstAxisLast(box.size)}; }

Shape withAxesJoined(Shape shape, size_t axis) {
  shape.at(axis) *= shape.at(axis + 1);
  shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(axis) + 1);
  return shape;
}

Shard withAxesJoined(const Shard& box, const Shape& whole, size_t axis) {
  Shard joined{box.start, withAxesJoined(box.size, axis)};
  joined.start[axis] = box.start[axis] * whole[axis + 1] + box.start[axis + 1];
  joined.start.erase(joined.start.begin() + static_cast<std::ptrdiff_t>(axis) + 1);
  return joined;
}

}  // namespace pipeshard
