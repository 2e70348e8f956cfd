#include "ir/base/shape.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/error.h"

namespace pipeshard {

bool isStatic(const Shape& shape) {
  return std::all_of(shape.begin(), shape.end(), [](int64_t size) { return size >= 0; });
}

int64_t elementCount(const Shape& shape) {
  constexpr int64_t kLimit = int64_t{1} << 62;
  int64_t count = 1;
  for (int64_t size : shape) {
    if (size < 0) fail(ErrorCode::kBadModel, "shape {} has an axis of unknown size", shapeToString(shape));
    if (size != 0 && count > kLimit / size)
      fail(ErrorCode::kBadModel, "shape {} has more than 2^62 elements", shapeToString(shape));
    count *= size;
  }
  return count;
}

int64_t byteCount(DataType type, const Shape& shape) {
  const int64_t size = dataTypeSize(type);
  if (size == 0)
    fail(ErrorCode::kBadModel, "a tensor of type {} has no fixed size in bytes", dataTypeName(type));
  const int64_t count = elementCount(shape);
  if (count > (int64_t{1} << 62) / size)
    fail(ErrorCode::kBadModel, "a {} tensor of shape {} is too large", dataTypeName(type),
         shapeToString(shape));
  return count * size;
}

std::string shapeToString(const Shape& shape) {
  std::string text = "[";
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    if (axis > 0) text += ',';
    text += shape[axis] < 0 ? "?" : std::to_string(shape[axis]);
  }
  return text + "]";
}

Shape rowMajorStrides(const Shape& shape) {
  Shape strides(shape.size(), 1);
  for (size_t axis = shape.size(); axis-- > 1;) strides[axis - 1] = strides[axis] * shape[axis];
  return strides;
}

Shape broadcastShapes(const Shape& a, const Shape& b) {
  const size_t rank = std::max(a.size(), b.size());
  Shape result(rank);
  for (size_t i = 0; i < rank; ++i) {
    const int64_t sa = i < rank - a.size() ? 1 : a[i - (rank - a.size())];
    const int64_t sb = i < rank - b.size() ? 1 : b[i - (rank - b.size())];
    if (sa != sb && sa != 1 && sb != 1) {
      fail(ErrorCode::kBadModel, "shapes {} and {} cannot be broadcast together", shapeToString(a),
           shapeToString(b));
    }
    result[i] = sa == 1 ? sb : sa;
  }
  return result;
}

int normalizeAxis(int64_t axis, size_t rank) {
  const int64_t r = rank;
  if (axis < -r || axis >= r)
    fail(ErrorCode::kBadModel, "axis {} is outside of a tensor of rank {}", axis, r);
  return axis < 0 ? axis + r : axis;
}

}  // namespace pipeshard
