#include <type_traits>

#include "runtime/kernels/base/simd.h"
#include "runtime/kernels/movement/transpose.h"

namespace pipeshard::kernels {
namespace {

constexpr int64_t kTile = 32;

// A tile goes through a small buffer, so that both sides are touched in whole lines.
template <typename T>
PIPESHARD_INLINE void transposeByElements(const T* in, int64_t in_stride, T* out, int64_t out_stride,
                                          int64_t rows, int64_t columns) {
  T buffer[kTile * kTile];
  for (int64_t r = 0; r < rows; ++r) {
    const T* line = in + r * in_stride;
    for (int64_t c = 0; c < columns; ++c) buffer[c * kTile + r] = line[c];
  }
  for (int64_t c = 0; c < columns; ++c)
    std::memcpy(out + c * out_stride, buffer + c * kTile, rows * sizeof(T));
}

// Eight rows of eight 4-byte elements in registers: elements, then pairs, then halves change places.
PIPESHARD_INLINE void transposeEight(const uint32_t* in, int64_t in_stride, uint32_t* out,
                                     int64_t out_stride) {
  using Eight = uint32_t __attribute__((vector_size(32)));
  Eight a[8], b[8];
  for (int i = 0; i < 8; ++i) std::memcpy(&a[i], in + i * in_stride, sizeof(Eight));
  for (int i = 0; i < 8; i += 2) {
    b[i] = __builtin_shufflevector(a[i], a[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
    b[i + 1] = __builtin_shufflevector(a[i], a[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
  }
  for (int i = 0; i < 8; i += 4) {
    for (int j = i; j < i + 2; ++j) {
      a[j] = __builtin_shufflevector(b[j], b[j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
      a[j + 2] = __builtin_shufflevector(b[j], b[j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
  for (int i = 0; i < 4; ++i) {
    b[i] = __builtin_shufflevector(a[i], a[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    b[i + 4] = __builtin_shufflevector(a[i], a[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
  for (int i = 0; i < 8; ++i) std::memcpy(out + i * out_stride, &b[i], sizeof(Eight));
}

template <typename T>
struct TransposeTile {
  PIPESHARD_INLINE static void run(const T* in, int64_t in_stride, T* out, int64_t out_stride, int64_t rows,
                                   int64_t columns) {
    if constexpr (std::is_same_v<T, uint32_t>) {
      if (rows % 8 == 0 && columns % 8 == 0) {
        for (int64_t r = 0; r < rows; r += 8)
          for (int64_t c = 0; c < columns; c += 8)
            transposeEight(in + r * in_stride + c, in_stride, out + c * out_stride + r, out_stride);
        return;
      }
    }
    transposeByElements(in, in_stride, out, out_stride, rows, columns);
  }
};

template <typename T>
void transposeMatrices(const TransposePlan& plan, const T* in, T* out) {
  const int64_t row_tiles = (plan.rows.size + kTile - 1) / kTile;
  const int64_t column_tiles = (plan.columns.size + kTile - 1) / kTile;
  forRows(plan.matrices_count * row_tiles * column_tiles, kTile * kTile, [&](int64_t first, int64_t last) {
    for (int64_t index = first; index < last; ++index) {
      const int64_t r = index / column_tiles % row_tiles * kTile;
      const int64_t c = index % column_tiles * kTile;
      int64_t rest = index / (row_tiles * column_tiles);
      int64_t from = r * plan.rows.in + c;
      int64_t to = r + c * plan.columns.out;
      for (size_t a = plan.batch.size(); a-- > 0;) {
        from += rest % plan.batch[a].size * plan.batch[a].in;
        to += rest % plan.batch[a].size * plan.batch[a].out;
        rest /= plan.batch[a].size;
      }
      runVectorised<TransposeTile<T>>(in + from, plan.rows.in, out + to, plan.columns.out,
                                      std::min(kTile, plan.rows.size - r),
                                      std::min(kTile, plan.columns.size - c));
    }
  });
}

}  // namespace

template <typename T>
void transposeElements(DeviceQueue*, const TransposePlan& plan, const T* in, T* out) {
  plan.matrices ? transposeMatrices(plan, in, out) : runStridedCopy(plan.copy, in, out);
}

template void transposeElements(DeviceQueue*, const TransposePlan&, const uint8_t*, uint8_t*);
template void transposeElements(DeviceQueue*, const TransposePlan&, const uint16_t*, uint16_t*);
template void transposeElements(DeviceQueue*, const TransposePlan&, const uint32_t*, uint32_t*);
template void transposeElements(DeviceQueue*, const TransposePlan&, const uint64_t*, uint64_t*);

}  // namespace pipeshard::kernels
