// Updates of one parameter (docs/operators.md): one pass over its elements each. An optimizer is a struct of
// its numbers in one step, made of the inputs, with the loop over elements.
#include <algorithm>
#include <cmath>
#include <optional>

#include "ir/plan/learning_rate.h"
#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/parallel.h"
#include "runtime/kernels/base/simd.h"
#include "runtime/kernels/base/support.h"

namespace pipeshard::kernels {
namespace {

using Schedule = LearningRateSchedule;

// Where an update's inputs are. In order: Param, Grad and the states; Step, where the optimizer counts or the
// learning rate follows a schedule; LearningRate and the optimizer's other numbers, scalars of Param's type;
// the schedule's numbers, in float64.
struct UpdateLayout {
  int64_t count = 0;  // elements
  size_t states = 0;
  std::optional<size_t> step;
  size_t rate = 0;      // of LearningRate
  size_t schedule = 0;  // of the schedule's first number
  std::optional<Schedule::Kind> schedule_kind;
  bool nesterov = false;
  std::string node;
};

// The numbers of one step.
template <typename T>
class UpdateNumbers {
 public:
  UpdateNumbers(const UpdateLayout& layout, const KernelArguments& arguments)
      : layout_(layout), arguments_(arguments) {
    if (!layout.step) return;
    step_ = *input<int64_t>(arguments, *layout.step);
    if (step_ < 1) fail(ErrorCode::kBadModel, "{}: Step is {}; the first step is 1", layout.node, step_);
  }

  int64_t step() const { return step_; }
  bool nesterov() const { return layout_.nesterov; }
  // The k-th behind LearningRate, from 1 on.
  T operator[](size_t k) const { return *input<T>(arguments_, layout_.rate + k); }
  // The learning rate of this step.
  T rate() const {
    const T rate = (*this)[0];
    if (!layout_.schedule_kind) return rate;
    Schedule schedule;
    schedule.kind = *layout_.schedule_kind;
    size_t position = layout_.schedule;
    for (double Schedule::*number : numbersOf(schedule.kind))
      schedule.*number = *input<double>(arguments_, position++);
    return static_cast<T>(scheduledRate(schedule, rate, step_));
  }

 private:
  const UpdateLayout& layout_;
  const KernelArguments& arguments_;
  int64_t step_ = 0;
};

template <typename T>
struct UpdateTensors {
  const T* param;
  const T* grad;
  const T* state[2];
  T* new_param;
  T* new_state[2];
};

template <typename T>
struct SgdUpdate {
  static constexpr size_t kStates = 0, kNumbers = 2;
  static constexpr bool kCounts = false;
  explicit SgdUpdate(const UpdateNumbers<T>& n) : rate(n.rate()), decay(n[1]) {}
  T rate, decay;

  PIPESHARD_INLINE static void run(UpdateTensors<T> at, int64_t count, SgdUpdate step) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i)
      at.new_param[i] = at.param[i] - step.rate * (at.grad[i] + step.decay * at.param[i]);
  }
};

template <typename T>
struct MomentumUpdate {
  static constexpr size_t kStates = 1, kNumbers = 3;
  static constexpr bool kCounts = false;
  explicit MomentumUpdate(const UpdateNumbers<T>& n)
      : rate(n.rate()),
        momentum(n[1]),
        decay(n[2]),
        direct(n.nesterov() ? T(1) : T(0)),
        smoothed(n.nesterov() ? momentum : T(1)) {}
  T rate, momentum, decay;
  T direct;    // share of the gradient itself in the step
  T smoothed;  // share of the velocity

  PIPESHARD_INLINE static void run(UpdateTensors<T> at, int64_t count, MomentumUpdate step) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const T g = at.grad[i] + step.decay * at.param[i];
      const T v = step.momentum * at.state[0][i] + g;
      at.new_state[0][i] = v;
      at.new_param[i] = at.param[i] - step.rate * (step.direct * g + step.smoothed * v);
    }
  }
};

// The corrections are computed in double.
template <typename T, bool decoupled>
struct AdamUpdate {
  static constexpr size_t kStates = 2, kNumbers = 5;
  static constexpr bool kCounts = true;
  explicit AdamUpdate(const UpdateNumbers<T>& n) : beta1(n[1]), beta2(n[2]), epsilon(n[3]) {
    const double learning_rate = n.rate();
    const double weight_decay = n[4];
    const auto power = static_cast<double>(n.step());
    keep = decoupled ? static_cast<T>(1 - learning_rate * weight_decay) : T(1);
    decay = decoupled ? T(0) : static_cast<T>(weight_decay);
    rate = static_cast<T>(learning_rate / (1 - std::pow(static_cast<double>(beta1), power)));
    root_correction = static_cast<T>(1 / std::sqrt(1 - std::pow(static_cast<double>(beta2), power)));
  }
  T beta1, beta2, epsilon;
  T keep;             // AdamW: 1 - lr * wd, the factor on the parameter
  T decay;            // Adam: wd, added to the gradient
  T rate;             // lr / (1 - beta1^t)
  T root_correction;  // 1 / sqrt(1 - beta2^t)

  PIPESHARD_INLINE static void run(UpdateTensors<T> at, int64_t count, AdamUpdate step) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const T g = at.grad[i] + step.decay * at.param[i];
      const T first = step.beta1 * at.state[0][i] + (T(1) - step.beta1) * g;
      const T second = step.beta2 * at.state[1][i] + (T(1) - step.beta2) * g * g;
      at.new_state[0][i] = first;
      at.new_state[1][i] = second;
      at.new_param[i] = at.param[i] * step.keep -
                        step.rate * first / (std::sqrt(second) * step.root_correction + step.epsilon);
    }
  }
};
template <typename T>
using CoupledAdam = AdamUpdate<T, false>;
template <typename T>
using DecoupledAdam = AdamUpdate<T, true>;

template <typename T>
struct RmsPropUpdate {
  static constexpr size_t kStates = 1, kNumbers = 4;
  static constexpr bool kCounts = false;
  explicit RmsPropUpdate(const UpdateNumbers<T>& n)
      : rate(n.rate()), alpha(n[1]), epsilon(n[2]), decay(n[3]) {}
  T rate, alpha, epsilon, decay;

  PIPESHARD_INLINE static void run(UpdateTensors<T> at, int64_t count, RmsPropUpdate step) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const T g = at.grad[i] + step.decay * at.param[i];
      const T second = step.alpha * at.state[0][i] + (T(1) - step.alpha) * g * g;
      at.new_state[0][i] = second;
      at.new_param[i] = at.param[i] - step.rate * (g / (std::sqrt(second) + step.epsilon));
    }
  }
};

template <typename T>
struct RmsPropMomentumUpdate {
  static constexpr size_t kStates = 2, kNumbers = 5;
  static constexpr bool kCounts = false;
  explicit RmsPropMomentumUpdate(const UpdateNumbers<T>& n)
      : rate(n.rate()), alpha(n[1]), epsilon(n[2]), decay(n[3]), momentum(n[4]) {}
  T rate, alpha, epsilon, decay, momentum;

  PIPESHARD_INLINE static void run(UpdateTensors<T> at, int64_t count, RmsPropMomentumUpdate step) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const T g = at.grad[i] + step.decay * at.param[i];
      const T second = step.alpha * at.state[0][i] + (T(1) - step.alpha) * g * g;
      const T v = step.momentum * at.state[1][i] + g / (std::sqrt(second) + step.epsilon);
      at.new_state[0][i] = second;
      at.new_state[1][i] = v;
      at.new_param[i] = at.param[i] - step.rate * v;
    }
  }
};

template <typename T>
struct AdagradUpdate {
  static constexpr size_t kStates = 1, kNumbers = 4;
  static constexpr bool kCounts = true;
  explicit AdagradUpdate(const UpdateNumbers<T>& n)
      : rate(static_cast<T>(n.rate() / (1 + static_cast<double>(n.step() - 1) * n[1]))),
        epsilon(n[2]),
        decay(n[3]) {}
  T rate, epsilon, decay;

  PIPESHARD_INLINE static void run(UpdateTensors<T> at, int64_t count, AdagradUpdate step) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const T g = at.grad[i] + step.decay * at.param[i];
      const T sum = at.state[0][i] + g * g;
      at.new_state[0][i] = sum;
      at.new_param[i] = at.param[i] - step.rate * (g / (std::sqrt(sum) + step.epsilon));
    }
  }
};

template <typename T>
struct LionUpdate {
  static constexpr size_t kStates = 1, kNumbers = 4;
  static constexpr bool kCounts = false;
  explicit LionUpdate(const UpdateNumbers<T>& n)
      : rate(n.rate()), beta1(n[1]), beta2(n[2]), keep(T(1) - rate * n[3]) {}
  T rate, beta1, beta2;
  T keep;  // 1 - lr * wd, the factor on the parameter

  PIPESHARD_INLINE static void run(UpdateTensors<T> at, int64_t count, LionUpdate step) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const T g = at.grad[i];
      const T old = at.state[0][i];
      const T mixed = step.beta1 * old + (T(1) - step.beta1) * g;
      const T sign = mixed > T(0) ? T(1) : mixed < T(0) ? T(-1) : mixed;  // a NaN stays one
      at.new_state[0][i] = step.beta2 * old + (T(1) - step.beta2) * g;
      at.new_param[i] = at.param[i] * step.keep - step.rate * sign;
    }
  }
};

// Adam's direction with the decay added, in the place of a new parameter. LearningRate is not among the
// numbers.
template <typename T>
struct LambDirection {
  static constexpr size_t kStates = 2, kNumbers = 4;
  static constexpr bool kCounts = true;
  explicit LambDirection(const UpdateNumbers<T>& n) : beta1(n[0]), beta2(n[1]), epsilon(n[2]), decay(n[3]) {
    const auto power = static_cast<double>(n.step());
    correction = static_cast<T>(1 / (1 - std::pow(static_cast<double>(beta1), power)));
    root_correction = static_cast<T>(1 / std::sqrt(1 - std::pow(static_cast<double>(beta2), power)));
  }
  T beta1, beta2, epsilon, decay;
  T correction;       // 1 / (1 - beta1^t)
  T root_correction;  // 1 / sqrt(1 - beta2^t)

  PIPESHARD_INLINE static void run(UpdateTensors<T> at, int64_t count, LambDirection step) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const T g = at.grad[i];
      const T first = step.beta1 * at.state[0][i] + (T(1) - step.beta1) * g;
      const T second = step.beta2 * at.state[1][i] + (T(1) - step.beta2) * g * g;
      at.new_state[0][i] = first;
      at.new_state[1][i] = second;
      at.new_param[i] = first * step.correction / (std::sqrt(second) * step.root_correction + step.epsilon) +
                        step.decay * at.param[i];
    }
  }
};

void checkScalar(const KernelSpec& spec, size_t position, DataType type) {
  if (elementCount(spec.inputs[position].shape) != 1)
    refuse(spec, "input {} has shape {}; it must be a scalar", position,
           shapeToString(spec.inputs[position].shape));
  checkInputType(spec, position, type);
}

std::optional<Schedule::Kind> scheduleOf(const KernelSpec& spec) {
  const std::string name = spec.node->stringAttribute("schedule", "");
  if (name.empty()) return std::nullopt;
  const auto found = std::find(kScheduleNames.begin(), kScheduleNames.end(), name);
  if (found == kScheduleNames.end()) refuse(spec, "there is no schedule '{}'", name);
  return static_cast<Schedule::Kind>(found - kScheduleNames.begin());
}

// Outputs: the new parameter and states.
UpdateLayout layoutOf(const KernelSpec& spec, size_t states, bool counts, size_t numbers) {
  UpdateLayout layout;
  layout.states = states;
  layout.schedule_kind = scheduleOf(spec);
  layout.nesterov = spec.node->intAttribute("nesterov", 0) != 0;
  layout.node = describeNode(*spec.node);
  const size_t tensors = 2 + states;
  const bool reads_step = counts || layout.schedule_kind;
  if (reads_step) layout.step = tensors;
  layout.rate = tensors + (reads_step ? 1 : 0);
  layout.schedule = layout.rate + numbers;
  const size_t inputs =
      layout.schedule + (layout.schedule_kind ? numbersOf(*layout.schedule_kind).size() : 0);
  checkArity(spec, inputs, inputs);
  const DataType type = spec.inputs[0].data_type;
  for (size_t i = 1; i < tensors; ++i) {
    checkInputType(spec, i, type);
    checkInputShape(spec, i, spec.inputs[0].shape);
  }
  if (layout.step) checkScalar(spec, *layout.step, DataType::kInt64);
  for (size_t i = layout.rate; i < layout.schedule; ++i) checkScalar(spec, i, type);
  for (size_t i = layout.schedule; i < inputs; ++i) checkScalar(spec, i, DataType::kFloat64);
  for (size_t i = 0; i <= states; ++i) {
    if (!hasOutput(spec, i)) refuse(spec, "output {} is missing", i);
    checkOutputType(spec, i, type);
    checkOutputShape(spec, i, spec.inputs[0].shape);
  }
  layout.count = elementCount(spec.inputs[0].shape);
  return layout;
}

template <typename T>
UpdateTensors<T> tensorsFrom(const KernelArguments& arguments, size_t states, int64_t begin) {
  UpdateTensors<T> at{input<T>(arguments, 0) + begin,
                      input<T>(arguments, 1) + begin,
                      {},
                      output<T>(arguments, 0) + begin,
                      {}};
  for (size_t s = 0; s < states; ++s) {
    at.state[s] = input<T>(arguments, 2 + s) + begin;
    at.new_state[s] = output<T>(arguments, 1 + s) + begin;
  }
  return at;
}

template <template <typename> class Update>
std::unique_ptr<Kernel> updateKernel(const KernelSpec& spec) {
  using Facts = Update<double>;
  const UpdateLayout layout = layoutOf(spec, Facts::kStates, Facts::kCounts, Facts::kNumbers);
  std::vector<std::pair<int, int>> in_place = {{0, 0}};
  if (layout.states == 0) in_place.emplace_back(1, 0);
  for (int s = 0; s < static_cast<int>(layout.states); ++s) in_place.emplace_back(2 + s, 1 + s);
  return withType<float, double>(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel(
        [layout](const KernelArguments& arguments) {
          const Update<T> step(UpdateNumbers<T>(layout, arguments));
          forBlocks(layout.count, kBlockElements, [&](int64_t begin, int64_t end) {
            runVectorised<Update<T>>(tensorsFrom<T>(arguments, layout.states, begin), end - begin, step);
          });
        },
        {.in_place = std::move(in_place), .workspace_bytes = 0});
  });
}

template <typename T>
struct AverageBlock {
  PIPESHARD_INLINE static void run(const T* old, const T* sample, T* average, int64_t count, T decay) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) average[i] = decay * old[i] + (T(1) - decay) * sample[i];
  }
};

std::unique_ptr<Kernel> movingAverageKernel(const KernelSpec& spec) {
  checkArity(spec, 3, 3);
  const DataType type = spec.inputs[0].data_type;
  checkInputType(spec, 1, type);
  checkInputShape(spec, 1, spec.inputs[0].shape);
  checkScalar(spec, 2, type);
  checkOutputType(spec, 0, type);
  checkOutputShape(spec, 0, spec.inputs[0].shape);
  const int64_t count = elementCount(spec.inputs[0].shape);
  return withType<float, double>(spec, type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel(
        [count](const KernelArguments& arguments) {
          const T* old = input<T>(arguments, 0);
          const T* sample = input<T>(arguments, 1);
          T* average = output<T>(arguments, 0);
          const T decay = *input<T>(arguments, 2);
          forBlocks(count, kBlockElements, [&](int64_t begin, int64_t end) {
            runVectorised<AverageBlock<T>>(old + begin, sample + begin, average + begin, end - begin, decay);
          });
        },
        inPlaceTraits(spec, {0, 1}));
  });
}

// This step's learning rate, a scalar.
std::unique_ptr<Kernel> scheduledRateKernel(const KernelSpec& spec) {
  UpdateLayout layout;
  layout.schedule_kind = scheduleOf(spec);
  if (!layout.schedule_kind) refuse(spec, "it has no schedule");
  layout.node = describeNode(*spec.node);
  layout.step = 0;
  layout.rate = 1;
  layout.schedule = 2;
  checkArity(spec, 2 + numbersOf(*layout.schedule_kind).size(), 2 + numbersOf(*layout.schedule_kind).size());
  checkScalar(spec, 0, DataType::kInt64);
  checkScalar(spec, 1, spec.inputs[1].data_type);
  for (size_t i = 2; i < spec.inputs.size(); ++i) checkScalar(spec, i, DataType::kFloat64);
  checkOutputType(spec, 0, spec.inputs[1].data_type);
  return withType<float, double>(spec, spec.inputs[1].data_type, "input 1", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel([layout](const KernelArguments& arguments) {
      *output<T>(arguments, 0) = UpdateNumbers<T>(layout, arguments).rate();
    });
  });
}

}  // namespace

void addOptimizerKernels(KernelRegistry& registry) {
  const std::string ours(kPipeshardDomain);
  registry.add(ours, "SGD", updateKernel<SgdUpdate>);
  registry.add(ours, "SGDMomentum", updateKernel<MomentumUpdate>);
  registry.add(ours, "Adam", updateKernel<CoupledAdam>);
  registry.add(ours, "AdamW", updateKernel<DecoupledAdam>);
  registry.add(ours, "RMSProp", updateKernel<RmsPropUpdate>);
  registry.add(ours, "RMSPropMomentum", updateKernel<RmsPropMomentumUpdate>);
  registry.add(ours, "Adagrad", updateKernel<AdagradUpdate>);
  registry.add(ours, "Lion", updateKernel<LionUpdate>);
  registry.add(ours, "LAMBDirection", updateKernel<LambDirection>);
  registry.add(ours, "ScheduledRate", scheduledRateKernel);
  registry.add(ours, "MovingAverage", movingAverageKernel);
}

}  // namespace pipeshard::kernels
