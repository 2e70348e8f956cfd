// Reductions of contiguous elements in a fixed order: kLanes independent running values, then pairwise. The
// order depends on the count alone. For runVectorised bodies.
#pragma once

#include <cstdint>

#include "runtime/kernels/base/simd.h"

namespace pipeshard::kernels {

inline constexpr int kLanes = 16;

// Sums of at most kChunk elements are formed in T, then added up in double (integers: in T).
inline constexpr int64_t kChunk = 2048;

template <typename T>
PIPESHARD_INLINE T sumLanes(T* lanes) {
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  return lanes[0];
}

// Sum of term(i) for i in [0, count).
template <typename T, typename Term>
PIPESHARD_INLINE T sumOf(int64_t count, const Term& term) {
  T lanes[kLanes] = {};
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
#pragma omp simd
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  }
  for (int64_t i = whole; i < count; ++i) lanes[i - whole] += term(i);
  return sumLanes(lanes);
}

// Largest of term(i), NaN if one is NaN; `least` when count is 0.
template <typename T, typename Term>
PIPESHARD_INLINE T maxOf(int64_t count, T least, const Term& term) {
  T lanes[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = least;
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
#pragma omp simd
    for (int lane = 0; lane < kLanes; ++lane) {
      const T x = term(i + lane);
      lanes[lane] = lanes[lane] < x || x != x ? x : lanes[lane];
    }
  }
  for (int64_t i = whole; i < count; ++i) {
    const T x = term(i);
    if (lanes[i - whole] < x || x != x) lanes[i - whole] = x;
  }
  T result = lanes[0];
  for (int lane = 1; lane < kLanes; ++lane)
    result = result != result || !(result < lanes[lane] || lanes[lane] != lanes[lane]) ? result : lanes[lane];
  return result;
}

}  // namespace pipeshard::kernels
