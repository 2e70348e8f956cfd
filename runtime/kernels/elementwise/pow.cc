#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/support.h"
#include "runtime/kernels/elementwise/binary.h"

namespace pipeshard::kernels {
namespace {

template <typename T, typename U>
std::unique_ptr<Kernel> makePow(const KernelSpec& spec) {
  [[maybe_unused]] const Constant* exponent = spec.inputs[1].constant;
  if constexpr (std::is_floating_point_v<T>) {
    const bool known = exponent != nullptr && elementCount(exponent->shape) == 1;
    const double value = known ? numericElements(*exponent)[0] : 0;
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
