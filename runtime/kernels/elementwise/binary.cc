#include "runtime/kernels/elementwise/binary.h"

#include <type_traits>

#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/support.h"
#include "runtime/kernels/elementwise/unary_functors.h"

namespace pipeshard::kernels {
namespace {

template <typename Op, typename... Ts>
std::unique_ptr<Kernel> arithmetic(const KernelSpec& spec) {
  checkArity(spec, 2, 2);
  checkInputType(spec, 1, spec.inputs[0].data_type);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  return withType<Ts...>(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    return makeBinary<Op, T, T>(spec);
  });
}

// Integer division traps on a zero divisor: looked for before the loop.
template <typename Op, typename T>
std::unique_ptr<Kernel> makeCheckedDivision(const KernelSpec& spec) {
  if constexpr (std::is_floating_point_v<T>) {
    return makeBinary<Op, T, T>(spec);
  } else {
    std::shared_ptr<Kernel> divide = makeBinary<Op, T, T>(spec);
    const int64_t count = elementCount(spec.inputs[1].shape);
    KernelTraits traits = inPlaceTraits(spec, {0, 1});
    traits.throw_fault = [name = describeNode(*spec.node)](const DataFault& fault) {
      fail(ErrorCode::kBadModel, "{}: integer division by zero (divisor element {})", name, fault.position);
    };
    return makeKernel(
        [divide, count, throw_fault = traits.throw_fault](const KernelArguments& arguments) {
          checkData(arguments, throw_fault, [&](DataFault* fault) {
            findZero(arguments.queue, count, input<T>(arguments, 1), fault);
          });
          divide->run(arguments);
        },
        traits);
  }
}

template <typename Op, typename... Ts>
std::unique_ptr<Kernel> division(const KernelSpec& spec) {
  checkArity(spec, 2, 2);
  checkInputType(spec, 1, spec.inputs[0].data_type);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  return withType<Ts...>(spec, spec.inputs[0].data_type, "input 0",
                         [&](auto zero) { return makeCheckedDivision<Op, decltype(zero)>(spec); });
}

std::unique_ptr<Kernel> makeMod(const KernelSpec& spec) {
  if (spec.node->intAttribute("fmod", 0) != 0)
    return division<FmodOp, float, double, int32_t, int64_t, int8_t, uint8_t>(spec);
  return division<ModOp, int32_t, int64_t, int8_t, uint8_t>(spec);
}

template <typename Op>
std::unique_ptr<Kernel> logical(const KernelSpec& spec) {
  checkArity(spec, 2, 2);
  checkInputType(spec, 0, DataType::kBool);
  checkInputType(spec, 1, DataType::kBool);
  checkOutputType(spec, 0, DataType::kBool);
  return makeBinary<Op, uint8_t, bool>(spec);
}

// y = x0 (broadcast); y = op(y, x_k) for the others; y = y / n for Mean.
template <typename Op, typename T>
std::unique_ptr<Kernel> makeVariadic(const KernelSpec& spec, bool mean) {
  if (spec.inputs.size() == 2 && !mean) return makeBinary<Op, T, T>(spec);
  const Shape& shape = spec.outputs[0].shape;
  std::vector<Broadcast> plans;
  for (const TensorSpec& operand : spec.inputs) plans.push_back(makeBroadcast(shape, {shape, operand.shape}));
  const int64_t count = elementCount(shape);
  return makeKernel([plans, count, mean](const KernelArguments& arguments) {
    T* y = output<T>(arguments, 0);
    applyBinary<TakeSecondOp, T, T>(arguments.queue, plans[0], y, input<T>(arguments, 0), y);
    for (size_t i = 1; i < plans.size(); ++i)
      applyBinary<Op, T, T>(arguments.queue, plans[i], y, input<T>(arguments, i), y);
    if constexpr (std::is_floating_point_v<T>) {
      if (mean)
        applyUnary<DivideOp, T, T>(arguments.queue, {.alpha = static_cast<double>(plans.size())}, count, y,
                                   y);
    }
  });
}

template <typename Op, typename... Ts>
std::unique_ptr<Kernel> variadic(const KernelSpec& spec, bool mean = false) {
  checkArity(spec, 1, spec.inputs.size());
  Shape shape = spec.inputs[0].shape;
  for (size_t i = 0; i < spec.inputs.size(); ++i) {
    if (!hasInput(spec, i)) refuse(spec, "input {} is missing", i);
    checkInputType(spec, i, spec.inputs[0].data_type);
    shape = broadcastShapes(shape, spec.inputs[i].shape);
  }
  checkOutputShape(spec, 0, shape);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  return withType<Ts...>(spec, spec.inputs[0].data_type, "input 0",
                         [&](auto zero) { return makeVariadic<Op, decltype(zero)>(spec, mean); });
}

}  // namespace

void addBinaryKernels(KernelRegistry& registry) {
  registry.add("", "Add", arithmetic<AddOp, float, double, int32_t, int64_t, int8_t, uint8_t>);
  registry.add("", "Sub", arithmetic<SubOp, float, double, int32_t, int64_t, int8_t, uint8_t>);
  registry.add("", "Mul", arithmetic<MulOp, float, double, int32_t, int64_t, int8_t, uint8_t>);
  registry.add("", "Div", division<DivOp, float, double, int32_t, int64_t, int8_t, uint8_t>);
  registry.add("", "Mod", makeMod);
  registry.add("", "And", logical<AndOp>);
  registry.add("", "Or", logical<OrOp>);
  registry.add("", "Xor", logical<XorOp>);
  registry.add("", "Max", [](const KernelSpec& spec) {
    return variadic<MaxOp, float, double, int32_t, int64_t, int8_t, uint8_t>(spec);
  });
  registry.add("", "Min", [](const KernelSpec& spec) {
    return variadic<MinOp, float, double, int32_t, int64_t, int8_t, uint8_t>(spec);
  });
  registry.add("", "Sum", [](const KernelSpec& spec) { return variadic<AddOp, float, double>(spec); });
  registry.add("", "Mean", [](const KernelSpec& spec) { return variadic<AddOp, float, double>(spec, true); });
}

}  // namespace pipeshard::kernels
