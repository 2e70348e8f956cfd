#include "runtime/device/row_copy.h"

#include <cstring>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

void checkRange(const Buffer& whole, const Buffer& part, int axis, int64_t offset) {
  const size_t a = axis;
  bool fits = axis >= 0 && a < whole.shape.size() && whole.data_type == part.data_type &&
              whole.shape.size() == part.shape.size();
  if (fits) {
    Shape expected = whole.shape;
    expected[a] = part.shape[a];
    fits = part.shape == expected && offset >= 0 && part.shape[a] <= whole.shape[a] - offset;
  }
  if (fits) return;
  fail(ErrorCode::kConfiguration, "'{}' {}{} is no range of axis {} from {} on of '{}' {}{}; plan again",
       part.name, dataTypeName(part.data_type), shapeToString(part.shape), axis, offset, whole.name,
       dataTypeName(whole.data_type), shapeToString(whole.shape));
}

// Bytes of one entry of the axis, and how many blocks of all its entries there are.
struct Blocks {
  size_t entry = 0;
  size_t count = 1;
};

Blocks blocksOf(const Buffer& buffer, size_t axis) {
  Blocks blocks{dataTypeSize(buffer.data_type), 1};
  for (size_t a = 0; a < buffer.shape.size(); ++a) {
    if (a < axis) blocks.count *= buffer.shape[a];
    if (a > axis) blocks.entry *= buffer.shape[a];
  }
  return blocks;
}

}  // namespace

void RowCopy::run() const {
  if (bytes == 0) return;
  if (bytes == from_stride && bytes == to_stride) {
    std::memcpy(to, from, bytes * count);
    return;
  }
  for (size_t i = 0; i < count; ++i) std::memcpy(to + i * to_stride, from + i * from_stride, bytes);
}

RowCopy copyOutOfRange(const Buffer& whole, const std::byte* from, const Buffer& part, std::byte* to,
                       int axis, int64_t offset) {
  checkRange(whole, part, axis, offset);
  const size_t a = axis;
  const Blocks blocks = blocksOf(whole, a);
  const size_t bytes = part.shape[a] * blocks.entry;
  return {from + offset * blocks.entry, to, bytes, blocks.count, whole.shape[a] * blocks.entry, bytes};
}

RowCopy copyIntoRange(const Buffer& part, const std::byte* from, const Buffer& whole, std::byte* to, int axis,
                      int64_t offset) {
  checkRange(whole, part, axis, offset);
  const size_t a = axis;
  const Blocks blocks = blocksOf(whole, a);
  const size_t bytes = part.shape[a] * blocks.entry;
  return {from, to + offset * blocks.entry, bytes, blocks.count, bytes, whole.shape[a] * blocks.entry};
}

}  // namespace pipeshard
