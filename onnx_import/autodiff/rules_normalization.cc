// Softmax, LogSoftmax, LayerNormalization: gradients with structure, as functions of the pipeshard domain.
#include <algorithm>

#include "onnx_import/autodiff/gradient_rules.h"

namespace pipeshard {
namespace {

void softmaxLike(GradientContext& c, std::string_view function) {
  c.requireVersion(13);
  const ValueId y = c.output();
  c.give(0, c.function(function, "", {c.outputGradient(), y}, c.type(y), c.shape(y), {{"axis", c.node().intAttribute("axis", -1)}}));
}

void softmaxGradient(GradientContext& c) { softmaxLike(c, "SoftmaxGrad"); }
void logSoftmaxGradient(GradientContext& c) { softmaxLike(c, "LogSoftmaxGrad"); }

void layerNormalizationGradient(GradientContext& c) {
  if (c.outputGradient(1).valid() || c.outputGradient(2).valid()) c.refuse("the loss depends on its output Mean or InvStdDev");
  const ValueId x = c.input(0);
  const ValueId dy = c.outputGradient();
  const DataType type = c.type(x);
  const int64_t axis = c.node().intAttribute("axis", -1);
  Shape outer = c.shape(x);
  const size_t first = static_cast<size_t>(normalizeAxis(axis, outer.size()));
  const Shape inner(outer.begin() + static_cast<std::ptrdiff_t>(first), outer.end());
  std::fill(outer.begin() + static_cast<std::ptrdiff_t>(first), outer.end(), 1);
  // Statistics of float64 data in float32 would ruin its digits; exporters write stash_type 1 whatever the type.
  if (type == DataType::kFloat64) c.setForwardAttribute("stash_type", static_cast<int64_t>(DataType::kFloat64));
  const ValueId mean = c.ensureOutput(1, "mean", type, outer);
  const ValueId deviation = c.ensureOutput(2, "inv_std_dev", type, outer);
  if (c.needs(0)) {
    const ValueId scale = c.expand(c.input(1), inner);
    c.give(0, c.function("LayerNormalizationInputGrad", "", {dy, x, scale, mean, deviation}, type, c.shape(x), {{"axis", axis}}));
  }
  if (!c.needs(1) && !c.needs(2)) return;
  const auto wanted = [&](size_t position) { return c.needs(position) ? std::optional<Shape>(inner) : std::nullopt; };
  const std::vector<ValueId> gradients =
      c.functionOutputs("LayerNormalizationWeightGrad", {dy, x, mean, deviation}, type, {wanted(1), wanted(2)}, {{"axis", axis}});
  for (size_t i = 1; i <= 2; ++i) {
    if (c.needs(i)) c.give(i, c.reduceTo(gradients[i - 1], c.shape(c.input(i))));
  }
}

}  // namespace

void addNormalizationRules(GradientRules& rules) {
  rules[{"", "Softmax"}] = {softmaxGradient};
  rules[{"", "LogSoftmax"}] = {logSoftmaxGradient};
  rules[{"", "LayerNormalization"}] = {layerNormalizationGradient};
}

}  // namespace pipeshard
