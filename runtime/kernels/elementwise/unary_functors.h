// What operators of one operand do with an element, for every device; and which of them there are for which
// types.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "runtime/kernels/base/vector_math.h"

namespace pipeshard {
class DeviceQueue;
}

namespace pipeshard::kernels {

// Parameters of an operator, as read from its attributes: alpha and beta mean what it says (LeakyRelu's
// alpha; IsInf's two signs).
struct UnaryParameters {
  double alpha = 0;
  double beta = 0;
  bool flag = false;
};

struct AbsOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const UnaryParameters&) {
    return x < T(0) ? T(-x) : (x == T(0) ? T(0) : x);
  }
};
struct NegOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const UnaryParameters&) {
    if constexpr (std::is_integral_v<T>)
      return T(std::make_unsigned_t<T>(0) - std::make_unsigned_t<T>(x));
    else
      return -x;
  }
};
struct SqrtOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const UnaryParameters&) {
    return std::sqrt(x);
  }
};
struct ExpOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const UnaryParameters&) {
    return fastExp(x);
  }
};
struct LogOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const UnaryParameters&) {
    return std::log(x);
  }
};
struct ReciprocalOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const UnaryParameters&) {
    return T(1) / x;
  }
};
struct ErfOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const UnaryParameters&) {
    return fastErf(x);
  }
};
struct TanhOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const UnaryParameters&) {
    return fastTanh(x);
  }
};
struct SigmoidOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const UnaryParameters&) {
    return fastSigmoid(x);
  }
};
struct ReluOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const UnaryParameters&) {
    return x < T(0) ? T(0) : x;
  }
};
// alpha and beta: the factors of the argument, alpha x and alpha (x + beta x^3).
struct GeluErfOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const UnaryParameters& p) {
    return T(0.5) * x * (T(1) + fastErf(x * T(p.alpha)));
  }
};
struct GeluTanhOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const UnaryParameters& p) {
    return T(0.5) * x * (T(1) + fastTanh(T(p.alpha) * (x + T(p.beta) * x * x * x)));
  }
};
struct SwishOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const UnaryParameters& p) {
    return x * fastSigmoid(T(p.alpha) * x);
  }
};
struct LeakyReluOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const UnaryParameters& p) {
    return x < T(0) ? T(p.alpha) * x : x;
  }
};
struct EluOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const UnaryParameters& p) {
    return x < T(0) ? T(p.alpha) * std::expm1(x) : x;
  }
};
struct SoftplusOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const UnaryParameters&) {
    return std::log1p(std::exp(-std::abs(x))) + (x < T(0) ? T(0) : x);
  }
};
// x tanh(log(1 + e^x)) as x n / d with n = e^x (e^x + 2) and d = n + 2, divided by e^2x where x > 0, so that
// nothing overflows. No arm of a choice is a product that is added to something: whether that becomes one
// rounding or two would depend on the loop.
struct MishOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const UnaryParameters&) {
    const T e = fastExp(-std::abs(x));
    const T n = x < T(0) ? e * (e + T(2)) : T(1) + T(2) * e;
    const T scale = x < T(0) ? T(1) : e;
    return x * (n / (n + T(2) * (scale * scale)));
  }
};
struct SinOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const UnaryParameters&) {
    return std::sin(x);
  }
};
struct CosOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const UnaryParameters&) {
    return std::cos(x);
  }
};
struct TanOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const UnaryParameters&) {
    return std::tan(x);
  }
};
struct AsinOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const UnaryParameters&) {
    return std::asin(x);
  }
};
struct AcosOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const UnaryParameters&) {
    return std::acos(x);
  }
};
struct AtanOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const UnaryParameters&) {
    return std::atan(x);
  }
};
struct SinhOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const UnaryParameters&) {
    return std::sinh(x);
  }
};
struct CoshOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const UnaryParameters&) {
    return std::cosh(x);
  }
};
struct AsinhOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const UnaryParameters&) {
    return std::asinh(x);
  }
};
struct AcoshOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const UnaryParameters&) {
    return std::acosh(x);
  }
};
struct AtanhOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const UnaryParameters&) {
    return std::atanh(x);
  }
};
struct FloorOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const UnaryParameters&) {
    return std::floor(x);
  }
};
struct CeilOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const UnaryParameters&) {
    return std::ceil(x);
  }
};
// To even.
struct RoundOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const UnaryParameters&) {
    return std::nearbyint(x);
  }
};
struct SignOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const UnaryParameters&) {
    return x != x ? x : T((x > T(0)) - (x < T(0)));
  }
};
struct NotOp {
  template <typename T>
  PIPESHARD_INLINE static bool apply(T x, const UnaryParameters&) {
    return x == T(0);
  }
};
struct IsNaNOp {
  template <typename T>
  PIPESHARD_INLINE static bool apply(T x, const UnaryParameters&) {
    return x != x;
  }
};
struct IsInfOp {
  template <typename T>
  PIPESHARD_INLINE static bool apply(T x, const UnaryParameters& p) {
    return (x == std::numeric_limits<T>::infinity() && p.alpha != 0) ||
           (x == -std::numeric_limits<T>::infinity() && p.beta != 0);
  }
};
// By alpha.
struct DivideOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const UnaryParameters& p) {
    return x / T(p.alpha);
  }
};
struct InvertOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const UnaryParameters&) {
    return T(~x);
  }
};

// y = Op::apply(x); `y` may be `x`.
template <typename Op, typename T, typename R>
void applyUnary(DeviceQueue* queue, const UnaryParameters& parameters, int64_t count, const T* x, R* y);

// The bounds themselves, and where they are on the device, if they are.
template <typename T>
struct ClipBounds {
  T low, high;
  const T* low_at;
  const T* high_at;
};
// `y` may be `x`. T: float, double, int32_t, int64_t, int8_t, uint8_t.
template <typename T>
void applyClip(DeviceQueue* queue, const ClipBounds<T>& bounds, int64_t count, const T* x, T* y);

// INSTANCE(Op, T, R) for all that there are.
#define PIPESHARD_FLOAT_INSTANCES(INSTANCE, Op) INSTANCE(Op, float, float) INSTANCE(Op, double, double)
#define PIPESHARD_NUMERIC_INSTANCES(INSTANCE, Op) \
  PIPESHARD_FLOAT_INSTANCES(INSTANCE, Op)         \
  INSTANCE(Op, int32_t, int32_t)                  \
  INSTANCE(Op, int64_t, int64_t)                  \
  INSTANCE(Op, int8_t, int8_t)
#define PIPESHARD_UNARY_INSTANCES(INSTANCE)         \
  PIPESHARD_NUMERIC_INSTANCES(INSTANCE, AbsOp)      \
  PIPESHARD_NUMERIC_INSTANCES(INSTANCE, NegOp)      \
  PIPESHARD_NUMERIC_INSTANCES(INSTANCE, SignOp)     \
  PIPESHARD_NUMERIC_INSTANCES(INSTANCE, ReluOp)     \
  PIPESHARD_FLOAT_INSTANCES(INSTANCE, SqrtOp)       \
  PIPESHARD_FLOAT_INSTANCES(INSTANCE, ExpOp)        \
  PIPESHARD_FLOAT_INSTANCES(INSTANCE, LogOp)        \
  PIPESHARD_FLOAT_INSTANCES(INSTANCE, ReciprocalOp) \
  PIPESHARD_FLOAT_INSTANCES(INSTANCE, ErfOp)        \
  PIPESHARD_FLOAT_INSTANCES(INSTANCE, TanhOp)       \
  PIPESHARD_FLOAT_INSTANCES(INSTANCE, SigmoidOp)    \
  PIPESHARD_FLOAT_INSTANCES(INSTANCE, SoftplusOp)   \
  PIPESHARD_FLOAT_INSTANCES(INSTANCE, MishOp)       \
  PIPESHARD_FLOAT_INSTANCES(INSTANCE, SinOp)        \
  PIPESHARD_FLOAT_INSTANCES(INSTANCE, CosOp)        \
  PIPESHARD_FLOAT_INSTANCES(INSTANCE, TanOp)        \
  PIPESHARD_FLOAT_INSTANCES(INSTANCE, AsinOp)       \
  PIPESHARD_FLOAT_INSTANCES(INSTANCE, AcosOp)       \
  PIPESHARD_FLOAT_INSTANCES(INSTANCE, AtanOp)       \
  PIPESHARD_FLOAT_INSTANCES(INSTANCE, SinhOp)       \
  PIPESHARD_FLOAT_INSTANCES(INSTANCE, CoshOp)       \
  PIPESHARD_FLOAT_INSTANCES(INSTANCE, AsinhOp)      \
  PIPESHARD_FLOAT_INSTANCES(INSTANCE, AcoshOp)      \
  PIPESHARD_FLOAT_INSTANCES(INSTANCE, AtanhOp)      \
  PIPESHARD_FLOAT_INSTANCES(INSTANCE, FloorOp)      \
  PIPESHARD_FLOAT_INSTANCES(INSTANCE, CeilOp)       \
  PIPESHARD_FLOAT_INSTANCES(INSTANCE, RoundOp)      \
  PIPESHARD_FLOAT_INSTANCES(INSTANCE, LeakyReluOp)  \
  PIPESHARD_FLOAT_INSTANCES(INSTANCE, EluOp)        \
  PIPESHARD_FLOAT_INSTANCES(INSTANCE, GeluErfOp)    \
  PIPESHARD_FLOAT_INSTANCES(INSTANCE, GeluTanhOp)   \
  PIPESHARD_FLOAT_INSTANCES(INSTANCE, SwishOp)      \
  PIPESHARD_FLOAT_INSTANCES(INSTANCE, DivideOp)     \
  INSTANCE(NotOp, uint8_t, bool)                    \
  INSTANCE(IsNaNOp, float, bool)                    \
  INSTANCE(IsNaNOp, double, bool)                   \
  INSTANCE(IsInfOp, float, bool)                    \
  INSTANCE(IsInfOp, double, bool)                   \
  INSTANCE(InvertOp, uint8_t, uint8_t)              \
  INSTANCE(InvertOp, uint16_t, uint16_t)            \
  INSTANCE(InvertOp, uint32_t, uint32_t)            \
  INSTANCE(InvertOp, uint64_t, uint64_t)

}  // namespace pipeshard::kernels
