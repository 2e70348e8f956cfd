// How the learning rate goes from step to step. The step's number alone decides, so that every plan, and a
// run that goes on from a checkpoint, has the same.
//
// With n = step - 1 steps done before, as PyTorch's schedulers and transformers' count them:
//   warm-up    n < warmup: lr (start_factor + (1 - start_factor) n / warmup); LinearLR
// then, with m = n - warmup and p = min(1, m / (steps - warmup)):
//   constant   lr
//   linear     final + (lr - final) (1 - p)
//   cosine     final + (lr - final) (1 + cos(pi p)) / 2; CosineAnnealingLR, T_max = steps - warmup
//   step       lr gamma ^ floor(m / step_size); StepLR
//   one-cycle  OneCycleLR with cycle_momentum=False: along cosines from lr / div_factor to lr, at
//              n = pct_start steps - 1, and to lr / (div_factor final_div_factor), at n = steps - 1
// Behind the last step the rate stays.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace pipeshard {

struct LearningRateSchedule {
  enum class Kind : uint8_t { kConstant, kLinear, kCosine, kOneCycle, kStep };
  Kind kind = Kind::kConstant;
  double warmup = 0;  // steps; not of one-cycle
  double start_factor = 0;
  double steps = 0;               // linear, cosine, one-cycle: in all, warm-up included
  double final_rate = 0;          // linear, cosine
  double step_size = 0;           // step
  double gamma = 0.1;             // step
  double pct_start = 0.3;         // one-cycle
  double div_factor = 25;         // one-cycle
  double final_div_factor = 1e4;  // one-cycle
  // The same rate in every step.
  bool isFlat() const { return kind == Kind::kConstant && warmup == 0; }
  friend bool operator==(const LearningRateSchedule&, const LearningRateSchedule&) = default;
};

// "constant", "linear", ... by kind: as people say them.
inline constexpr std::array<std::string_view, 5> kScheduleNames = {"constant", "linear", "cosine",
                                                                   "one-cycle", "step"};
inline std::string_view nameOf(LearningRateSchedule::Kind kind) {
  return kScheduleNames[static_cast<size_t>(kind)];
}

// The numbers that a kind reads, in this order, which is that of an update function's inputs:
//   constant   warmup, start_factor            one-cycle  steps, pct_start, div_factor, final_div_factor
//   step       warmup, start_factor, step_size, gamma
//   linear, cosine                             warmup, start_factor, steps, final_rate
std::span<double LearningRateSchedule::*const> numbersOf(LearningRateSchedule::Kind kind);
// As the inputs are called: "Warmup", "StartFactor", ...
std::string_view numberName(double LearningRateSchedule::*number);

// The rate of step 1, 2, ... : the formula above, in double.
double scheduledRate(const LearningRateSchedule& schedule, double learning_rate, int64_t step);

}  // namespace pipeshard
