// Copies between two strided views of the same sizes: what Slice, Split, Concat, Expand, Tile and Transpose
// come down to.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "ir/base/shape.h"
#include "runtime/kernels/base/parallel.h"

namespace pipeshard::kernels {

struct CopyAxis {
  int64_t size = 1;
  int64_t in = 0;   // elements between neighbours in the source; 0 repeats, negative walks backwards
  int64_t out = 0;  // likewise in the destination
};

// Axes outermost first. makeStridedCopy drops axes of size 1 and merges neighbours that one stride describes
// on both sides.
struct StridedCopy {
  std::vector<CopyAxis> axes;  // the last one is copied in one go; at least one axis
  int64_t in_begin = 0;        // elements to the first one
  int64_t out_begin = 0;
  int64_t rows = 1;  // product of all sizes but the last
};

StridedCopy makeStridedCopy(const std::vector<CopyAxis>& axes, int64_t in_begin = 0, int64_t out_begin = 0);

// The axes of a copy of `sizes` between strides given per axis.
std::vector<CopyAxis> copyAxes(const Shape& sizes, const Shape& in_strides, const Shape& out_strides);

template <typename T>
void copyRow(const T* from, T* to, const CopyAxis& axis) {
  if (axis.in == 1 && axis.out == 1) {
    std::memcpy(to, from, axis.size * sizeof(T));
  } else if (axis.in == 0 && axis.out == 1) {
    std::fill(to, to + axis.size, *from);
  } else {
    for (int64_t i = 0; i < axis.size; ++i) to[i * axis.out] = from[i * axis.in];
  }
}

template <typename T>
void runStridedCopy(const StridedCopy& copy, const T* in, T* out) {
  const CopyAxis& inner = copy.axes.back();
  const size_t outer = copy.axes.size() - 1;
  if (inner.size == 0 || copy.rows == 0) return;
  constexpr int64_t kPiece = kBlockElements * 16;  // one long row is shared out
  if (outer == 0 && inner.size > 2 * kPiece) {
    forBlocks(inner.size, kPiece, [&](int64_t begin, int64_t end) {
      copyRow(in + copy.in_begin + begin * inner.in, out + copy.out_begin + begin * inner.out,
              CopyAxis{end - begin, inner.in, inner.out});
    });
    return;
  }
  forRows(copy.rows, inner.size, [&](int64_t first, int64_t last) {
    std::vector<int64_t> index(outer);
    int64_t from = copy.in_begin, to = copy.out_begin, rest = first;
    for (size_t a = outer; a-- > 0;) {
      index[a] = rest % copy.axes[a].size;
      rest /= copy.axes[a].size;
      from += index[a] * copy.axes[a].in;
      to += index[a] * copy.axes[a].out;
    }
    for (int64_t row = first; row < last; ++row) {
      copyRow(in + from, out + to, inner);
      for (size_t a = outer; a-- > 0;) {
        from += copy.axes[a].in;
        to += copy.axes[a].out;
        if (++index[a] < copy.axes[a].size) break;
        from -= copy.axes[a].size * copy.axes[a].in;
        to -= copy.axes[a].size * copy.axes[a].out;
        index[a] = 0;
      }
    }
  });
}

}  // namespace pipeshard::kernels
