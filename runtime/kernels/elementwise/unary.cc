// Operators with one input, element by element. An operator is a struct with apply(x, parameters)
// (unary_functors.h); makeUnary makes the kernel, which may run in place. Parameters are read from attributes
// once, when the kernel is made.
#include <limits>

#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/support.h"
#include "runtime/kernels/elementwise/gelu_factors.h"
#include "runtime/kernels/elementwise/unary_functors.h"

namespace pipeshard::kernels {
namespace {

template <typename Op, typename T, typename R>
std::unique_ptr<Kernel> makeUnary(const KernelSpec& spec, UnaryParameters parameters) {
  checkOutputShape(spec, 0, spec.inputs[0].shape);
  const int64_t count = elementCount(spec.inputs[0].shape);
  return makeKernel(
      [count, parameters](const KernelArguments& arguments) {
        applyUnary<Op, T, R>(arguments.queue, parameters, count, input<T>(arguments, 0),
                             output<R>(arguments, 0));
      },
      inPlaceTraits(spec, {0}));
}

// Same type in and out, one of Ts.
template <typename Op, typename... Ts>
std::unique_ptr<Kernel> unary(const KernelSpec& spec, UnaryParameters parameters = {}) {
  checkArity(spec, 1, 1);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  return withType<Ts...>(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    return makeUnary<Op, decltype(zero), decltype(zero)>(spec, parameters);
  });
}

// One of Ts in, bool out.
template <typename Op, typename... Ts>
std::unique_ptr<Kernel> predicate(const KernelSpec& spec, UnaryParameters parameters = {}) {
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
  if (approximate == "none") return unary<GeluErfOp, float, double>(spec, geluFactors(*spec.node));
  if (approximate == "tanh") return unary<GeluTanhOp, float, double>(spec, geluFactors(*spec.node));
  refuse(spec, "attribute approximate is '{}'; the kernel supports 'none' and 'tanh'", approximate);
}

std::unique_ptr<Kernel> makeSwish(const KernelSpec& spec) {
  return unary<SwishOp, float, double>(spec, {.alpha = spec.node->floatAttribute("alpha", 1)});
}

std::unique_ptr<Kernel> makeIsInf(const KernelSpec& spec) {
  return predicate<IsInfOp, float, double>(
      spec, {.alpha = static_cast<double>(spec.node->intAttribute("detect_positive", 1)),
             .beta = static_cast<double>(spec.node->intAttribute("detect_negative", 1))});
}

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
        applyClip<T>(arguments.queue, {low, high, input<T>(arguments, 1), input<T>(arguments, 2)}, count,
                     input<T>(arguments, 0), output<T>(arguments, 0));
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
  registry.add(std::string(kPipeshardDomain), "Gelu", makeGelu);
  registry.add(std::string(kPipeshardDomain), "Swish", makeSwish);
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
