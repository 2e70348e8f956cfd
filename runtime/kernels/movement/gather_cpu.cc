#include <algorithm>
#include <cstring>

#include "runtime/kernels/base/indices.h"
#include "runtime/kernels/base/parallel.h"
#include "runtime/kernels/base/simd.h"
#include "runtime/kernels/movement/gather.h"

namespace pipeshard::kernels {
namespace {

constexpr int64_t kColumns = 128;  // columns of the data that one task adds up

// The mentions of one row: adds up their gradients in the order of positions, and puts the sum (or adds it)
// to the row's.
template <typename T>
struct SumMentions {
  PIPESHARD_INLINE static void run(const Mention* mentions, int64_t count, const T* dy, int64_t stride,
                                   T* row, int64_t width, bool add) {
    T sums[kColumns] = {};
    for (int64_t i = 0; i < count; ++i) {
      const T* from = dy + mentions[i].position * stride;
#pragma omp simd
      for (int64_t c = 0; c < width; ++c) sums[c] += from[c];
    }
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) row[c] = add ? row[c] + sums[c] : sums[c];
  }
};

}  // namespace

template <typename T, typename I>
void gatherRows(DeviceQueue*, const AxisSplit& split, int64_t count, const T* data, const I* indices,
                T* out) {
  forRows(split.outer * count, split.inner, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const int64_t index = wrapIndex(indices[row % count], split.size);
      const T* from = data + (row / count * split.size + index) * split.inner;
      if (split.inner == 1)
        out[row] = *from;
      else
        std::memcpy(out + row * split.inner, from, split.inner * sizeof(T));
    }
  });
}

// Indices may repeat, so they are sorted by row, and tasks share out columns. `mentions`: room for `count`.
template <typename T, typename I>
void gatherGradRows(DeviceQueue*, const AxisSplit& split, int64_t count, const T* dy, const I* indices,
                    Mention* mentions, bool add, T* ddata) {
  if (!add) {
    forBlocks(split.outer * split.size * split.inner, kBlockElements * 16,
              [&](int64_t begin, int64_t end) { std::fill(ddata + begin, ddata + end, T(0)); });
  }
  for (int64_t i = 0; i < count; ++i) mentions[i] = {wrapIndex(indices[i], split.size), i};
  std::sort(mentions, mentions + count);
  const int64_t groups = (split.inner + kColumns - 1) / kColumns;
  forEachBlock(split.outer * groups, split.outer * count * split.inner > kBlockElements, [&](int64_t task) {
    const int64_t outer = task / groups;
    const int64_t column = task % groups * kColumns;
    const int64_t width = std::min(kColumns, split.inner - column);
    for (int64_t i = 0; i < count;) {
      int64_t end = i + 1;
      while (end < count && mentions[end].row == mentions[i].row) ++end;
      runVectorised<SumMentions<T>>(
          mentions + i, end - i, dy + outer * count * split.inner + column, split.inner,
          ddata + (outer * split.size + mentions[i].row) * split.inner + column, width, add);
      i = end;
    }
  });
}

template void gatherRows(DeviceQueue*, const AxisSplit&, int64_t, const uint8_t*, const int32_t*, uint8_t*);
template void gatherRows(DeviceQueue*, const AxisSplit&, int64_t, const uint8_t*, const int64_t*, uint8_t*);
template void gatherRows(DeviceQueue*, const AxisSplit&, int64_t, const uint16_t*, const int32_t*, uint16_t*);
template void gatherRows(DeviceQueue*, const AxisSplit&, int64_t, const uint16_t*, const int64_t*, uint16_t*);
template void gatherRows(DeviceQueue*, const AxisSplit&, int64_t, const uint32_t*, const int32_t*, uint32_t*);
template void gatherRows(DeviceQueue*, const AxisSplit&, int64_t, const uint32_t*, const int64_t*, uint32_t*);
template void gatherRows(DeviceQueue*, const AxisSplit&, int64_t, const uint64_t*, const int32_t*, uint64_t*);
template void gatherRows(DeviceQueue*, const AxisSplit&, int64_t, const uint64_t*, const int64_t*, uint64_t*);
template void gatherGradRows(DeviceQueue*, const AxisSplit&, int64_t, const float*, const int32_t*, Mention*,
                             bool, float*);
template void gatherGradRows(DeviceQueue*, const AxisSplit&, int64_t, const float*, const int64_t*, Mention*,
                             bool, float*);
template void gatherGradRows(DeviceQueue*, const AxisSplit&, int64_t, const double*, const int32_t*, Mention*,
                             bool, double*);
template void gatherGradRows(DeviceQueue*, const AxisSplit&, int64_t, const double*, const int64_t*, Mention*,
                             bool, double*);

}  // namespace pipeshard::kernels
