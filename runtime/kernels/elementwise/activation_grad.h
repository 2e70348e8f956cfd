// Gradients of activations: dx from dy and the activation's input (for Relu its output), for every device.
#pragma once

#include <cmath>
#include <cstdint>

#include "runtime/kernels/base/vector_math.h"
#include "runtime/kernels/elementwise/unary_functors.h"

namespace pipeshard {
class DeviceQueue;
}

namespace pipeshard::kernels {

struct ReluGrad {
  template <typename T>
  PIPESHARD_INLINE static T apply(T dy, T y, const UnaryParameters&) {
    return y > T(0) ? dy : T(0);
  }
};

// alpha and beta as in GeluErfOp and GeluTanhOp.
struct GeluErfGrad {
  template <typename T>
  PIPESHARD_INLINE static T apply(T dy, T x, const UnaryParameters& p) {
    const T u = T(p.alpha) * x;
    const T cumulative = T(0.5) * (T(1) + fastErf(u));
    const T density = T(0.5 * M_2_SQRTPI * p.alpha) * fastExp(-u * u);
    return dy * (cumulative + x * density);
  }
};

struct GeluTanhGrad {
  template <typename T>
  PIPESHARD_INLINE static T apply(T dy, T x, const UnaryParameters& p) {
    const T k = T(p.alpha);
    const T t = fastTanh(k * (x + T(p.beta) * x * x * x));
    const T slope = k * (T(1) + T(3 * p.beta) * x * x);
    return dy * T(0.5) * ((T(1) + t) + x * (T(1) - t * t) * slope);
  }
};

// With t = n / d as in the Mish kernel, 1 - t^2 is 4 (n + 1) / d^2 = 4 (1 + e^x)^2 / d^2, and times
// sigmoid(x) it is 4 e^x (1 + e^x) / d^2. Where x > 0, with e = e^-x and d divided by e^2x, that is 4 e^2 (1
// + e) / d^2.
struct MishGrad {
  template <typename T>
  PIPESHARD_INLINE static T apply(T dy, T x, const UnaryParameters&) {
    const T e = fastExp(-std::abs(x));
    const T n = x < T(0) ? e * (e + T(2)) : T(1) + T(2) * e;
    const T scale = x < T(0) ? T(1) : e;
    const T d = n + T(2) * (scale * scale);
    const T slope = T(4) * e * (T(1) + e) / d / d;
    return dy * (n / d + x * (x < T(0) ? slope : slope * e));
  }
};

// x sigmoid(alpha x).
struct SwishGrad {
  template <typename T>
  PIPESHARD_INLINE static T apply(T dy, T x, const UnaryParameters& p) {
    const T u = T(p.alpha) * x;
    const T s = fastSigmoid(u);
    return dy * s * (T(1) + u * (T(1) - s));
  }
};

// dx = Op::apply(dy, x, parameters); `dx` may be `dy` or `x`.
template <typename Op, typename T>
void applyActivationGrad(DeviceQueue* queue, int64_t count, const UnaryParameters& parameters, const T* dy,
                         const T* x, T* dx);

// INSTANCE(Op, T) for all that there are.
#define PIPESHARD_ACTIVATION_GRAD_INSTANCES(INSTANCE) \
  INSTANCE(ReluGrad, float)                           \
  INSTANCE(ReluGrad, double)                          \
  INSTANCE(GeluErfGrad, float)                        \
  INSTANCE(GeluErfGrad, double)                       \
  INSTANCE(GeluTanhGrad, float)                       \
  INSTANCE(GeluTanhGrad, double)                      \
  INSTANCE(MishGrad, float)                           \
  INSTANCE(MishGrad, double)                          \
  INSTANCE(SwishGrad, float)                          \
  INSTANCE(SwishGrad, double)

}  // namespace pipeshard::kernels
