// Operators with one input, element by element. An operator is a struct with apply(x, parameters), inlined
// into one vectorised loop (UnaryLoop); makeUnary makes the kernel, which shares blocks of elements out among
// threads and may run in place. Parameters are read from attributes once, when the kernel is made: alpha and
// beta mean what the operator says (LeakyRelu's alpha; IsInf's two signs).
#include <cmath>
#include <limits>

#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/parallel.h"
#include "runtime/kernels/base/support.h"
#include "runtime/kernels/base/vector_math.h"

namespace pipeshard::kernels {
namespace {

// Parameters of an operator, as read from its attributes.
struct Parameters {
  double alpha = 0;
  double beta = 0;
  bool flag = false;
};

struct AbsOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const Parameters&) {
    return x < T(0) ? T(-x) : (x == T(0) ? T(0) : x);
  }
};
struct NegOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const Parameters&) {
    if constexpr (std::is_integral_v<T>)
      return T(std::make_unsigned_t<T>(0) - std::make_unsigned_t<T>(x));
    else
      return -x;
  }
};
struct SqrtOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const Parameters&) {
    return std::sqrt(x);
  }
};
struct ExpOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const Parameters&) {
    return fastExp(x);
  }
};
struct LogOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const Parameters&) {
    return std::log(x);
  }
};
struct ReciprocalOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const Parameters&) {
    return T(1) / x;
  }
};
struct ErfOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const Parameters&) {
    return fastErf(x);
  }
};
struct TanhOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const Parameters&) {
    return fastTanh(x);
  }
};
struct SigmoidOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const Parameters&) {
    return fastSigmoid(x);
  }
};
struct ReluOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const Parameters&) {
    return x < T(0) ? T(0) : x;
  }
};
struct GeluErfOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const Parameters&) {
    return T(0.5) * x * (T(1) + fastErf(x * T(M_SQRT1_2)));
  }
};
struct GeluTanhOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const Parameters&) {
    return T(0.5) * x * (T(1) + fastTanh(T(M_2_SQRTPI * M_SQRT1_2) * (x + T(0.044715) * x * x * x)));
  }
};
struct LeakyReluOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const Parameters& p) {
    return x < T(0) ? T(p.alpha) * x : x;
  }
};
struct EluOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const Parameters& p) {
    return x < T(0) ? T(p.alpha) * std::expm1(x) : x;
  }
};
struct SoftplusOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const Parameters&) {
    return std::log1p(std::exp(-std::abs(x))) + (x < T(0) ? T(0) : x);
  }
};
// x tanh(log(1 + e^x)) as x n / d with n = e^x (e^x + 2) and d = n + 2, divided by e^2x where x > 0, so that
// nothing overflows.
struct MishOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const Parameters&) {
    const T e = fastExp(-std::abs(x));
    const T n = x < T(0) ? e * (e + T(2)) : T(1) + T(2) * e;
    return x * (n / (n + (x < T(0) ? T(2) : T(2) * e * e)));
  }
};
struct SinOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const Parameters&) {
    return std::sin(x);
  }
};
struct CosOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const Parameters&) {
    return std::cos(x);
  }
};
struct TanOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const Parameters&) {
    return std::tan(x);
  }
};
struct AsinOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const Parameters&) {
    return std::asin(x);
  }
};
struct AcosOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const Parameters&) {
    return std::acos(x);
  }
};
struct AtanOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const Parameters&) {
    return std::atan(x);
  }
};
struct SinhOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const Parameters&) {
    return std::sinh(x);
  }
};
struct CoshOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const Parameters&) {
    return std::cosh(x);
  }
};
struct AsinhOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const Parameters&) {
    return std::asinh(x);
  }
};
struct AcoshOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const Parameters&) {
    return std::acosh(x);
  }
};
struct AtanhOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const Parameters&) {
    return std::atanh(x);
  }
};
struct FloorOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const Parameters&) {
    return std::floor(x);
  }
};
struct CeilOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const Parameters&) {
    return std::ceil(x);
  }
};
// To even.
struct RoundOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const Parameters&) {
    return std::nearbyint(x);
  }
};
struct SignOp {
  template <typename T>
  PIPESHARD_INLINE static T apply(T x, const Parameters&) {
    return x != x ? x : T((x > T(0)) - (x < T(0)));
  }
};
struct NotOp {
  template <typename T>
  PIPESHARD_INLINE static bool apply(T x, const Parameters&) {
    return x == T(0);
  }
};
struct IsNaNOp {
  template <typename T>
  PIPESHARD_INLINE static bool apply(T x, const Parameters&) {
    return x != x;
  }
};
struct IsInfOp {
  template <typename T>
  PIPESHARD_INLINE static bool apply(T x, const Parameters& p) {
    return (x == std::numeric_limits<T>::infinity() && p.alpha != 0) ||
           (x == -std::numeric_limits<T>::infinity() && p.beta != 0);
  }
};

template <typename Op, typename T, typename R>
struct UnaryLoop {
  PIPESHARD_INLINE static void run(const T* x, R* y, int64_t count, Parameters parameters) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) y[i] = Op::apply(x[i], parameters);
  }
};

template <typename Op, typename T, typename R>
std::unique_ptr<Kernel> makeUnary(const KernelSpec& spec, Parameters parameters) {
  checkOutputShape(spec, 0, spec.inputs[0].shape);
  const int64_t count = elementCount(spec.inputs[0].shape);
  return makeKernel(
      [count, parameters](const KernelArguments& arguments) {
        const T* x = input<T>(arguments, 0);
        R* y = output<R>(arguments, 0);
        forBlocks(count, kBlockElements, [&](int64_t begin, int64_t end) {
          runVectorised<UnaryLoop<Op, T, R>>(x + begin, y + begin, end - begin, parameters);
        });
      },
      inPlaceTraits(spec, {0}));
}

// Same type in and out, one of Ts.
template <typename Op, typename... Ts>
std::unique_ptr<Kernel> unary(const KernelSpec& spec, Parameters parameters = {}) {
  checkArity(spec, 1, 1);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  return withType<Ts...>(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    return makeUnary<Op, decltype(zero), decltype(zero)>(spec, parameters);
  });
}

// One of Ts in, bool out.
template <typename Op, typename... Ts>
std::unique_ptr<Kernel> predicate(const KernelSpec& spec, Parameters parameters = {}) {
  checkArity(spec, 1, 1);
  checkOutputType(spec, 0, DataType::kBool);
  return withType<Ts...>(spec, spec.inputs[0].data_type, "input 0",
                         [&](auto zero) { return makeUnary<Op, decltype(zero), bool>(spec, parameters); });
}

template <typename Op>
void addFloat(KernelRegistry& registry, const char* name) {
  registry.add("", name, [](const KernelSpec& spec) { return unary<Op, float, double>(spec); });
}

template <typename Op>
void addNumeric(KernelRegistry& registry, const char* name) {
  registry.add("", name, [](const KernelSpec& spec) {
    return unary<Op, float, double, int32_t, int64_t, int8_t>(spec);
  });
}

template <typename Op>
void addFloatWithAlpha(KernelRegistry& registry, const char* name, float default_alpha) {
  registry.add("", name, [default_alpha](const KernelSpec& spec) {
    return unary<Op, float, double>(spec, {.alpha = spec.node->floatAttribute("alpha", default_alpha)});
  });
}

std::unique_ptr<Kernel> makeGelu(const KernelSpec& spec) {
  const std::string approximate = spec.node->stringAttribute("approximate", "none");
  if (approximate == "none") return unary<GeluErfOp, float, double>(spec);
  if (approximate == "tanh") return unary<GeluTanhOp, float, double>(spec);
  refuse(spec, "attribute approximate is '{}'; the CPU kernel supports 'none' and 'tanh'", approximate);
}

std::unique_ptr<Kernel> makeIsInf(const KernelSpec& spec) {
  return predicate<IsInfOp, float, double>(
      spec, {.alpha = static_cast<double>(spec.node->intAttribute("detect_positive", 1)),
             .beta = static_cast<double>(spec.node->intAttribute("detect_negative", 1))});
}

template <typename T>
struct ClipLoop {
  PIPESHARD_INLINE static void run(const T* x, T* y, int64_t count, T low, T high) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const T raised = x[i] < low ? low : x[i];
      y[i] = raised > high ? high : raised;
    }
  }
};

template <typename T>
std::unique_ptr<Kernel> clip(const KernelSpec& spec) {
  const int64_t count = elementCount(spec.inputs[0].shape);
  T low = std::numeric_limits<T>::lowest();
  T high = std::numeric_limits<T>::max();
  if (std::is_floating_point_v<T>) {
    low = static_cast<T>(spec.node->floatAttribute("min", -std::numeric_limits<float>::infinity()));
    high = static_cast<T>(spec.node->floatAttribute("max", std::numeric_limits<float>::infinity()));
  }
  return makeKernel(
      [=](const KernelArguments& arguments) {
        const T* x = input<T>(arguments, 0);
        T* y = output<T>(arguments, 0);
        const T* low_input = input<T>(arguments, 1);
        const T* high_input = input<T>(arguments, 2);
        const T least = low_input != nullptr ? *low_input : low;
        const T most = high_input != nullptr ? *high_input : high;
        forBlocks(count, kBlockElements, [&](int64_t begin, int64_t end) {
          runVectorised<ClipLoop<T>>(x + begin, y + begin, end - begin, least, most);
        });
      },
      inPlaceTraits(spec, {0}));
}

std::unique_ptr<Kernel> makeClip(const KernelSpec& spec) {
  checkArity(spec, 1, 3);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  checkOutputShape(spec, 0, spec.inputs[0].shape);
  for (size_t bound : {1, 2}) {
    if (!hasInput(spec, bound)) continue;
    checkInputType(spec, bound, spec.inputs[0].data_type);
    if (elementCount(spec.inputs[bound].shape) != 1) refuse(spec, "input {} must be a scalar", bound);
  }
  return withType<float, double, int32_t, int64_t, int8_t, uint8_t>(
      spec, spec.inputs[0].data_type, "input 0", [&](auto zero) { return clip<decltype(zero)>(spec); });
}

}  // namespace

void addUnaryKernels(KernelRegistry& registry) {
  addNumeric<AbsOp>(registry, "Abs");
  addNumeric<NegOp>(registry, "Neg");
  addNumeric<SignOp>(registry, "Sign");
  addNumeric<ReluOp>(registry, "Relu");
  addFloat<SqrtOp>(registry, "Sqrt");
  addFloat<ExpOp>(registry, "Exp");
  addFloat<LogOp>(registry, "Log");
  addFloat<ReciprocalOp>(registry, "Reciprocal");
  addFloat<ErfOp>(registry, "Erf");
  addFloat<TanhOp>(registry, "Tanh");
  addFloat<SigmoidOp>(registry, "Sigmoid");
  addFloat<SoftplusOp>(registry, "Softplus");
  addFloat<MishOp>(registry, "Mish");
  addFloat<SinOp>(registry, "Sin");
  addFloat<CosOp>(registry, "Cos");
  addFloat<TanOp>(registry, "Tan");
  addFloat<AsinOp>(registry, "Asin");
  addFloat<AcosOp>(registry, "Acos");
  addFloat<AtanOp>(registry, "Atan");
  addFloat<SinhOp>(registry, "Sinh");
  addFloat<CoshOp>(registry, "Cosh");
  addFloat<AsinhOp>(registry, "Asinh");
  addFloat<AcoshOp>(registry, "Acosh");
  addFloat<AtanhOp>(registry, "Atanh");
  addFloat<FloorOp>(registry, "Floor");
  addFloat<CeilOp>(registry, "Ceil");
  addFloat<RoundOp>(registry, "Round");
  addFloatWithAlpha<LeakyReluOp>(registry, "LeakyRelu", 0.01f);
  addFloatWithAlpha<EluOp>(registry, "Elu", 1.0f);
  registry.add("", "Gelu", makeGelu);
  registry.add("", "Clip", makeClip);
  registry.add("", "Not", [](const KernelSpec& spec) {
    checkArity(spec, 1, 1);
    checkInputType(spec, 0, DataType::kBool);
    checkOutputType(spec, 0, DataType::kBool);
    return makeUnary<NotOp, uint8_t, bool>(spec, {});
  });
  registry.add("", "IsNaN", [](const KernelSpec& spec) { return predicate<IsNaNOp, float, double>(spec); });
  registry.add("", "IsInf", makeIsInf);
}

}  // namespace pipeshard::kernels
