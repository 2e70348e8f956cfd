#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/support.h"
#include "runtime/kernels/elementwise/binary.h"

namespace pipeshard::kernels {
namespace {

template <typename Op>
std::unique_ptr<Kernel> comparison(const KernelSpec& spec) {
  checkArity(spec, 2, 2);
  checkInputType(spec, 1, spec.inputs[0].data_type);
  checkOutputType(spec, 0, DataType::kBool);
  return withType<float, double, int32_t, int64_t, int8_t, uint8_t>(
      spec, spec.inputs[0].data_type, "input 0",
      [&](auto zero) { return makeBinary<Op, decltype(zero), bool>(spec); });
}

std::unique_ptr<Kernel> equal(const KernelSpec& spec) {
  if (!hasInput(spec, 0) || spec.inputs[0].data_type != DataType::kBool) return comparison<EqualOp>(spec);
  checkArity(spec, 2, 2);
  checkInputType(spec, 1, DataType::kBool);
  checkOutputType(spec, 0, DataType::kBool);
  return makeBinary<EqualBoolOp, uint8_t, bool>(spec);
}

std::unique_ptr<Kernel> where(const KernelSpec& spec) {
  checkArity(spec, 3, 3);
  checkInputType(spec, 0, DataType::kBool);
  checkInputType(spec, 2, spec.inputs[1].data_type);
  checkOutputType(spec, 0, spec.inputs[1].data_type);
  const Shape shape =
      broadcastShapes(broadcastShapes(spec.inputs[0].shape, spec.inputs[1].shape), spec.inputs[2].shape);
  checkOutputShape(spec, 0, shape);
  const Broadcast plan =
      makeBroadcast(shape, {spec.inputs[0].shape, spec.inputs[1].shape, spec.inputs[2].shape});
  return withElementSize(spec, spec.inputs[1].data_type, "input 1", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel(
        [plan](const KernelArguments& arguments) {
          applyWhere<T>(arguments.queue, plan, input<uint8_t>(arguments, 0), input<T>(arguments, 1),
                        input<T>(arguments, 2), output<T>(arguments, 0));
        },
        inPlaceTraits(spec, {1, 2}));
  });
}

}  // namespace

void addComparisonKernels(KernelRegistry& registry) {
  registry.add("", "Equal", equal);
  registry.add("", "Less", comparison<LessOp>);
  registry.add("", "LessOrEqual", comparison<LessOrEqualOp>);
  registry.add("", "Greater", comparison<GreaterOp>);
  registry.add("", "GreaterOrEqual", comparison<GreaterOrEqualOp>);
  registry.add("", "Where", where);
}

}  // namespace pipeshard::kernels
