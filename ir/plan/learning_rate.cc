#include "ir/plan/learning_rate.h"

#include "ir/base/error.h"
#include "ir/plan/learning_rate_formula.h"

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
  return rateByFormula(schedule, learning_rate, step);
}

}  // namespace pipeshard
