// Softmax, LogSoftmax, LayerNormalization: gradients with structure, as functions of the pipeshard domain.
// LpNormalization.
#include <algorithm>

#include "onnx_import/autodiff/gradient_rules.h"

namespace pipeshard {
namespace {

// A row of minus infinities is no number. Where the file puts zeros in for that (a safe softmax), the row's
// gradient is 0, too.
void softmaxLike(GradientContext& c, std::string_view function) {
  c.requireVersion(13);
  ValueId y = c.output();
  if (c.isReadBy({"IsNaN"})) {
    const ValueId hidden = c.op("IsNaN", {y}, DataType::kBool, c.shape(y));
    y = c.where(hidden, c.scalar(c.type(y), 0), y);
  }
  c.give(0, c.function(function, "", {c.outputGradient(), y}, c.type(y), c.shape(y),
                       {{"axis", c.node().intAttribute("axis", -1)}}));
}

void softmaxGradient(GradientContext& c) { softmaxLike(c, "SoftmaxGrad"); }
void logSoftmaxGradient(GradientContext& c) { softmaxLike(c, "LogSoftmaxGrad"); }

struct Statistics {
  ValueId mean;
  ValueId inverse_deviation;
};

// Mean and InvStdDev, of x's shape with 1 from axis `first` on. In float32 (and bfloat16, beside which they
// are float32's) they are outputs of the forward node. In float64 they cannot be (ONNX allows no such output
// type, and float32 would ruin the digits), so they are computed again.
Statistics statistics(GradientContext& c, ValueId x, size_t first) {
  Shape outer = c.shape(x);
  std::fill(outer.begin() + first, outer.end(), 1);
  const DataType type = c.statisticsType(x);
  if (type == DataType::kFloat32)
    return {c.ensureOutput(1, "mean", type, outer), c.ensureOutput(2, "inv_std_dev", type, outer)};
  std::vector<int64_t> axes;
  for (size_t i = first; i < outer.size(); ++i) axes.push_back(i);
  const double share =
      static_cast<double>(elementCount(outer)) / static_cast<double>(elementCount(c.shape(x)));
  const ValueId mean = c.scale(c.reduceSum(x, axes, true), share);
  const ValueId centred = c.binary("Sub", x, mean);
  const ValueId variance = c.scale(c.reduceSum(c.binary("Mul", centred, centred), axes, true), share);
  const ValueId deviation = c.unary("Sqrt", c.addNumber(variance, c.node().floatAttribute("epsilon", 1e-5f)));
  return {mean, c.unary("Reciprocal", deviation)};
}

void layerNormalizationGradient(GradientContext& c) {
  if (c.outputGradient(1).valid() || c.outputGradient(2).valid())
    c.refuse("the loss depends on its output Mean or InvStdDev");
  const ValueId x = c.input(0);
  const ValueId dy = c.outputGradient();
  const DataType type = c.type(x);
  const Shape shape = c.shape(x);
  const int64_t axis = c.node().intAttribute("axis", -1);
  const size_t first = normalizeAxis(axis, shape.size());
  const Shape inner(shape.begin() + first, shape.end());
  const auto [mean, deviation] = statistics(c, x, first);
  if (c.needs(0)) {
    const ValueId scale = c.expand(c.input(1), inner);
    c.give(0, c.function("LayerNormalizationInputGrad", "", {dy, x, scale, mean, deviation}, type, shape,
                         {{"axis", axis}}));
  }
  if (!c.needs(1) && !c.needs(2)) return;
  const auto wanted = [&](size_t position) {
    return c.needs(position) ? std::optional<Shape>(inner) : std::nullopt;
  };
  const std::vector<ValueId> gradients =
      c.functionOutputs("LayerNormalizationWeightGrad", "", {dy, x, mean, deviation},
                        c.gradientType(c.needs(1) ? 1 : 2), {wanted(1), wanted(2)}, {{"axis", axis}});
  for (size_t i = 1; i <= 2; ++i) {
    if (c.needs(i)) c.give(i, c.reduceTo(gradients[i - 1], c.shape(c.input(i))));
  }
}

void rmsNormalizationGradient(GradientContext& c) {
  if (c.outputGradient(1).valid()) c.refuse("the loss depends on its output InvRms");
  const ValueId x = c.input(0), scale = c.input(1), dy = c.outputGradient();
  const DataType type = c.type(x);
  Shape statistics = c.shape(x);
  statistics.back() = 1;
  const ValueId inverse = c.ensureOutput(1, "inv_rms", c.statisticsType(x), statistics);
  if (c.needs(0))
    c.give(0, c.function("RMSNormalizationInputGrad", "", {dy, x, scale, inverse}, type, c.shape(x)));
  if (c.needs(1))
    c.give(1,
           c.function("RMSNormalizationWeightGrad", "", {dy, x, inverse}, c.gradientType(1), c.shape(scale)));
}

// Y = X / norm, with s = sum(dY Y) along the axis:
//   p = 2:  dX = (dY - s Y) / norm
//   p = 1:  dX = (dY - s sign(X)) / norm
// NaN where the norm is 0, as Y.
void lpNormalizationGradient(GradientContext& c) {
  const ValueId x = c.input(0);
  const ValueId y = c.output();
  const ValueId dy = c.outputGradient();
  const int64_t p = c.node().intAttribute("p", 2);
  if (p != 1 && p != 2) c.refuse("its attribute p is neither 1 nor 2");
  const std::vector<int64_t> axes = {normalizeAxis(c.node().intAttribute("axis", -1), c.shape(x).size())};
  const ValueId norm = p == 1 ? c.reduceSum(c.unary("Abs", x), axes, true)
                              : c.unary("Sqrt", c.reduceSum(c.binary("Mul", x, x), axes, true));
  const ValueId sum = c.reduceSum(c.binary("Mul", dy, y), axes, true);
  const ValueId along = c.binary("Mul", p == 1 ? c.unary("Sign", x) : y, sum);
  c.give(0, c.binary("Div", c.binary("Sub", dy, along), norm));
}

}  // namespace

void addNormalizationRules(GradientRules& rules) {
  rules[{"", "Softmax"}] = {softmaxGradient};
  rules[{"", "LogSoftmax"}] = {logSoftmaxGradient};
  rules[{"", "LpNormalization"}] = {lpNormalizationGradient};
  rules[{"", "LayerNormalization"}] = {layerNormalizationGradient};
  rules[{std::string(kPipeshardDomain), "RMSNormalization"}] = {rmsNormalizationGradient};
}

}  // namespace pipeshard
