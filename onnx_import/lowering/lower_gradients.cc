// Gradient operators of ONNX Runtime's training files (domain com.microsoft, and ONNX's own in old files):
// of activations, softmax, losses and normalisations. They are found in files that have a backward pass.
#include <cmath>
#include <numbers>
#include <numeric>
#include <vector>

#include "ir/base/error.h"
#include "onnx_import/lowering/lowering_rules.h"

namespace pipeshard {
namespace {

ValueId scaledBy(LoweringContext& c, ValueId x, double number) {
  return number == 1 ? x : c.binary("Mul", x, c.scalar(c.type(x), number));
}

ValueId oneLess(LoweringContext& c, ValueId x) { return c.binary("Sub", c.scalar(c.type(x), 1), x); }

// ---- activations: inputs dY, and Y or X

// dY where input 1 is positive (X and Y are alike there), `below` times dY elsewhere.
void lowerSplitGradient(LoweringContext& c, double below) {
  const ValueId dy = c.input(0);
  const ValueId zero = c.scalar(c.type(dy), 0);
  c.give(0, c.where(c.compare("Greater", c.input(1), zero), dy, below == 0 ? zero : scaledBy(c, dy, below)));
}
void lowerReluGradient(LoweringContext& c) { lowerSplitGradient(c, 0); }
void lowerLeakyReluGradient(LoweringContext& c) {
  lowerSplitGradient(c, c.node().floatAttribute("alpha", 0.01F));
}

// dY * Y * (1 - Y)
void lowerSigmoidGradient(LoweringContext& c) {
  const ValueId y = c.input(1);
  c.give(0, c.binary("Mul", c.input(0), c.binary("Mul", y, oneLess(c, y))));
}

// dY * (1 - Y * Y)
void lowerTanhGradient(LoweringContext& c) {
  const ValueId y = c.input(1);
  c.give(0, c.binary("Mul", c.input(0), oneLess(c, c.binary("Mul", y, y))));
}

// y = x s, s = sigmoid(a x): dY * s * (1 + a x (1 - s))
void lowerQuickGeluGradient(LoweringContext& c) {
  const ValueId ax = scaledBy(c, c.input(1), c.node().floatAttribute("alpha", 1.702F));
  const ValueId s = c.unary("Sigmoid", ax);
  const ValueId slope = c.binary("Mul", s, c.addNumber(c.binary("Mul", ax, oneLess(c, s)), 1));
  c.give(0, c.binary("Mul", c.input(0), slope));
}

// X, or X plus the bias that is input 2.
ValueId preActivation(LoweringContext& c) {
  return c.hasInput(2) ? c.binary("Add", c.input(1), c.input(2)) : c.input(1);
}

// dY * (P(X <= x) + x p(x)) of a standard normal X
void lowerGeluGradient(LoweringContext& c) {
  const ValueId x = preActivation(c);
  const ValueId erf = c.unary("Erf", scaledBy(c, x, 1 / std::numbers::sqrt2));
  const ValueId below = scaledBy(c, c.addNumber(erf, 1), 0.5);
  const ValueId bell = c.unary("Exp", scaledBy(c, c.binary("Mul", x, x), -0.5));
  const double height = std::numbers::inv_sqrtpi / std::numbers::sqrt2;
  const ValueId slope = c.binary("Add", below, c.binary("Mul", x, scaledBy(c, bell, height)));
  c.give(0, c.binary("Mul", c.input(0), slope));
}

// y = x (1 + t) / 2, t = tanh(u), u = a (x + b x^3): dY * ((1 + t) / 2 + x (1 - t^2) a (1 + 3 b x^2) / 2)
void lowerFastGeluGradient(LoweringContext& c) {
  constexpr double kCubic = 0.044715;
  const double a = std::sqrt(2 * std::numbers::inv_pi);
  const ValueId x = preActivation(c);
  const ValueId square = c.binary("Mul", x, x);
  const ValueId u = scaledBy(c, c.binary("Mul", x, c.addNumber(scaledBy(c, square, kCubic), 1)), a);
  const ValueId t = c.unary("Tanh", u);
  const ValueId inner = scaledBy(c, c.addNumber(scaledBy(c, square, 3 * kCubic), 1), a / 2);
  const ValueId bend = c.binary("Mul", c.binary("Mul", x, oneLess(c, c.binary("Mul", t, t))), inner);
  const ValueId slope = c.binary("Add", scaledBy(c, c.addNumber(t, 1), 0.5), bend);
  c.give(0, c.binary("Mul", c.input(0), slope));
}

// ---- softmax: inputs dY, Y. Before opset 13 it was one of all axes from `axis` on.

std::vector<int64_t> softmaxAxes(const LoweringContext& c, bool single) {
  const int64_t rank = c.rank(c.input(1));
  const int64_t axis = normalizeAxis(c.node().intAttribute("axis", single ? -1 : 1), rank);
  std::vector<int64_t> axes(single ? 1 : rank - axis);
  std::iota(axes.begin(), axes.end(), axis);
  return axes;
}

// Y * (dY - sum(Y * dY))
void lowerSoftmaxGradient(LoweringContext& c, bool single) {
  const ValueId dy = c.input(0), y = c.input(1);
  const ValueId sum = c.reduce("ReduceSum", c.binary("Mul", y, dy), softmaxAxes(c, single));
  c.give(0, c.binary("Mul", y, c.binary("Sub", dy, sum)));
}

// Y = log softmax: dY - exp(Y) * sum(dY)
void lowerLogSoftmaxGradient(LoweringContext& c, bool single) {
  const ValueId dy = c.input(0);
  const ValueId sum = c.reduce("ReduceSum", dy, softmaxAxes(c, single));
  c.give(0, c.binary("Sub", dy, c.binary("Mul", c.unary("Exp", c.input(1)), sum)));
}

void lowerSoftmaxGradientFrom(LoweringContext& c) { lowerSoftmaxGradient(c, false); }
void lowerSoftmaxGradientOf(LoweringContext& c) { lowerSoftmaxGradient(c, true); }
void lowerLogSoftmaxGradientFrom(LoweringContext& c) { lowerLogSoftmaxGradient(c, false); }
void lowerLogSoftmaxGradientOf(LoweringContext& c) { lowerLogSoftmaxGradient(c, true); }

// ---- losses

// The label that does not count, or an invalid id: an attribute, or input 4 of the Internal forms.
ValueId ignoredLabel(LoweringContext& c, bool internal) {
  const DataType type = c.type(c.input(2));
  if (internal && c.hasInput(4)) return c.cast(c.input(4), type);
  if (internal || !c.node().hasAttribute("ignore_index")) return {};
  return c.scalar(type, static_cast<double>(c.node().intAttribute("ignore_index", 0)));
}

// Inputs dY, log probabilities [N, C, ...], labels [N, ...], weights of classes (optional):
//   (softmax - onehot(label)) * weight[label] * dY, for a mean divided by the sum of these weights
void lowerCrossEntropyGradient(LoweringContext& c, bool internal) {
  const ValueId dy = c.input(0), log_probabilities = c.input(1), labels = c.input(2);
  const DataType type = c.type(log_probabilities);
  const Shape scores = c.shape(log_probabilities);
  const std::string reduction = c.node().stringAttribute("reduction", "mean");
  if (internal && c.hasInput(5)) c.refuse("it has a bias");
  const ValueId ignored = ignoredLabel(c, internal);
  const ValueId is_ignored = ignored.valid() ? c.compare("Equal", labels, ignored) : ValueId();
  const ValueId label = ignored.valid() ? c.where(is_ignored, c.scalar(c.type(labels), 0), labels) : labels;
  ValueId weight = c.expand(c.scalar(type, 1), c.shape(labels));
  if (c.hasInput(3)) weight = c.op("Gather", {c.input(3), label}, type, c.shape(labels));
  if (ignored.valid()) weight = c.where(is_ignored, c.scalar(type, 0), weight);

  std::vector<int64_t> all(c.rank(labels));
  std::iota(all.begin(), all.end(), 0);
  ValueId share = c.binary("Mul", weight, dy);
  if (reduction == "mean") share = c.binary("Div", share, c.reduce("ReduceSum", weight, all));

  c.requireTable({scores[1]});
  std::vector<double> classes(scores[1]);
  std::iota(classes.begin(), classes.end(), 0);
  Shape along(scores.size(), 1);
  along[1] = scores[1];
  const ValueId class_numbers = c.numbers(c.type(labels), along, classes);
  const ValueId is_label = c.compare("Equal", c.unsqueeze(label, {1}), class_numbers);
  const ValueId difference = c.binary("Sub", c.unary("Exp", log_probabilities), c.cast(is_label, type));
  c.give(0, c.binary("Mul", difference, c.unsqueeze(share, {1})));
}
void lowerLossGradient(LoweringContext& c) { lowerCrossEntropyGradient(c, false); }
void lowerInternalLossGradient(LoweringContext& c) { lowerCrossEntropyGradient(c, true); }

// The forward operator whose ignored label is input 3.
void lowerInternalLoss(LoweringContext& c) {
  OpEmitter::Attributes attributes{{"reduction", c.node().stringAttribute("reduction", "mean")}};
  if (const auto ignored = c.constantIntegers(3)) attributes.emplace("ignore_index", ignored->at(0));
  if (c.node().intAttribute("output_type", 0) != 0) c.refuse("its outputs have another type");
  const ValueId scores = c.input(0);
  const DataType type = c.type(scores);
  const bool none = std::get<std::string>(attributes.at("reduction")) == "none";
  std::vector<ValueId> inputs{scores, c.input(1)};
  if (c.hasInput(2)) inputs.push_back(c.input(2));
  if (c.hasOutput(0))
    c.give(0,
           c.op("SoftmaxCrossEntropyLoss", inputs, type, none ? c.shape(c.input(1)) : Shape{}, attributes));
  if (c.hasOutput(1)) c.give(1, c.op("LogSoftmax", {scores}, type, c.shape(scores), {{"axis", int64_t{1}}}));
}

// ---- normalisations: x' = (X - mean) * inverse deviation, Y = x' * scale + bias over the axes from `axis`
// on

struct RowGradient {
  ValueId normalised;  // x'
  ValueId scale;
  ValueId inverse_deviation;  // 1 in the normalised axes
  bool centred = true;        // Y follows from X - mean
};

// dX = inverse deviation * (g - mean(g) - x' * mean(g * x')) with g = dY * scale; then scale's, and the
// bias's.
void giveRowGradients(LoweringContext& c, const RowGradient& of) {
  const ValueId dy = c.input(0);
  const int64_t rank = c.rank(dy);
  std::vector<int64_t> outer(normalizeAxis(c.node().intAttribute("axis", -1), rank));
  std::iota(outer.begin(), outer.end(), 0);
  std::vector<int64_t> inner(rank - std::ssize(outer));
  std::iota(inner.begin(), inner.end(), std::ssize(outer));
  const ValueId g = c.binary("Mul", dy, of.scale);
  const ValueId along = c.reduce("ReduceMean", c.binary("Mul", g, of.normalised), inner);
  ValueId rest = c.binary("Sub", g, c.binary("Mul", of.normalised, along));
  if (of.centred) rest = c.binary("Sub", rest, c.reduce("ReduceMean", g, inner));
  if (c.hasOutput(0)) c.give(0, c.binary("Mul", rest, of.inverse_deviation));
  const auto sum = [&](ValueId x) { return c.reduce("ReduceSum", x, outer, false); };
  if (c.hasOutput(1)) c.give(1, c.reshape(sum(c.binary("Mul", dy, of.normalised)), c.shape(of.scale)));
  if (c.hasOutput(2)) c.give(2, c.reshape(sum(dy), c.shape(of.scale)));
}

// dY, X, scale, mean, inverse deviation
void lowerLayerNormalizationGradient(LoweringContext& c) {
  const ValueId inverse = c.input(4);
  const ValueId x = c.binary("Mul", c.binary("Sub", c.input(1), c.input(3)), inverse);
  giveRowGradients(c, {x, c.input(2), inverse});
}

// dY, X, scale, inverse root mean square
void lowerSimplifiedNormalizationGradient(LoweringContext& c) {
  const ValueId inverse = c.input(3);
  giveRowGradients(c, {c.binary("Mul", c.input(1), inverse), c.input(2), inverse, false});
}

// dY, Y, scale, bias, inverse deviation
void lowerInvertibleNormalizationGradient(LoweringContext& c) {
  const ValueId x = c.binary("Div", c.binary("Sub", c.input(1), c.input(3)), c.input(2));
  giveRowGradients(c, {x, c.input(2), c.input(4)});
}

}  // namespace

void addGradientLowerings(LoweringRules& rules) {
  const std::map<std::string, LoweringRule::Apply> gradients = {
      {"ReluGrad", lowerReluGradient},
      {"LeakyReluGrad", lowerLeakyReluGradient},
      {"SigmoidGrad", lowerSigmoidGradient},
      {"TanhGrad", lowerTanhGradient},
      {"QuickGeluGrad", lowerQuickGeluGradient},
      {"GeluGrad", lowerGeluGradient},
      {"BiasGeluGrad_dX", lowerGeluGradient},
      {"FastGeluGrad", lowerFastGeluGradient},
      {"BiasFastGeluGrad_dX", lowerFastGeluGradient},
      {"SoftmaxGrad", lowerSoftmaxGradientFrom},
      {"SoftmaxGrad_13", lowerSoftmaxGradientOf},
      {"LogSoftmaxGrad", lowerLogSoftmaxGradientFrom},
      {"LogSoftmaxGrad_13", lowerLogSoftmaxGradientOf},
      {"SoftmaxCrossEntropyLossGrad", lowerLossGradient},
      {"SoftmaxCrossEntropyLossInternalGrad", lowerInternalLossGradient},
      {"SoftmaxCrossEntropyLossInternal", lowerInternalLoss},
      {"LayerNormalizationGrad", lowerLayerNormalizationGradient},
      {"SimplifiedLayerNormalizationGrad", lowerSimplifiedNormalizationGradient},
      {"InvertibleLayerNormalizationGrad", lowerInvertibleNormalizationGradient},
  };
  for (const auto& [op_type, apply] : gradients) {
    for (const char* domain : {"", "com.microsoft"}) rules[{domain, op_type}] = {apply, nullptr, true};
  }
}

}  // namespace pipeshard
