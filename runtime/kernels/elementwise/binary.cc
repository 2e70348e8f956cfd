#include <cmath>
#include <type_traits>

#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/support.h"
#include "runtime/kernels/elementwise/binary_loop.h"

namespace pipeshard::kernels {
namespace {

// Integer arithmetic wraps around, as numpy's does.
template <typename T>
using Wrapping = std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>;
template <typename T>
using WrappingT = typename Wrapping<T>::type;

struct AddOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T a, T b) {
    return T(WrappingT<T>(a) + WrappingT<T>(b));
  }
};
struct SubOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T a, T b) {
    return T(WrappingT<T>(a) - WrappingT<T>(b));
  }
};
struct MulOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T a, T b) {
    return T(WrappingT<T>(a) * WrappingT<T>(b));
  }
};
struct DivOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      if (b == 0) return 0;  // refused before the loop
      if (b == T(-1)) return SubOp::apply(T(0), a);
    }
    return a / b;
  }
};
struct MaxOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T a, T b) {
    return a != a ? a : (a < b || b != b ? b : a);
  }
};
struct MinOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T a, T b) {
    return a != a ? a : (b < a || b != b ? b : a);
  }
};
struct FmodOp {  // the sign of the dividend
  template <typename T>
  PIPESHARD_INLINE static T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>)
      return b == 0 || b == T(-1) ? T(0) : T(a % b);
    else
      return std::fmod(a, b);
  }
};
struct ModOp {  // the sign of the divisor
  template <typename T>
  PIPESHARD_INLINE static T apply(T a, T b) {
    const T rest = FmodOp::apply(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? T(rest + b) : rest;
  }
};
struct AndOp {
  PIPESHARD_INLINE static bool apply(uint8_t a, uint8_t b) { return a != 0 && b != 0; }
};
struct OrOp {
  PIPESHARD_INLINE static bool apply(uint8_t a, uint8_t b) { return a != 0 || b != 0; }
};
struct XorOp {
  PIPESHARD_INLINE static bool apply(uint8_t a, uint8_t b) { return (a != 0) != (b != 0); }
};

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
    return makeKernel(
        [divide, count, name = describeNode(*spec.node)](const KernelArguments& arguments) {
          const T* divisor = input<T>(arguments, 1);
          for (int64_t i = 0; i < count; ++i) {
            if (divisor[i] == 0)
              fail(ErrorCode::kBadModel, "{}: integer division by zero (divisor element {})", name, i);
          }
          divide->run(arguments);
        },
        inPlaceTraits(spec, {0, 1}));
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

struct TakeSecondOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T, T b) {
    return b;
  }
};
struct ScaleOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T a, T b) {
    return a / b;
  }
};

// y = x0 (broadcast); y = op(y, x_k) for the others; y = y / n for Mean.
template <typename Op, typename T>
std::unique_ptr<Kernel> makeVariadic(const KernelSpec& spec, bool mean) {
  if (spec.inputs.size() == 2 && !mean) return makeBinary<Op, T, T>(spec);
  const Shape& shape = spec.outputs[0].shape;
  std::vector<Broadcast> plans;
  for (const TensorSpec& operand : spec.inputs) plans.push_back(makeBroadcast(shape, {shape, operand.shape}));
  const Broadcast scale = makeBroadcast(shape, {shape, Shape{}});
  return makeKernel([plans, scale, mean](const KernelArguments& arguments) {
    T* y = output<T>(arguments, 0);
    runBinary<TakeSecondOp, T, T>(plans[0], y, input<T>(arguments, 0), y);
    for (size_t i = 1; i < plans.size(); ++i) runBinary<Op, T, T>(plans[i], y, input<T>(arguments, i), y);
    const T number = static_cast<T>(plans.size());
    if (mean) runBinary<ScaleOp, T, T>(scale, y, &number, y);
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
