#include <cmath>

#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/parallel.h"
#include "runtime/kernels/base/simd.h"
#include "runtime/kernels/base/support.h"

namespace pipeshard::kernels {
namespace {

template <typename T>
struct SgdLoop {
  PIPESHARD_INLINE static void run(const T* param, const T* grad, T* new_param, int64_t count, T rate,
                                   T decay) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) new_param[i] = param[i] - rate * (grad[i] + decay * param[i]);
  }
};

template <typename T>
struct MomentumLoop {
  PIPESHARD_INLINE static void run(const T* param, const T* grad, const T* velocity, T* new_param,
                                   T* new_velocity, int64_t count, T rate, T momentum, T decay,
                                   bool nesterov) {
    const T direct = nesterov ? T(1) : T(0);        // share of the gradient itself in the step
    const T smoothed = nesterov ? momentum : T(1);  // share of the velocity
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const T g = grad[i] + decay * param[i];
      const T v = momentum * velocity[i] + g;
      new_velocity[i] = v;
      new_param[i] = param[i] - rate * (direct * g + smoothed * v);
    }
  }
};

// Numbers of one step of Adam or AdamW, the same for every element.
template <typename T>
struct AdamStep {
  T beta1, beta2, epsilon;
  T keep;             // AdamW: 1 - lr * wd, the factor on the parameter
  T decay;            // Adam: wd, added to the gradient
  T rate;             // lr / (1 - beta1^t)
  T root_correction;  // 1 / sqrt(1 - beta2^t)
};

template <typename T>
struct AdamLoop {
  PIPESHARD_INLINE static void run(const T* param, const T* grad, const T* m, const T* v, T* new_param,
                                   T* new_m, T* new_v, int64_t count, AdamStep<T> step) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const T g = grad[i] + step.decay * param[i];
      const T first = step.beta1 * m[i] + (T(1) - step.beta1) * g;
      const T second = step.beta2 * v[i] + (T(1) - step.beta2) * g * g;
      new_m[i] = first;
      new_v[i] = second;
      new_param[i] = param[i] * step.keep -
                     step.rate * first / (std::sqrt(second) * step.root_correction + step.epsilon);
    }
  }
};

// The first `tensors` inputs (Param, Grad, state) share one shape and type; the scalars after them have the
// type.
int64_t checkOptimizer(const KernelSpec& spec, size_t tensors, size_t scalars, size_t outputs) {
  checkArity(spec, tensors + scalars, tensors + scalars);
  const DataType type = spec.inputs[0].data_type;
  for (size_t i = 1; i < tensors; ++i) {
    checkInputType(spec, i, type);
    checkInputShape(spec, i, spec.inputs[0].shape);
  }
  for (size_t i = tensors; i < tensors + scalars; ++i) {
    if (elementCount(spec.inputs[i].shape) != 1)
      refuse(spec, "input {} has shape {}; it must be a scalar", i, shapeToString(spec.inputs[i].shape));
    checkInputType(spec, i, spec.inputs[i].data_type == DataType::kInt64 ? DataType::kInt64 : type);
  }
  for (size_t i = 0; i < outputs; ++i) {
    if (!hasOutput(spec, i)) refuse(spec, "output {} is missing", i);
    checkOutputType(spec, i, type);
    checkOutputShape(spec, i, spec.inputs[0].shape);
  }
  return elementCount(spec.inputs[0].shape);
}

std::unique_ptr<Kernel> sgd(const KernelSpec& spec) {
  const int64_t count = checkOptimizer(spec, 2, 2, 1);
  return withType<float, double>(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel(
        [count](const KernelArguments& arguments) {
          forBlocks(count, kBlockElements, [&](int64_t begin, int64_t end) {
            runVectorised<SgdLoop<T>>(input<T>(arguments, 0) + begin, input<T>(arguments, 1) + begin,
                                      output<T>(arguments, 0) + begin, end - begin, *input<T>(arguments, 2),
                                      *input<T>(arguments, 3));
          });
        },
        {.in_place = {{0, 0}, {1, 0}}, .workspace_bytes = 0});
  });
}

std::unique_ptr<Kernel> sgdMomentum(const KernelSpec& spec) {
  const int64_t count = checkOptimizer(spec, 3, 3, 2);
  const bool nesterov = spec.node->intAttribute("nesterov", 0) != 0;
  return withType<float, double>(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel(
        [count, nesterov](const KernelArguments& arguments) {
          forBlocks(count, kBlockElements, [&](int64_t begin, int64_t end) {
            runVectorised<MomentumLoop<T>>(input<T>(arguments, 0) + begin, input<T>(arguments, 1) + begin,
                                           input<T>(arguments, 2) + begin, output<T>(arguments, 0) + begin,
                                           output<T>(arguments, 1) + begin, end - begin,
                                           *input<T>(arguments, 3), *input<T>(arguments, 4),
                                           *input<T>(arguments, 5), nesterov);
          });
        },
        {.in_place = {{0, 0}, {2, 1}}, .workspace_bytes = 0});
  });
}

// Inputs 5..9: LearningRate, Beta1, Beta2, Epsilon, WeightDecay. The corrections are computed in double.
template <typename T>
AdamStep<T> adamStep(const KernelArguments& arguments, bool decoupled, const std::string& node) {
  const int64_t step = *input<int64_t>(arguments, 4);
  if (step < 1) fail(ErrorCode::kBadModel, "{}: Step is {}; the first step is 1", node, step);
  const double rate = *input<T>(arguments, 5);
  const double beta1 = *input<T>(arguments, 6);
  const double beta2 = *input<T>(arguments, 7);
  const double decay = *input<T>(arguments, 9);
  const auto power = static_cast<double>(step);
  AdamStep<T> result;
  result.beta1 = static_cast<T>(beta1);
  result.beta2 = static_cast<T>(beta2);
  result.epsilon = *input<T>(arguments, 8);
  result.keep = decoupled ? static_cast<T>(1 - rate * decay) : T(1);
  result.decay = decoupled ? T(0) : static_cast<T>(decay);
  result.rate = static_cast<T>(rate / (1 - std::pow(beta1, power)));
  result.root_correction = static_cast<T>(1 / std::sqrt(1 - std::pow(beta2, power)));
  return result;
}

std::unique_ptr<Kernel> adam(const KernelSpec& spec, bool decoupled) {
  const int64_t count = checkOptimizer(spec, 4, 6, 3);
  checkInputType(spec, 4, DataType::kInt64);
  for (size_t i = 5; i < 10; ++i) checkInputType(spec, i, spec.inputs[0].data_type);
  return withType<float, double>(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel(
        [count, decoupled, node = describeNode(*spec.node)](const KernelArguments& arguments) {
          const AdamStep<T> step = adamStep<T>(arguments, decoupled, node);
          forBlocks(count, kBlockElements, [&](int64_t begin, int64_t end) {
            runVectorised<AdamLoop<T>>(input<T>(arguments, 0) + begin, input<T>(arguments, 1) + begin,
                                       input<T>(arguments, 2) + begin, input<T>(arguments, 3) + begin,
                                       output<T>(arguments, 0) + begin, output<T>(arguments, 1) + begin,
                                       output<T>(arguments, 2) + begin, end - begin, step);
          });
        },
        {.in_place = {{0, 0}, {2, 1}, {3, 2}}, .workspace_bytes = 0});
  });
}

}  // namespace

void addOptimizerKernels(KernelRegistry& registry) {
  const std::string ours(kPipeshardDomain);
  registry.add(ours, "SGD", sgd);
  registry.add(ours, "SGDMomentum", sgdMomentum);
  registry.add(ours, "Adam", [](const KernelSpec& spec) { return adam(spec, false); });
  registry.add(ours, "AdamW", [](const KernelSpec& spec) { return adam(spec, true); });
}

}  // namespace pipeshard::kernels
