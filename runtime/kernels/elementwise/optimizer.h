// Updates of one parameter, for every device: one pass over its elements each. An optimizer is a struct of
// its numbers in one step, made of the inputs, with the loop over elements.
#pragma once

#include <cmath>
#include <cstdint>

#include "ir/plan/learning_rate_formula.h"
#include "runtime/kernels/base/simd.h"

namespace pipeshard {
class DeviceQueue;
}

namespace pipeshard::kernels {

template <typename T>
struct UpdateTensors {
  const T* param;
  const T* grad;
  const T* state[2];
  T* new_param;
  T* new_state[2];
};

// What an update reads and writes, on the device.
template <typename T>
struct UpdateInputs {
  UpdateTensors<T> tensors{};
  int64_t count = 0;              // elements
  const int64_t* step = nullptr;  // nullptr: not read
  const T* numbers[6] = {};       // scalars: LearningRate and the optimizer's others
  bool nesterov = false;
  // How the learning rate goes; what numbersOf(schedule) lists is read from scalars.
  bool has_schedule = false;
  LearningRateSchedule::Kind schedule = LearningRateSchedule::Kind::kConstant;
  const double* schedule_numbers[4] = {};
};

// The numbers of one step.
template <typename T>
struct UpdateNumbers {
  const UpdateInputs<T>& from;

  PIPESHARD_INLINE int64_t step() const { return from.step == nullptr ? 0 : *from.step; }
  PIPESHARD_INLINE bool nesterov() const { return from.nesterov; }
  // The k-th behind LearningRate, from 1 on.
  PIPESHARD_INLINE T operator[](size_t k) const { return *from.numbers[k]; }
  // The learning rate of this step.
  PIPESHARD_INLINE T rate() const {
    if (!from.has_schedule) return (*this)[0];
    return static_cast<T>(rateByFormula(schedule(), (*this)[0], step()));
  }
  // Field by field: one that a pointer chooses puts all of them into a GPU's memory, not into registers.
  PIPESHARD_INLINE LearningRateSchedule schedule() const {
    using Kind = LearningRateSchedule::Kind;
    const double* const* const numbers = from.schedule_numbers;
    LearningRateSchedule is;
    is.kind = from.schedule;
    if (is.kind == Kind::kOneCycle) {
      is.steps = *numbers[0];
      is.pct_start = *numbers[1];
      is.div_factor = *numbers[2];
      is.final_div_factor = *numbers[3];
      return is;
    }
    is.warmup = *numbers[0];
    is.start_factor = *numbers[1];
    if (is.kind == Kind::kLinear || is.kind == Kind::kCosine) {
      is.steps = *numbers[2];
      is.final_rate = *numbers[3];
    } else if (is.kind == Kind::kStep) {
      is.step_size = *numbers[2];
      is.gamma = *numbers[3];
    }
    return is;
  }
};

template <typename T>
struct SgdUpdate {
  static constexpr size_t kStates = 0, kNumbers = 2;
  static constexpr bool kCounts = false;
  template <typename Numbers>
  PIPESHARD_INLINE explicit SgdUpdate(const Numbers& n) : rate(n.rate()), decay(n[1]) {}
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
  template <typename Numbers>
  PIPESHARD_INLINE explicit MomentumUpdate(const Numbers& n)
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
  template <typename Numbers>
  PIPESHARD_INLINE explicit AdamUpdate(const Numbers& n) : beta1(n[1]), beta2(n[2]), epsilon(n[3]) {
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
  template <typename Numbers>
  PIPESHARD_INLINE explicit RmsPropUpdate(const Numbers& n)
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
  template <typename Numbers>
  PIPESHARD_INLINE explicit RmsPropMomentumUpdate(const Numbers& n)
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
  template <typename Numbers>
  PIPESHARD_INLINE explicit AdagradUpdate(const Numbers& n)
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
  template <typename Numbers>
  PIPESHARD_INLINE explicit LionUpdate(const Numbers& n)
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
  template <typename Numbers>
  PIPESHARD_INLINE explicit LambDirection(const Numbers& n)
      : beta1(n[0]), beta2(n[1]), epsilon(n[2]), decay(n[3]) {
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

// One pass of Update over all elements; new values may be in the place of old ones.
template <typename Update, typename T>
void applyUpdate(DeviceQueue* queue, const UpdateInputs<T>& inputs);
// This step's learning rate.
template <typename T>
void applyScheduledRate(DeviceQueue* queue, const UpdateInputs<T>& inputs, T* rate);
// average = decay old + (1 - decay) sample; `average` may be `old` or `sample`.
template <typename T>
void applyMovingAverage(DeviceQueue* queue, int64_t count, const T* old, const T* sample, const T* decay,
                        T* average);

// INSTANCE(Update) for all that there are, of one type.
#define PIPESHARD_UPDATE_INSTANCES(INSTANCE, T) \
  INSTANCE(SgdUpdate<T>, T)                     \
  INSTANCE(MomentumUpdate<T>, T)                \
  INSTANCE(CoupledAdam<T>, T)                   \
  INSTANCE(DecoupledAdam<T>, T)                 \
  INSTANCE(RmsPropUpdate<T>, T)                 \
  INSTANCE(RmsPropMomentumUpdate<T>, T)         \
  INSTANCE(AdagradUpdate<T>, T)                 \
  INSTANCE(LionUpdate<T>, T)                    \
  INSTANCE(LambDirection<T>, T)

}  // namespace pipeshard::kernels
