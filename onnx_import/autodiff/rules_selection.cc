// Max, Min, Where, Clip: operators that choose between their inputs.
#include "onnx_import/autodiff/gradient_rules.h"

namespace pipeshard {
namespace {

// The chosen input gets the gradient; equal ones share it.
void chooseGradient(GradientContext& c, std::string_view wins) {
  if (c.inputCount() == 1) {
    c.give(0, c.outputGradient());
    return;
  }
  if (c.inputCount() > 2)
    c.refuse("it has more than two inputs; write it as a chain of operators with two inputs");
  const ValueId dy = c.outputGradient();
  const ValueId zero = c.scalar(c.type(dy), 0);
  const ValueId shared = c.where(c.compare("Equal", c.input(0), c.input(1)), c.scale(dy, 0.5), zero);
  for (size_t i = 0; i < 2; ++i) {
    if (c.needs(i)) c.giveReduced(i, c.where(c.compare(wins, c.input(i), c.input(1 - i)), dy, shared));
  }
}

void maxGradient(GradientContext& c) { chooseGradient(c, "Greater"); }
void minGradient(GradientContext& c) { chooseGradient(c, "Less"); }

void whereGradient(GradientContext& c) {
  const ValueId dy = c.outputGradient();
  const ValueId zero = c.scalar(c.type(dy), 0);
  if (c.needs(1)) c.giveReduced(1, c.where(c.input(0), dy, zero));
  if (c.needs(2)) c.giveReduced(2, c.where(c.input(0), zero, dy));
}

// Inside the limits, ends included, the gradient passes.
void clipGradient(GradientContext& c) {
  c.requireVersion(11);
  if (c.needs(1) || c.needs(2)) c.refuse("a limit of Clip depends on a parameter; use Min and Max");
  ValueId gradient = c.outputGradient();
  const ValueId zero = c.scalar(c.type(gradient), 0);
  if (c.hasInput(1)) gradient = c.where(c.compare("Less", c.input(0), c.input(1)), zero, gradient);
  if (c.hasInput(2)) gradient = c.where(c.compare("Greater", c.input(0), c.input(2)), zero, gradient);
  c.give(0, gradient);
}

}  // namespace

void addSelectionRules(GradientRules& rules) {
  rules[{"", "Max"}] = {maxGradient};
  rules[{"", "Min"}] = {minGradient};
  rules[{"", "Where"}] = {whereGradient, 1};
  rules[{"", "Clip"}] = {clipGradient};
}

}  // namespace pipeshard
