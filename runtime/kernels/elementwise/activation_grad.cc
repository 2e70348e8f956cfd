#include "runtime/kernels/elementwise/activation_grad.h"
#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/support.h"
#include "runtime/kernels/elementwise/gelu_factors.h"

namespace pipeshard::kernels {
namespace {

template <typename Op>
std::unique_ptr<Kernel> activationGrad(const KernelSpec& spec, const UnaryParameters& parameters) {
  checkArity(spec, 2, 2);
  checkInputType(spec, 1, spec.inputs[0].data_type);
  checkInputShape(spec, 1, spec.inputs[0].shape);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  checkOutputShape(spec, 0, spec.inputs[0].shape);
  const int64_t count = elementCount(spec.inputs[0].shape);
  return withType<float, double>(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel(
        [count, parameters](const KernelArguments& arguments) {
          applyActivationGrad<Op, T>(arguments.queue, count, parameters, input<T>(arguments, 0),
                                     input<T>(arguments, 1), output<T>(arguments, 0));
        },
        inPlaceTraits(spec, {0, 1}));
  });
}

template <typename Op>
std::unique_ptr<Kernel> withoutParameters(const KernelSpec& spec) {
  return activationGrad<Op>(spec, {});
}

std::unique_ptr<Kernel> swishGrad(const KernelSpec& spec) {
  return activationGrad<SwishGrad>(spec, {.alpha = spec.node->floatAttribute("alpha", 1)});
}

std::unique_ptr<Kernel> geluGrad(const KernelSpec& spec) {
  const std::string approximate = spec.node->stringAttribute("approximate", "none");
  if (approximate == "none") return activationGrad<GeluErfGrad>(spec, geluFactors(*spec.node));
  if (approximate == "tanh") return activationGrad<GeluTanhGrad>(spec, geluFactors(*spec.node));
  refuse(spec, "attribute approximate is '{}'; the kernel supports 'none' and 'tanh'", approximate);
}

}  // namespace

void addActivationGradKernels(KernelRegistry& registry) {
  const std::string ours(kPipeshardDomain);
  registry.add(ours, "ReluGrad", withoutParameters<ReluGrad>);
  registry.add(ours, "GeluGrad", geluGrad);
  registry.add(ours, "MishGrad", withoutParameters<MishGrad>);
  registry.add(ours, "SwishGrad", swishGrad);
}

}  // namespace pipeshard::kernels
