// Casts between the types that have loops, on any device; and, on devices that do not convert otherwise, from
// and to float16 and bfloat16.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "ir/base/small_floats.h"
#include "runtime/kernels/base/simd.h"

namespace pipeshard {
class DeviceQueue;
}

namespace pipeshard::kernels {

template <typename T>
inline constexpr bool kIsNarrow = std::is_same_v<T, Half> || std::is_same_v<T, Bfloat>;

// Out-of-range numbers saturate and NaN becomes 0 (ONNX leaves both undefined).
template <typename To, typename From>
PIPESHARD_INLINE To castElement(From x) {
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else if constexpr (kIsNarrow<From>) {
    return castElement<To>(widen(x));
  } else if constexpr (std::is_same_v<To, Half>) {
    return narrowToHalf(static_cast<double>(x));
  } else if constexpr (std::is_same_v<To, Bfloat>) {
    return narrowToBfloat(static_cast<float>(static_cast<double>(x)));
  } else if constexpr (std::is_same_v<To, bool>) {
    return x != From(0);
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    constexpr From kLow = static_cast<From>(std::numeric_limits<To>::lowest());
    constexpr From kHigh = static_cast<From>(std::numeric_limits<To>::max());
    if (!(x >= kLow)) return x != x ? To(0) : std::numeric_limits<To>::lowest();
    if (x >= kHigh) return std::numeric_limits<To>::max();
    return static_cast<To>(x);
  } else {
    return static_cast<To>(x);
  }
}

// A bool in memory is read as a byte, since a file may hold other values than 0 and 1.
template <typename T>
using Stored = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;

// `y` may be `x` where both have elements of one size.
template <typename From, typename To>
void applyCast(DeviceQueue* queue, int64_t count, const Stored<From>* x, To* y);

// INSTANCE(From, To) for all that there are.
#define PIPESHARD_CAST_FROM(INSTANCE, From) \
  INSTANCE(From, float)                     \
  INSTANCE(From, double)                    \
  INSTANCE(From, int32_t)                   \
  INSTANCE(From, int64_t)                   \
  INSTANCE(From, int8_t)                    \
  INSTANCE(From, uint8_t)                   \
  INSTANCE(From, bool)
#define PIPESHARD_CAST_INSTANCES(INSTANCE) \
  PIPESHARD_CAST_FROM(INSTANCE, float)     \
  PIPESHARD_CAST_FROM(INSTANCE, double)    \
  PIPESHARD_CAST_FROM(INSTANCE, int32_t)   \
  PIPESHARD_CAST_FROM(INSTANCE, int64_t)   \
  PIPESHARD_CAST_FROM(INSTANCE, int8_t)    \
  PIPESHARD_CAST_FROM(INSTANCE, uint8_t)   \
  PIPESHARD_CAST_FROM(INSTANCE, bool)
// INSTANCE(From, To) where one of them is narrow.
#define PIPESHARD_NARROW_CASTS(INSTANCE, Narrow) \
  PIPESHARD_CAST_FROM(INSTANCE, Narrow)          \
  INSTANCE(Narrow, Half)                         \
  INSTANCE(Narrow, Bfloat)                       \
  INSTANCE(float, Narrow)                        \
  INSTANCE(double, Narrow)                       \
  INSTANCE(int32_t, Narrow)                      \
  INSTANCE(int64_t, Narrow)                      \
  INSTANCE(int8_t, Narrow)                       \
  INSTANCE(uint8_t, Narrow)                      \
  INSTANCE(bool, Narrow)

}  // namespace pipeshard::kernels
