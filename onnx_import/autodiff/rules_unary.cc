// Elementwise operators on one tensor.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ir/graph/exporter_marks.h"
#include "onnx_import/autodiff/gradient_rules.h"
#include "onnx_import/autodiff/root_forms.h"

namespace pipeshard {
namespace {

void pass(GradientContext& c) { c.give(0, c.outputGradient()); }
void negGradient(GradientContext& c) { c.give(0, c.scale(c.outputGradient(), -1)); }
// std(x), as the exporter takes it apart: sqrt(%var), or sqrt(%broadcast_in_dim) where axes are kept.
bool isDeviation(const Node& node) {
  const ExportedCall call = exportedCall(node);
  return isCallOf(call, "aten.sqrt.") && call.arguments.size() == 1 &&
         (call.arguments[0].starts_with("var") || call.arguments[0].starts_with("broadcast_in_dim"));
}

// dY / 2Y. That of a standard deviation is 0 where all are equal, as PyTorch has it: not infinity times 0.
void sqrtGradient(GradientContext& c) {
  ValueId root = c.output();
  if (isDeviation(c.node()) || isRootOfDeviation(c) || isRootOfCosine(c) || isRootOfProducts(c)) {
    const ValueId zero = c.scalar(c.type(root), 0);
    const ValueId infinity = c.scalar(c.type(root), std::numeric_limits<double>::infinity());
    root = c.where(c.compare("Equal", root, zero), infinity, root);
  }
  c.give(0, c.binary("Div", c.scale(c.outputGradient(), 0.5), root));
}
void expGradient(GradientContext& c) { c.give(0, c.binary("Mul", c.outputGradient(), c.output())); }
// dY / X. Where a bound hides log(0), dY is 0, and so is this: not 0 / 0. The bound of PyTorch's binary
// cross-entropy is -100, and its gradient has at least 1e-12 below.
void logGradient(GradientContext& c) {
  ValueId x = c.input(0);
  if (c.isReadBy({"Max", "Clip"})) {
    double least = c.type(x) == DataType::kFloat16   ? std::ldexp(1.0, -24)
                   : c.type(x) == DataType::kFloat64 ? std::numeric_limits<double>::min()
                                                     : std::numeric_limits<float>::min();
    if (c.boundBelow() == -100.0) least = std::max(least, 1e-12);
    x = c.binary("Max", x, c.scalar(c.type(x), least));
  }
  c.give(0, c.binary("Div", c.outputGradient(), x));
}
void sinGradient(GradientContext& c) {
  c.give(0, c.binary("Mul", c.outputGradient(), c.unary("Cos", c.input(0))));
}
void absGradient(GradientContext& c) {
  c.give(0, c.binary("Mul", c.outputGradient(), c.unary("Sign", c.input(0))));
}

void cosGradient(GradientContext& c) {
  c.give(0, c.binary("Mul", c.scale(c.outputGradient(), -1), c.unary("Sin", c.input(0))));
}

// dY (1 + Y^2)
void tanGradient(GradientContext& c) {
  const ValueId y = c.output();
  c.give(0, c.binary("Mul", c.outputGradient(), c.addNumber(c.binary("Mul", y, y), 1)));
}

void sinhGradient(GradientContext& c) {
  c.give(0, c.binary("Mul", c.outputGradient(), c.unary("Cosh", c.input(0))));
}
void coshGradient(GradientContext& c) {
  c.give(0, c.binary("Mul", c.outputGradient(), c.unary("Sinh", c.input(0))));
}

// 1 - X^2
ValueId oneMinusSquare(GradientContext& c) {
  const ValueId x = c.input(0);
  return c.binary("Sub", c.scalar(c.type(x), 1), c.binary("Mul", x, x));
}

// X^2 + number
ValueId squarePlus(GradientContext& c, double number) {
  const ValueId x = c.input(0);
  return c.addNumber(c.binary("Mul", x, x), number);
}

// The slopes of arcsine and arccosine are infinite at 1 and -1, of Atanh as well, and of Acosh at 1: nothing
// is put in their place.
void asinGradient(GradientContext& c) {
  c.give(0, c.binary("Div", c.outputGradient(), c.unary("Sqrt", oneMinusSquare(c))));
}
void acosGradient(GradientContext& c) {
  c.give(0, c.binary("Div", c.scale(c.outputGradient(), -1), c.unary("Sqrt", oneMinusSquare(c))));
}
void atanGradient(GradientContext& c) { c.give(0, c.binary("Div", c.outputGradient(), squarePlus(c, 1))); }
void asinhGradient(GradientContext& c) {
  c.give(0, c.binary("Div", c.outputGradient(), c.unary("Sqrt", squarePlus(c, 1))));
}
void acoshGradient(GradientContext& c) {
  c.give(0, c.binary("Div", c.outputGradient(), c.unary("Sqrt", squarePlus(c, -1))));
}
void atanhGradient(GradientContext& c) { c.give(0, c.binary("Div", c.outputGradient(), oneMinusSquare(c))); }

// -dY Y^2
void reciprocalGradient(GradientContext& c) {
  c.give(0, c.binary("Mul", c.scale(c.outputGradient(), -1), c.binary("Mul", c.output(), c.output())));
}

// dY 2/sqrt(pi) exp(-X^2)
void erfGradient(GradientContext& c) {
  const ValueId x = c.input(0);
  const ValueId bell = c.unary("Exp", c.scale(c.binary("Mul", x, x), -1));
  c.give(0, c.binary("Mul", c.outputGradient(), c.scale(bell, 2 / std::sqrt(M_PI))));
}

// dY (1 - Y^2)
void tanhGradient(GradientContext& c) {
  const ValueId y = c.output();
  const ValueId slope = c.binary("Sub", c.scalar(c.type(y), 1), c.binary("Mul", y, y));
  c.give(0, c.binary("Mul", c.outputGradient(), slope));
}

// dY Y (1 - Y)
void sigmoidGradient(GradientContext& c) {
  const ValueId y = c.output();
  const ValueId slope = c.binary("Mul", y, c.binary("Sub", c.scalar(c.type(y), 1), y));
  c.give(0, c.binary("Mul", c.outputGradient(), slope));
}

void reluGradient(GradientContext& c) {
  const ValueId y = c.output();
  c.give(0, c.function("ReluGrad", "", {c.outputGradient(), y}, c.type(y), c.shape(y)));
}

// ONNX's Gelu, or ours, which may bring numbers of its own.
void geluGradient(GradientContext& c) {
  const ValueId x = c.input(0);
  const std::string approximate = c.node().stringAttribute("approximate", "none");
  const std::string overload = c.node().domain == kPipeshardDomain ? c.node().overload
                               : approximate == "tanh"             ? "tanh"
                                                                   : "";
  std::map<std::string, Attribute> attributes = c.node().attributes;
  attributes["approximate"] = approximate;
  c.give(0, c.function("GeluGrad", overload, {c.outputGradient(), x}, c.type(x), c.shape(x), attributes));
}

void swishGradient(GradientContext& c) {
  const ValueId x = c.input(0);
  c.give(0, c.function("SwishGrad", "", {c.outputGradient(), x}, c.type(x), c.shape(x),
                       {{"alpha", c.node().floatAttribute("alpha", 1)}}));
}

void softplusGradient(GradientContext& c) {
  c.give(0, c.binary("Mul", c.outputGradient(), c.unary("Sigmoid", c.input(0))));
}

void mishGradient(GradientContext& c) {
  const ValueId x = c.input(0);
  c.give(0, c.function("MishGrad", "", {c.outputGradient(), x}, c.type(x), c.shape(x)));
}

// The slope on the negative side is alpha.
void leakyReluGradient(GradientContext& c) {
  const ValueId dy = c.outputGradient();
  const ValueId positive = c.compare("Greater", c.input(0), c.scalar(c.type(dy), 0));
  c.give(0, c.where(positive, dy, c.scale(dy, c.node().floatAttribute("alpha", 0.01f))));
}

// On the negative side Y = alpha (exp(X) - 1), so the slope is Y + alpha.
void eluGradient(GradientContext& c) {
  const ValueId dy = c.outputGradient();
  const ValueId positive = c.compare("Greater", c.input(0), c.scalar(c.type(dy), 0));
  const ValueId slope = c.addNumber(c.output(), c.node().floatAttribute("alpha", 1));
  c.give(0, c.where(positive, dy, c.binary("Mul", dy, slope)));
}

void castGradient(GradientContext& c) { c.give(0, c.cast(c.outputGradient(), c.type(c.input(0)))); }

// Without training_mode a Dropout passes its input on.
void dropoutGradient(GradientContext& c) {
  const auto training = c.hasInput(2) ? c.constantNumber(c.input(2)) : 0.0;
  if (training != 0.0)
    c.refuse("it drops at random (training_mode); export the model in evaluation mode, or without dropout");
  pass(c);
}

}  // namespace

void addUnaryRules(GradientRules& rules) {
  rules[{"", "Identity"}] = {pass};
  rules[{"", "Neg"}] = {negGradient};
  rules[{"", "Sqrt"}] = {sqrtGradient};
  rules[{"", "Exp"}] = {expGradient};
  rules[{"", "Log"}] = {logGradient};
  rules[{"", "Reciprocal"}] = {reciprocalGradient};
  rules[{"", "Abs"}] = {absGradient};
  rules[{"", "Sin"}] = {sinGradient};
  rules[{"", "Cos"}] = {cosGradient};
  rules[{"", "Tan"}] = {tanGradient};
  rules[{"", "Asin"}] = {asinGradient};
  rules[{"", "Acos"}] = {acosGradient};
  rules[{"", "Atan"}] = {atanGradient};
  rules[{"", "Sinh"}] = {sinhGradient};
  rules[{"", "Cosh"}] = {coshGradient};
  rules[{"", "Asinh"}] = {asinhGradient};
  rules[{"", "Acosh"}] = {acoshGradient};
  rules[{"", "Atanh"}] = {atanhGradient};
  rules[{"", "Erf"}] = {erfGradient};
  rules[{"", "Tanh"}] = {tanhGradient};
  rules[{"", "Sigmoid"}] = {sigmoidGradient};
  rules[{"", "Relu"}] = {reluGradient};
  rules[{"", "Gelu"}] = {geluGradient};
  rules[{std::string(kPipeshardDomain), "Gelu"}] = {geluGradient};
  rules[{std::string(kPipeshardDomain), "Swish"}] = {swishGradient};
  rules[{"", "Softplus"}] = {softplusGradient};
  rules[{"", "Mish"}] = {mishGradient};
  rules[{"", "LeakyRelu"}] = {leakyReluGradient};
  rules[{"", "Elu"}] = {eluGradient};
  rules[{"", "Cast"}] = {castGradient};
  rules[{"", "CastLike"}] = {castGradient, kAllButFirst};
  rules[{"", "Dropout"}] = {dropoutGradient, kAllButFirst};
}

}  // namespace pipeshard
