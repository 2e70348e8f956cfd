#include <cmath>

#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/support.h"
#include "runtime/kernels/elementwise/binary_loop.h"

namespace pipeshard::kernels {
namespace {

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

template <typename T, typename U>
std::unique_ptr<Kernel> makePow(const KernelSpec& spec) {
  const Constant* exponent = spec.inputs[1].constant;
  if (std::is_floating_point_v<T> && exponent != nullptr && elementCount(exponent->shape) == 1) {
    const double value = numericElements(*exponent)[0];
    if (value == 2) return makeBinary<SquareOp, T, T, U>(spec);
    if (value == 3) return makeBinary<CubeOp, T, T, U>(spec);
    if (value == 0.5) return makeBinary<RootOp, T, T, U>(spec);
  }
  return makeBinary<PowOp, T, T, U>(spec);
}

std::unique_ptr<Kernel> pow(const KernelSpec& spec) {
  checkArity(spec, 2, 2);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  return withType<float, double, int32_t, int64_t>(spec, spec.inputs[0].data_type, "input 0", [&](auto base) {
    return withType<float, double, int32_t, int64_t>(
        spec, spec.inputs[1].data_type, "input 1",
        [&](auto exponent) { return makePow<decltype(base), decltype(exponent)>(spec); });
  });
}

}  // namespace

void addPowKernels(KernelRegistry& registry) { registry.add("", "Pow", pow); }

}  // namespace pipeshard::kernels
