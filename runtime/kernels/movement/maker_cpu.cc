#include <algorithm>
#include <cstring>

#include "runtime/kernels/base/parallel.h"
#include "runtime/kernels/movement/maker.h"

namespace pipeshard::kernels {

void storeBytes(DeviceQueue*, std::span<const std::byte> bytes, std::byte* out) {
  if (!bytes.empty()) std::memcpy(out, bytes.data(), bytes.size());
}

template <typename T>
void fillRange(DeviceQueue*, int64_t count, const T* start, const T* delta, T* out) {
  const T first = *start, step = *delta;
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(first + static_cast<T>(i) * step);
}

template <typename T>
void fillDiagonal(DeviceQueue*, int64_t rows, int64_t columns, int64_t diagonal, T one, T* out) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) out[r * columns + c] = c - r == diagonal ? one : T(0);
}

template <typename V, typename I>
void fillOneHot(DeviceQueue*, const AxisSplit& split, const I* indices, const V* values, V* out) {
  const int64_t depth = split.size;
  std::fill(out, out + split.outer * depth * split.inner, values[0]);
  for (int64_t o = 0; o < split.outer; ++o) {
    for (int64_t i = 0; i < split.inner; ++i) {
      const int64_t index = indices[o * split.inner + i];
      if (index < -depth || index >= depth) continue;  // all off, says the standard
      out[(o * depth + (index < 0 ? index + depth : index)) * split.inner + i] = values[1];
    }
  }
}

template <typename T>
void keepTriangle(DeviceQueue*, const TrianglePlan& plan, const T* x, T* out) {
  const int64_t columns = plan.columns;
  const bool upper = plan.upper;
  forRows(plan.batch * plan.rows, columns, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const T* from = x + row * columns;
      T* to = out + row * columns;
      const int64_t edge = plan.edge(row);
      for (int64_t c = 0; c < columns; ++c) to[c] = (c >= edge) == upper ? from[c] : T(0);
    }
  });
}

PIPESHARD_MAKER_INSTANCES

}  // namespace pipeshard::kernels
