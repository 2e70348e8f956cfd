// What reductions do with an element, with two running values and with the last one, for every device.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "runtime/kernels/base/simd.h"
#include "runtime/kernels/reductions/reduce.h"

namespace pipeshard::kernels {

// The running value of T within a chunk, and the wider one across chunks.
template <typename T>
using Narrow = std::conditional_t<std::is_floating_point_v<T>, T, int64_t>;
template <typename T>
using Wide = std::conditional_t<std::is_floating_point_v<T>, double, int64_t>;

template <Reduction R, typename T>
PIPESHARD_INLINE Narrow<T> term(T x) {
  const auto value = static_cast<Narrow<T>>(x);
  if constexpr (R == Reduction::kL2 || R == Reduction::kSumSquare)
    return value * value;
  else if constexpr (R == Reduction::kL1)
    return value < 0 ? -value : value;
  else
    return value;
}

template <Reduction R, typename A>
PIPESHARD_INLINE A combine(A a, A b) {
  if constexpr (R == Reduction::kMax)
    return a < b || b != b ? b : a;
  else if constexpr (R == Reduction::kMin)
    return b < a || b != b ? b : a;
  else if constexpr (R == Reduction::kProduct)
    return a * b;
  else
    return a + b;
}

template <Reduction R, typename T, typename A>
PIPESHARD_INLINE A neutral() {
  if constexpr (R == Reduction::kMax) {
    if constexpr (std::is_floating_point_v<T>)
      return -std::numeric_limits<A>::infinity();
    else
      return static_cast<A>(std::numeric_limits<T>::lowest());
  } else if constexpr (R == Reduction::kMin) {
    if constexpr (std::is_floating_point_v<T>)
      return std::numeric_limits<A>::infinity();
    else
      return static_cast<A>(std::numeric_limits<T>::max());
  } else {
    return R == Reduction::kProduct ? A(1) : A(0);
  }
}

template <Reduction R, typename T>
PIPESHARD_INLINE T finishReduction(Wide<T> value, int64_t count) {
  if constexpr (R == Reduction::kL2)
    return static_cast<T>(std::sqrt(static_cast<double>(value)));
  else if constexpr (R == Reduction::kMean && std::is_floating_point_v<T>)
    return static_cast<T>(value / static_cast<double>(count));
  else if constexpr (R == Reduction::kMean)
    return count == 0 ? T(0) : static_cast<T>(value / count);
  else
    return static_cast<T>(value);
}

}  // namespace pipeshard::kernels
