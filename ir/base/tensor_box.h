// Boxes of a tensor: by axis [start, start + size). What a device holds of a tensor, and how to find it in
// row-major memory.
//
//   rows 2..3, columns 1..2 of [4,6]: Shard{start {2,1}, size {2,2}}
//   its runs are elements [13,15) and [19,21)
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "ir/base/shape.h"
#include "ir/base/sharding_spec.h"

namespace pipeshard {

// All of a tensor.
Shard wholeBox(const Shape& whole);

// "[2,2] from [2,1] on".
std::string printBox(const Shard& box);

// Where element `element` of a row-major box stands in the whole.
Shape placeInBox(const Shard& box, int64_t element);

// Why `box` is no box of a tensor of this shape ("[2,2] from [3,1] on passes the end of axis 0 of [4,6]"); ""
// if it is.
std::string boxFault(const Shape& whole, const Shard& box);

// Why the boxes do not hold every element exactly once ("... and ... overlap", "they hold 12 of 24
// elements"); "" if they do. The boxes must have no boxFault. Empty boxes are allowed.
std::string tilingFault(const Shape& whole, const std::vector<Shard>& boxes);

// Calls f(first, count) for every run of elements that lie one behind the other in the row-major whole, in
// the box's own row-major order: `first` counts elements of the whole. The box must have no boxFault; an
// empty one has no runs.
template <typename F>
void forEachRun(const Shape& whole, const Shard& box, F&& f) {
  const size_t rank = whole.size();
  size_t inner = rank;  // the axes from here on make one run
  int64_t count = 1;
  while (inner > 0) {
    --inner;
    count *= box.size[inner];
    if (box.size[inner] != whole[inner]) break;
  }
  if (elementCount(box.size) == 0) return;
  const Shape strides = rowMajorStrides(whole);
  int64_t first = 0;
  for (size_t axis = 0; axis < rank; ++axis) first += box.start[axis] * strides[axis];
  Shape at(inner, 0);
  while (true) {
    f(first, count);
    size_t axis = inner;
    while (axis > 0) {
      --axis;
      first += strides[axis];
      if (++at[axis] < box.size[axis]) break;
      first -= at[axis] * strides[axis];
      at[axis] = 0;
      if (axis == 0) return;
    }
    if (inner == 0) return;
  }
}

// Elements of `element` bytes, row-major: a matrix [rows,columns] to [columns,rows]. The spans do not
// overlap.
void transposeMatrix(std::span<const std::byte> from, int64_t rows, int64_t columns, size_t element,
                     std::span<std::byte> to);

// Of a weight that lies transposed, as its module has it: [k,n] is [n,k], and [k,3,n], where the step has its
// columns as two axes, is [3,n,k].
Shape firstAxisLast(Shape shape);
Shard firstAxisLast(const Shard& box);

// Two axes as one, [4,3,2] with axis 1 as [4,6]: of a shape; of a box that has one entry of the first of the
// two, or all of the second.
Shape withAxesJoined(Shape shape, size_t axis);
Shard withAxesJoined(const Shard& box, const Shape& whole, size_t axis);

}  // namespace pipeshard
