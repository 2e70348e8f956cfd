#include "runtime/kernels/reductions/softmax.h"

#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/support.h"

namespace pipeshard::kernels {
namespace {

// Before opset 13 the tensor was seen as a matrix, cut before `axis` (default 1); now one axis is normalised
// (default -1).
AxisSplit softmaxSplit(const KernelSpec& spec) {
  const Shape& shape = spec.inputs[0].shape;
  if (shape.empty()) return {};
  const bool matrix = spec.node->domain.empty() && spec.node->opset_version < 13;
  const size_t axis = axisAttribute(spec, matrix ? 1 : -1);
  AxisSplit split = splitAtAxis(shape, axis);
  if (matrix) split = {.outer = split.outer, .size = split.size * split.inner, .inner = 1};
  return split;
}

std::unique_ptr<Kernel> makeSoftmax(const KernelSpec& spec, bool log) {
  checkArity(spec, 1, 1);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  checkOutputShape(spec, 0, spec.inputs[0].shape);
  const AxisSplit split = softmaxSplit(spec);
  return withType<float, double>(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel(
        [split, log](const KernelArguments& arguments) {
          (log ? logSoftmax<T> : softmax<T>)(arguments.queue, split, input<T>(arguments, 0),
                                             output<T>(arguments, 0));
        },
        inPlaceTraits(spec, {0}));
  });
}

std::unique_ptr<Kernel> makeSoftmaxGrad(const KernelSpec& spec, bool log) {
  checkArity(spec, 2, 2);
  checkInputType(spec, 1, spec.inputs[0].data_type);
  checkInputShape(spec, 1, spec.inputs[0].shape);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  checkOutputShape(spec, 0, spec.inputs[0].shape);
  const AxisSplit split = softmaxSplit(spec);
  return withType<float, double>(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel(
        [split, log](const KernelArguments& arguments) {
          (log ? logSoftmaxGrad<T> : softmaxGrad<T>)(arguments.queue, split, input<T>(arguments, 0),
                                                     input<T>(arguments, 1), output<T>(arguments, 0));
        },
        inPlaceTraits(spec, {0, 1}));
  });
}

}  // namespace

void addSoftmaxKernels(KernelRegistry& registry) {
  const std::string ours(kPipeshardDomain);
  registry.add("", "Softmax", [](const KernelSpec& spec) { return makeSoftmax(spec, false); });
  registry.add("", "LogSoftmax", [](const KernelSpec& spec) { return makeSoftmax(spec, true); });
  registry.add(ours, "SoftmaxGrad", [](const KernelSpec& spec) { return makeSoftmaxGrad(spec, false); });
  registry.add(ours, "LogSoftmaxGrad", [](const KernelSpec& spec) { return makeSoftmaxGrad(spec, true); });
}

}  // namespace pipeshard::kernels
