#include <cmath>

#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/parallel.h"
#include "runtime/kernels/base/support.h"
#include "runtime/kernels/base/vector_math.h"

namespace pipeshard::kernels {
namespace {

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

template <typename Op, typename T>
struct GradLoop {
  PIPESHARD_INLINE static void run(const T* dy, const T* x, T* dx, int64_t count) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) dx[i] = Op::apply(dy[i], x[i]);
  }
};

template <typename Op>
std::unique_ptr<Kernel> activationGrad(const KernelSpec& spec) {
  checkArity(spec, 2, 2);
  checkInputType(spec, 1, spec.inputs[0].data_type);
  checkInputShape(spec, 1, spec.inputs[0].shape);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  checkOutputShape(spec, 0, spec.inputs[0].shape);
  const int64_t count = elementCount(spec.inputs[0].shape);
  return withType<float, double>(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel(
        [count](const KernelArguments& arguments) {
          forBlocks(count, kBlockElements, [&](int64_t begin, int64_t end) {
            runVectorised<GradLoop<Op, T>>(input<T>(arguments, 0) + begin, input<T>(arguments, 1) + begin,
                                           output<T>(arguments, 0) + begin, end - begin);
          });
        },
        inPlaceTraits(spec, {0, 1}));
  });
}

std::unique_ptr<Kernel> geluGrad(const KernelSpec& spec) {
  const std::string approximate = spec.node->stringAttribute("approximate", "none");
  if (approximate == "none") return activationGrad<GeluErfGrad>(spec);
  if (approximate == "tanh") return activationGrad<GeluTanhGrad>(spec);
  refuse(spec, "attribute approximate is '{}'; the CPU kernel supports 'none' and 'tanh'", approximate);
}

}  // namespace

void addActivationGradKernels(KernelRegistry& registry) {
  const std::string ours(kPipeshardDomain);
  registry.add(ours, "ReluGrad", activationGrad<ReluGrad>);
  registry.add(ours, "GeluGrad", geluGrad);
  registry.add(ours, "MishGrad", activationGrad<MishGrad>);
}

}  // namespace pipeshard::kernels
