// The formula of a learning rate's schedule (learning_rate.h), for the host and for devices that compute it
// themselves.
#pragma once

#include <cmath>
#include <cstdint>

#include "ir/plan/learning_rate.h"

#ifdef __CUDACC__
#define PIPESHARD_ANY_DEVICE __host__ __device__
#else
#define PIPESHARD_ANY_DEVICE
#endif

namespace pipeshard {

// From `start` to `end` along half a cosine.
PIPESHARD_ANY_DEVICE inline double annealed(double start, double end, double share) {
#ifdef __CUDA_ARCH__  // CUDA's cos has a frame on the stack, for arguments that are large
  const double cosine = ::cospi(share);
#else
  const double cosine = std::cos(M_PI * share);
#endif
  return end + (start - end) / 2 * (1 + cosine);
}

PIPESHARD_ANY_DEVICE inline double oneCycle(const LearningRateSchedule& schedule, double highest, double n) {
  const double peak = schedule.pct_start * schedule.steps - 1;
  const double first = highest / schedule.div_factor;
  if (n <= peak) return annealed(first, highest, n / peak);
  const double share = std::fmin(1.0, (n - peak) / (schedule.steps - 1 - peak));
  return annealed(highest, first / schedule.final_div_factor, share);
}

// The rate of step 1, 2, ...
PIPESHARD_ANY_DEVICE inline double rateByFormula(const LearningRateSchedule& schedule, double learning_rate,
                                                 int64_t step) {
  const auto n = static_cast<double>(step - 1);
  if (schedule.kind == LearningRateSchedule::Kind::kOneCycle) return oneCycle(schedule, learning_rate, n);
  if (n < schedule.warmup)
    return learning_rate * (schedule.start_factor + (1 - schedule.start_factor) * n / schedule.warmup);
  const double later = n - schedule.warmup;
  const double share = std::fmin(1.0, later / (schedule.steps - schedule.warmup));
  const double last = schedule.final_rate;
  switch (schedule.kind) {
    case LearningRateSchedule::Kind::kLinear: return last + (learning_rate - last) * (1 - share);
    case LearningRateSchedule::Kind::kCosine: return annealed(learning_rate, last, share);
    case LearningRateSchedule::Kind::kStep:
      return learning_rate * std::pow(schedule.gamma, std::floor(later / schedule.step_size));
    default: return learning_rate;
  }
}

}  // namespace pipeshard
