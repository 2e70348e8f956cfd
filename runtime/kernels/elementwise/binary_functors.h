// What operators of two operands do with two elements, for every device; and which of them there are for
// which types.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "runtime/kernels/base/simd.h"

namespace pipeshard {
class DeviceQueue;
}

namespace pipeshard::kernels {

struct Broadcast;

// y = Op::apply(a, b) over broadcast operands; `y` may be `a` or `b` where that one has as many elements.
template <typename Op, typename T, typename R, typename U = T>
void applyBinary(DeviceQueue* queue, const Broadcast& plan, const T* a, const U* b, R* y);

// out = condition ? x : y over broadcast operands; `out` may be `x` or `y` where that one has as many
// elements. T: the unsigned integer of the elements' size.
template <typename T>
void applyWhere(DeviceQueue* queue, const Broadcast& plan, const uint8_t* condition, const T* x, const T* y,
                T* out);

// Integer arithmetic wraps around, as numpy's does.
template <typename T>
using Wrapping = std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>;
template <typename T>
using WrappingT = typename Wrapping<T>::type;

struct AddOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T a, T b) {
    return T(WrappingT<T>(a) + WrappingT<T>(b));
  }
};
struct SubOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T a, T b) {
    return T(WrappingT<T>(a) - WrappingT<T>(b));
  }
};
struct MulOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T a, T b) {
    return T(WrappingT<T>(a) * WrappingT<T>(b));
  }
};
struct DivOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      if (b == 0) return 0;  // refused before the loop
      if (b == T(-1)) return SubOp::apply(T(0), a);
    }
    return a / b;
  }
};
struct MaxOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T a, T b) {
    return a != a ? a : (a < b || b != b ? b : a);
  }
};
struct MinOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T a, T b) {
    return a != a ? a : (b < a || b != b ? b : a);
  }
};
struct FmodOp {  // the sign of the dividend
  template <typename T>
  PIPESHARD_INLINE static T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>)
      return b == 0 || b == T(-1) ? T(0) : T(a % b);
    else
      return std::fmod(a, b);
  }
};
struct ModOp {  // the sign of the divisor
  template <typename T>
  PIPESHARD_INLINE static T apply(T a, T b) {
    const T rest = FmodOp::apply(a, b);
    if constexpr (std::is_unsigned_v<T>)
      return rest;
    else
      return rest != 0 && (rest < 0) != (b < 0) ? T(rest + b) : rest;
  }
};
struct AndOp {
  PIPESHARD_INLINE static bool apply(uint8_t a, uint8_t b) { return a != 0 && b != 0; }
};
struct OrOp {
  PIPESHARD_INLINE static bool apply(uint8_t a, uint8_t b) { return a != 0 || b != 0; }
};
struct XorOp {
  PIPESHARD_INLINE static bool apply(uint8_t a, uint8_t b) { return (a != 0) != (b != 0); }
};
struct TakeSecondOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T, T b) {
    return b;
  }
};

struct PowOp {
  template <typename T, typename U>
  PIPESHARD_INLINE static T apply(T base, U exponent) {
    if constexpr (std::is_same_v<T, float>)
      return std::pow(base, static_cast<float>(exponent));
    else
      return static_cast<T>(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
};
struct SquareOp {
  template <typename T, typename U>
  PIPESHARD_INLINE static T apply(T x, U) {
    return x * x;
  }
};
struct CubeOp {
  template <typename T, typename U>
  PIPESHARD_INLINE static T apply(T x, U) {
    return x * x * x;
  }
};
struct RootOp {
  template <typename T, typename U>
  PIPESHARD_INLINE static T apply(T x, U) {
    return std::sqrt(x);
  }
};

struct EqualOp {
  template <typename T>
  PIPESHARD_INLINE static bool apply(T a, T b) {
    return a == b;
  }
};
struct EqualBoolOp {
  PIPESHARD_INLINE static bool apply(uint8_t a, uint8_t b) { return (a != 0) == (b != 0); }
};
struct LessOp {
  template <typename T>
  PIPESHARD_INLINE static bool apply(T a, T b) {
    return a < b;
  }
};
struct LessOrEqualOp {
  template <typename T>
  PIPESHARD_INLINE static bool apply(T a, T b) {
    return a <= b;
  }
};
struct GreaterOp {
  template <typename T>
  PIPESHARD_INLINE static bool apply(T a, T b) {
    return a > b;
  }
};
struct GreaterOrEqualOp {
  template <typename T>
  PIPESHARD_INLINE static bool apply(T a, T b) {
    return a >= b;
  }
};

// C++ computes narrow types as int; a shift by as many bits as there are, or more, is undefined.
template <typename T>
using Shifted = std::conditional_t<sizeof(T) < sizeof(uint32_t), uint32_t, T>;

struct ShiftLeftOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T a, T b) {
    return b < std::numeric_limits<T>::digits ? T(Shifted<T>(a) << b) : T(0);
  }
};
struct ShiftRightOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T a, T b) {
    return b < std::numeric_limits<T>::digits ? T(Shifted<T>(a) >> b) : T(0);
  }
};
struct BitAndOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T a, T b) {
    return T(a & b);
  }
};
struct BitOrOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T a, T b) {
    return T(a | b);
  }
};
struct BitXorOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T a, T b) {
    return T(a ^ b);
  }
};

// INSTANCE(Op, T, R, U) for all that there are.
#define PIPESHARD_INTEGER_INSTANCES(INSTANCE, Op) \
  INSTANCE(Op, int32_t, int32_t, int32_t)         \
  INSTANCE(Op, int64_t, int64_t, int64_t)         \
  INSTANCE(Op, int8_t, int8_t, int8_t)            \
  INSTANCE(Op, uint8_t, uint8_t, uint8_t)
#define PIPESHARD_ARITHMETIC_INSTANCES(INSTANCE, Op) \
  INSTANCE(Op, float, float, float)                  \
  INSTANCE(Op, double, double, double)               \
  PIPESHARD_INTEGER_INSTANCES(INSTANCE, Op)
#define PIPESHARD_COMPARISON_INSTANCES(INSTANCE, Op) \
  INSTANCE(Op, float, bool, float)                   \
  INSTANCE(Op, double, bool, double)                 \
  INSTANCE(Op, int32_t, bool, int32_t)               \
  INSTANCE(Op, int64_t, bool, int64_t)               \
  INSTANCE(Op, int8_t, bool, int8_t)                 \
  INSTANCE(Op, uint8_t, bool, uint8_t)
#define PIPESHARD_POWER_INSTANCES(INSTANCE, Op, T) \
  INSTANCE(Op, T, T, float)                        \
  INSTANCE(Op, T, T, double)                       \
  INSTANCE(Op, T, T, int32_t)                      \
  INSTANCE(Op, T, T, int64_t)
#define PIPESHARD_BIT_INSTANCES(INSTANCE, Op) \
  INSTANCE(Op, uint8_t, uint8_t, uint8_t)     \
  INSTANCE(Op, uint16_t, uint16_t, uint16_t)  \
  INSTANCE(Op, uint32_t, uint32_t, uint32_t)  \
  INSTANCE(Op, uint64_t, uint64_t, uint64_t)
#define PIPESHARD_BINARY_INSTANCES(INSTANCE)                 \
  PIPESHARD_ARITHMETIC_INSTANCES(INSTANCE, AddOp)            \
  PIPESHARD_ARITHMETIC_INSTANCES(INSTANCE, SubOp)            \
  PIPESHARD_ARITHMETIC_INSTANCES(INSTANCE, MulOp)            \
  PIPESHARD_ARITHMETIC_INSTANCES(INSTANCE, DivOp)            \
  PIPESHARD_ARITHMETIC_INSTANCES(INSTANCE, MaxOp)            \
  PIPESHARD_ARITHMETIC_INSTANCES(INSTANCE, MinOp)            \
  PIPESHARD_ARITHMETIC_INSTANCES(INSTANCE, FmodOp)           \
  PIPESHARD_INTEGER_INSTANCES(INSTANCE, ModOp)               \
  PIPESHARD_ARITHMETIC_INSTANCES(INSTANCE, TakeSecondOp)     \
  INSTANCE(AndOp, uint8_t, bool, uint8_t)                    \
  INSTANCE(OrOp, uint8_t, bool, uint8_t)                     \
  INSTANCE(XorOp, uint8_t, bool, uint8_t)                    \
  INSTANCE(EqualBoolOp, uint8_t, bool, uint8_t)              \
  PIPESHARD_COMPARISON_INSTANCES(INSTANCE, EqualOp)          \
  PIPESHARD_COMPARISON_INSTANCES(INSTANCE, LessOp)           \
  PIPESHARD_COMPARISON_INSTANCES(INSTANCE, LessOrEqualOp)    \
  PIPESHARD_COMPARISON_INSTANCES(INSTANCE, GreaterOp)        \
  PIPESHARD_COMPARISON_INSTANCES(INSTANCE, GreaterOrEqualOp) \
  PIPESHARD_POWER_INSTANCES(INSTANCE, PowOp, float)          \
  PIPESHARD_POWER_INSTANCES(INSTANCE, PowOp, double)         \
  PIPESHARD_POWER_INSTANCES(INSTANCE, PowOp, int32_t)        \
  PIPESHARD_POWER_INSTANCES(INSTANCE, PowOp, int64_t)        \
  PIPESHARD_POWER_INSTANCES(INSTANCE, SquareOp, float)       \
  PIPESHARD_POWER_INSTANCES(INSTANCE, SquareOp, double)      \
  PIPESHARD_POWER_INSTANCES(INSTANCE, CubeOp, float)         \
  PIPESHARD_POWER_INSTANCES(INSTANCE, CubeOp, double)        \
  PIPESHARD_POWER_INSTANCES(INSTANCE, RootOp, float)         \
  PIPESHARD_POWER_INSTANCES(INSTANCE, RootOp, double)        \
  PIPESHARD_BIT_INSTANCES(INSTANCE, ShiftLeftOp)             \
  PIPESHARD_BIT_INSTANCES(INSTANCE, ShiftRightOp)            \
  PIPESHARD_BIT_INSTANCES(INSTANCE, BitAndOp)                \
  PIPESHARD_BIT_INSTANCES(INSTANCE, BitOrOp)                 \
  PIPESHARD_BIT_INSTANCES(INSTANCE, BitXorOp)

}  // namespace pipeshard::kernels
