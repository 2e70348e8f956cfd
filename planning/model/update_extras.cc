#include "planning/model/update_extras.h"

#include <cmath>

#include <fmt/format.h>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

LossScaling lossScaling(const GivenOptions& given) {
  if (given.precision != DataType::kFloat16) {
    if (given.loss_scale == 0 && given.loss_scale_steps == 0) return {};
    fail(ErrorCode::kUsage,
         "{} goes with --precision float16: {} holds what gradients become without a scale",
         given.loss_scale != 0 ? "--loss-scale" : "--loss-scale-steps", dataTypeName(given.precision));
  }
  LossScaling scaling{given.loss_scale != 0 ? given.loss_scale : kFirstLossScale, 0};
  const double steps = given.loss_scale_steps != 0 ? given.loss_scale_steps : kLossScaleSteps;
  int exponent = 0;
  if (std::frexp(scaling.first, &exponent) != 0.5 || scaling.first < 1 ||
      scaling.first > LossScaling::kMost) {
    fail(ErrorCode::kUsage,
         "--loss-scale {}: expected a power of two from 1 to {}, so that nothing is rounded", scaling.first,
         LossScaling::kMost);
  }
  if (steps != std::floor(steps) || steps > 1e15)
    fail(ErrorCode::kUsage, "--loss-scale-steps {}: expected a whole number of steps", steps);
  scaling.steps = static_cast<int64_t>(steps);
  return scaling;
}

}  // namespace

UpdateExtras updateExtras(const GivenOptions& given) {
  if (given.clip_value != 0 && given.clip_norm != 0 && !std::isinf(given.clip_norm)) {
    fail(ErrorCode::kUsage,
         "--clip-norm {} and --clip-value {}: gradients are clipped in one way; give one of them",
         given.clip_norm, given.clip_value);
  }
  if (given.ema >= 1) fail(ErrorCode::kUsage, "--ema {}: a decay is below 1, as 0.999 is", given.ema);
  return {given.clip_norm, given.clip_value, given.ema, lossScaling(given)};
}

void noteLossScaling(const LossScaling& scaling, const OptimizerSpec& optimizer,
                     std::vector<std::string>& notes) {
  if (scaling.first == 0 || optimizer.kind == OptimizerSpec::Kind::kNone) return;
  notes.push_back(
      fmt::format("the gradient of the loss is scaled: by {:g} at first, half as much behind a step whose "
                  "gradients are not finite, which is left out, twice as much behind {} finite ones",
                  scaling.first, scaling.steps));
}

}  // namespace pipeshard
