#include "runtime/kernels/elementwise/activation_grad.h"
#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/support.h"

namespace pipeshard::kernels {
namespace {

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
          applyActivationGrad<Op, T>(arguments.queue, count, input<T>(arguments, 0), input<T>(arguments, 1),
                                     output<T>(arguments, 0));
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
