#include "ir/plan/learning_rate.h"

#include <algorithm>
#include <cmath>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

using Schedule = LearningRateSchedule;
using Number = double Schedule::*;

constexpr Number kConstantNumbers[] = {&Schedule::warmup, &Schedule::start_factor};
constexpr Number kAnnealedNumbers[] = {&Schedule::warmup, &Schedule::start_factor, &Schedule::steps,
                                       &Schedule::final_rate};
constexpr Number kStepNumbers[] = {&Schedule::warmup, &Schedule::start_factor, &Schedule::step_size,
                                   &Schedule::gamma};
constexpr Number kOneCycleNumbers[] = {&Schedule::steps, &Schedule::pct_start, &Schedule::div_factor,
                                       &Schedule::final_div_factor};

// From `start` to `end` along half a cosine.
double annealed(double start, double end, double share) {
  return end + (start - end) / 2 * (1 + std::cos(M_PI * share));
}

double oneCycle(const Schedule& schedule, double highest, double n) {
  const double peak = schedule.pct_start * schedule.steps - 1;
  const double first = highest / schedule.div_factor;
  if (n <= peak) return annealed(first, highest, n / peak);
  const double share = std::min(1.0, (n - peak) / (schedule.steps - 1 - peak));
  return annealed(highest, first / schedule.final_div_factor, share);
}

}  // namespace

std::span<const Number> numbersOf(Schedule::Kind kind) {
  switch (kind) {
    case Schedule::Kind::kConstant: return kConstantNumbers;
    case Schedule::Kind::kLinear:
    case Schedule::Kind::kCosine: return kAnnealedNumbers;
    case Schedule::Kind::kOneCycle: return kOneCycleNumbers;
    case Schedule::Kind::kStep: return kStepNumbers;
  }
  fail(ErrorCode::kInternal, "learning rate schedule {}", static_cast<int>(kind));
}

std::string_view numberName(Number number) {
  if (number == &Schedule::warmup) return "Warmup";
  if (number == &Schedule::start_factor) return "StartFactor";
  if (number == &Schedule::steps) return "Steps";
  if (number == &Schedule::final_rate) return "FinalRate";
  if (number == &Schedule::step_size) return "StepSize";
  if (number == &Schedule::gamma) return "Gamma";
  if (number == &Schedule::pct_start) return "PctStart";
  if (number == &Schedule::div_factor) return "DivFactor";
  return "FinalDivFactor";
}

double scheduledRate(const Schedule& schedule, double learning_rate, int64_t step) {
  const auto n = static_cast<double>(step - 1);
  if (schedule.kind == Schedule::Kind::kOneCycle) return oneCycle(schedule, learning_rate, n);
  if (n < schedule.warmup)
    return learning_rate * (schedule.start_factor + (1 - schedule.start_factor) * n / schedule.warmup);
  const double later = n - schedule.warmup;
  const auto share = [&] { return std::min(1.0, later / (schedule.steps - schedule.warmup)); };
  const double last = schedule.final_rate;
  switch (schedule.kind) {
    case Schedule::Kind::kLinear: return last + (learning_rate - last) * (1 - share());
    case Schedule::Kind::kCosine: return annealed(learning_rate, last, share());
    case Schedule::Kind::kStep:
      return learning_rate * std::pow(schedule.gamma, std::floor(later / schedule.step_size));
    default: return learning_rate;
  }
}

}  // namespace pipeshard
