#include "runtime/kernels/reductions/scan.h"

#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/support.h"

namespace pipeshard::kernels {
namespace {

std::unique_ptr<Kernel> argExtreme(const KernelSpec& spec, bool greatest) {
  checkArity(spec, 1, 1);
  const Shape& shape = spec.inputs[0].shape;
  const size_t axis = axisAttribute(spec, 0);
  Shape expected = shape;
  if (spec.node->intAttribute("keepdims", 1) != 0)
    expected[axis] = 1;
  else
    expected.erase(expected.begin() + axis);
  checkOutputShape(spec, 0, expected);
  checkOutputType(spec, 0, DataType::kInt64);
  if (shape[axis] == 0) refuse(spec, "axis {} has no elements", axis);
  const AxisSplit split = splitAtAxis(shape, axis);
  const bool take_last = spec.node->intAttribute("select_last_index", 0) != 0;
  return withType<float, double, int32_t, int64_t, int8_t, uint8_t>(
      spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
        using T = decltype(zero);
        return makeKernel([=](const KernelArguments& arguments) {
          findExtremes(arguments.queue, split, {greatest, take_last}, input<T>(arguments, 0),
                       output<int64_t>(arguments, 0));
        });
      });
}

// Sorted even where the model does not ask for it: so results do not depend on who computes them.
std::unique_ptr<Kernel> topK(const KernelSpec& spec) {
  checkArity(spec, 1, 2);
  const Shape& shape = spec.inputs[0].shape;
  const size_t axis = axisAttribute(spec, -1);
  const int64_t k = hasInput(spec, 1) ? static_cast<int64_t>(constantNumber(spec, 1, "K"))
                                      : spec.node->intAttribute("k", -1);
  if (k < 0 || k > shape[axis]) refuse(spec, "K is {}; axis {} has {} elements", k, axis, shape[axis]);
  Shape expected = shape;
  expected[axis] = k;
  for (size_t o : {0, 1}) checkOutputShape(spec, o, expected);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  checkOutputType(spec, 1, DataType::kInt64);
  if (!hasOutput(spec, 1)) refuse(spec, "output 1 is missing");
  const AxisSplit split = splitAtAxis(shape, axis);
  const bool greatest = spec.node->intAttribute("largest", 1) != 0;
  return withType<float, double, int32_t, int64_t>(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel([=](const KernelArguments& arguments) {
      findTop(arguments.queue, split, k, greatest, input<T>(arguments, 0), output<T>(arguments, 0),
              output<int64_t>(arguments, 1));
    });
  });
}

std::unique_ptr<Kernel> cumulativeSum(const KernelSpec& spec) {
  checkArity(spec, 2, 2);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  checkOutputShape(spec, 0, spec.inputs[0].shape);
  const int64_t axis = constantNumber(spec, 1, "axis");
  const AxisSplit split =
      splitAtAxis(spec.inputs[0].shape, checkedAxis(spec, axis, spec.inputs[0].shape.size()));
  const bool exclusive = spec.node->intAttribute("exclusive", 0) != 0;
  const bool reverse = spec.node->intAttribute("reverse", 0) != 0;
  return withType<float, double, int32_t, int64_t>(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel(
        [=](const KernelArguments& arguments) {
          sumAlong(arguments.queue, split, exclusive, reverse, input<T>(arguments, 0),
                   output<T>(arguments, 0));
        },
        inPlaceTraits(spec, {0}));
  });
}

}  // namespace

void addScanKernels(KernelRegistry& registry) {
  registry.add("", "ArgMax", [](const KernelSpec& spec) { return argExtreme(spec, true); });
  registry.add("", "ArgMin", [](const KernelSpec& spec) { return argExtreme(spec, false); });
  registry.add("", "CumSum", cumulativeSum);
  registry.add("", "TopK", topK);
}

}  // namespace pipeshard::kernels
