// Gradients of activations: dx from dy and the activation's input (for Relu its output), for every device.
#pragma once

#include <cmath>
#include <cstdint>

#include "runtime/kernels/base/vector_math.h"

namespace pipeshard {
class DeviceQueue;
}

namespace pipeshard::kernels {

struct ReluGrad {
  template <typename T>
  PIPESHARD_INLINE static T apply(T dy, T y) {
    return y > T(0) ? dy : T(0);
  }
};

struct GeluErfGrad {
  template <typename T>
  PIPESHARD_INLINE static T apply(T dy, T x) {
    const T cumulative = T(0.5) * (T(1) + fastErf(x * T(M_SQRT1_2)));
    const T density = T(0.5 * M_2_SQRTPI * M_SQRT1_2) * fastExp(T(-0.5) * x * x);
    return dy * (cumulative + x * density);
  }
};

struct GeluTanhGrad {
  template <typename T>
  PIPESHARD_INLINE static T apply(T dy, T x) {
    const T k = T(M_2_SQRTPI * M_SQRT1_2);
    const T t = fastTanh(k * (x + T(0.044715) * x * x * x));
    const T slope = k * (T(1) + T(3 * 0.044715) * x * x);
    return dy * T(0.5) * ((T(1) + t) + x * (T(1) - t * t) * slope);
  }
};

// With t = n / d as in the Mish kernel, 1 - t^2 is 4 (n + 1) / d^2 = 4 (1 + e^x)^2 / d^2, and times
// sigmoid(x) it is 4 e^x (1 + e^x) / d^2. Where x > 0, with e = e^-x and d divided by e^2x, that is 4 e^2 (1
// + e) / d^2.
struct MishGrad {
  template <typename T>
  PIPESHARD_INLINE static T apply(T dy, T x) {
    const T e = fastExp(-std::abs(x));
    const T n = x < T(0) ? e * (e + T(2)) : T(1) + T(2) * e;
    const T d = n + (x < T(0) ? T(2) : T(2) * e * e);
    const T slope = T(4) * e * (T(1) + e) / d / d;
    return dy * (n / d + x * (x < T(0) ? slope : slope * e));
  }
};

// dx = Op::apply(dy, x); `dx` may be `dy` or `x`.
template <typename Op, typename T>
void applyActivationGrad(DeviceQueue* queue, int64_t count, const T* dy, const T* x, T* dx);

// INSTANCE(Op, T) for all that there are.
#define PIPESHARD_ACTIVATION_GRAD_INSTANCES(INSTANCE)                                        \
  INSTANCE(ReluGrad, float)                                                                  \
  INSTANCE(ReluGrad, double)                                                                 \
  INSTANCE(GeluErfGrad, float)                                                               \
  INSTANCE(GeluErfGrad, double) INSTANCE(GeluTanhGrad, float) INSTANCE(GeluTanhGrad, double) \
      INSTANCE(MishGrad, float) INSTANCE(MishGrad, double)

}  // namespace pipeshard::kernels
