// Add, Sub, Mul, Div, Mod, Pow, Sum, Mean: operators on several tensors with broadcasting.
#include <limits>

#include "onnx_import/autodiff/gradient_rules.h"
#include "onnx_import/autodiff/root_forms.h"

namespace pipeshard {
namespace {

void addGradient(GradientContext& c) {
  for (size_t i = 0; i < 2; ++i) {
    if (c.needs(i)) c.giveReduced(i, c.outputGradient());
  }
}

void subGradient(GradientContext& c) {
  if (c.needs(0)) c.giveReduced(0, c.outputGradient());
  // Negating after the reduction touches fewer elements.
  if (c.needs(1)) c.give(1, c.scale(c.reducedFor(1, c.outputGradient()), -1));
}

void mulGradient(GradientContext& c) {
  for (size_t i = 0; i < 2; ++i) {
    if (c.needs(i)) c.giveReduced(i, c.multiply(c.outputGradient(), c.input(1 - i)));
  }
}

void divGradient(GradientContext& c) {
  const ValueId dy = c.outputGradient();
  const ValueId quotient = c.binary("Div", dy, c.input(1));
  if (c.needs(0)) c.giveReduced(0, quotient);
  if (c.needs(1)) c.give(1, c.scale(c.reducedFor(1, c.multiply(quotient, c.output())), -1));
}

// a - b trunc(a / b). Where a is a multiple of b the result jumps; the slope is that of the rounded quotient,
// as in PyTorch.
void modGradient(GradientContext& c) {
  if (c.node().intAttribute("fmod", 0) == 0) c.refuse("with fmod = 0 it is an operator on integers");
  const ValueId dy = c.outputGradient();
  if (c.needs(0)) c.giveReduced(0, dy);
  if (!c.needs(1)) return;
  const ValueId quotient = c.binary("Div", c.input(0), c.input(1));
  const ValueId whole =
      c.binary("Mul", c.unary("Sign", quotient), c.unary("Floor", c.unary("Abs", quotient)));
  c.give(1, c.scale(c.reducedFor(1, c.binary("Mul", dy, whole)), -1));
}

// d(a^b)/da = b a^(b-1). Small constant exponents avoid Pow, and with it 0 * inf at a = 0.
ValueId powBaseDerivative(GradientContext& c, ValueId a, ValueId b) {
  if (const auto exponent = c.constantNumber(b)) {
    if (*exponent == 2) return c.scale(a, 2);
    if (*exponent == 3) return c.scale(c.binary("Mul", a, a), 3);
    if (*exponent == 0) return c.scale(a, 0);
    // 0 where a is 0: infinity to a negative power.
    if (isRootOfDistance(c)) {
      const ValueId infinity = c.scalar(c.type(a), std::numeric_limits<double>::infinity());
      a = c.where(c.compare("Equal", a, c.scalar(c.type(a), 0)), infinity, a);
    }
    return c.scale(c.binary("Pow", a, c.scalar(c.type(a), *exponent - 1)), *exponent);
  }
  const ValueId exponent = c.cast(b, c.type(a));
  const ValueId zero = c.scalar(c.type(a), 0);
  const ValueId power = c.binary("Pow", a, c.addNumber(exponent, -1));
  return c.where(c.compare("Equal", exponent, zero), zero, c.binary("Mul", exponent, power));
}

void powGradient(GradientContext& c) {
  const ValueId a = c.input(0);
  const ValueId b = c.input(1);
  const ValueId dy = c.outputGradient();
  if (c.needs(0)) {
    if (c.constantNumber(b) == 1.0)
      c.giveReduced(0, dy);
    else
      c.giveReduced(0, c.binary("Mul", dy, powBaseDerivative(c, a, b)));
  }
  if (c.needs(1)) {
    const ValueId zero = c.scalar(c.type(a), 0);
    const ValueId log = c.where(c.compare("Equal", a, zero), zero, c.unary("Log", a));
    c.giveReduced(1, c.cast(c.binary("Mul", dy, c.binary("Mul", c.output(), log)), c.type(b)));
  }
}

void sumGradient(GradientContext& c) {
  for (size_t i = 0; i < c.inputCount(); ++i) {
    if (c.needs(i)) c.giveReduced(i, c.outputGradient());
  }
}

void meanGradient(GradientContext& c) {
  const ValueId dy = c.scale(c.outputGradient(), 1.0 / static_cast<double>(c.inputCount()));
  for (size_t i = 0; i < c.inputCount(); ++i) {
    if (c.needs(i)) c.giveReduced(i, dy);
  }
}

}  // namespace

void addArithmeticRules(GradientRules& rules) {
  rules[{"", "Add"}] = {addGradient};
  rules[{"", "Sub"}] = {subGradient};
  rules[{"", "Mul"}] = {mulGradient};
  rules[{"", "Div"}] = {divGradient};
  rules[{"", "Mod"}] = {modGradient};
  rules[{"", "Pow"}] = {powGradient};
  rules[{"", "Sum"}] = {sumGradient};
  rules[{"", "Mean"}] = {meanGradient};
}

}  // namespace pipeshard
