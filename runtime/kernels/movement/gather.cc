#include "runtime/kernels/movement/gather.h"
#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/indices.h"

namespace pipeshard::kernels {
namespace {

std::unique_ptr<Kernel> gather(const KernelSpec& spec) {
  checkArity(spec, 2, 2);
  const Shape& data = spec.inputs[0].shape;
  const Shape& indices = spec.inputs[1].shape;
  const size_t axis = axisAttribute(spec, 0);
  Shape expected(data.begin(), data.begin() + axis);
  expected.insert(expected.end(), indices.begin(), indices.end());
  expected.insert(expected.end(), data.begin() + axis + 1, data.end());
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  checkOutputShape(spec, 0, expected);
  const AxisSplit split = splitAtAxis(data, axis);
  const int64_t count = elementCount(indices);
  const auto throw_fault = aboutIndices(describeNode(*spec.node), split.size);
  return withElementSize(spec, spec.inputs[0].data_type, "input 0", [&](auto element) {
    using T = decltype(element);
    return withType<int32_t, int64_t>(spec, spec.inputs[1].data_type, "input 1", [&](auto index) {
      using I = decltype(index);
      return makeKernel(
          [split, count, throw_fault](const KernelArguments& arguments) {
            checkIndices(arguments, throw_fault, input<I>(arguments, 1), count, split.size);
            gatherRows<T, I>(arguments.queue, split, count, input<T>(arguments, 0), input<I>(arguments, 1),
                             output<T>(arguments, 0));
          },
          {.in_place = {}, .throw_fault = throw_fault});
    });
  });
}

std::unique_ptr<Kernel> gatherGrad(const KernelSpec& spec) {
  checkArity(spec, 3, 3);
  const Shape data = constantIntegers(spec, 2, "Shape");
  const size_t axis = checkedAxis(spec, spec.node->intAttribute("axis", 0), data.size());
  const Shape& indices = spec.inputs[1].shape;
  Shape expected(data.begin(), data.begin() + axis);
  expected.insert(expected.end(), indices.begin(), indices.end());
  expected.insert(expected.end(), data.begin() + axis + 1, data.end());
  checkInputShape(spec, 0, expected);
  checkOutputShape(spec, 0, data);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  const AxisSplit split = splitAtAxis(data, axis);
  const int64_t count = elementCount(indices);
  const auto throw_fault = aboutIndices(describeNode(*spec.node), split.size);
  return withType<float, double>(spec, spec.inputs[0].data_type, "input 0", [&](auto element) {
    using T = decltype(element);
    return withType<int32_t, int64_t>(spec, spec.inputs[1].data_type, "input 1", [&](auto index) {
      using I = decltype(index);
      return makeKernel(
          [split, count, throw_fault](const KernelArguments& arguments) {
            checkIndices(arguments, throw_fault, input<I>(arguments, 1), count, split.size);
            gatherGradRows<T, I>(arguments.queue, split, count, input<T>(arguments, 0),
                                 input<I>(arguments, 1), static_cast<Mention*>(arguments.workspace),
                                 accumulates(arguments), output<T>(arguments, 0));
          },
          {.in_place = {},
           .workspace_bytes = count * sizeof(Mention),
           .accumulates = true,
           .throw_fault = throw_fault});
    });
  });
}

}  // namespace

void addGatherKernels(KernelRegistry& registry) {
  registry.add("", "Gather", gather);
  registry.add(std::string(kPipeshardDomain), "GatherGrad", gatherGrad);
}

}  // namespace pipeshard::kernels
