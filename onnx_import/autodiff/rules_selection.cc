// Max, Min, Where, Clip: operators that choose between their inputs.
#include <string>
#include <string_view>

#include "ir/graph/exporter_marks.h"
#include "onnx_import/autodiff/gradient_rules.h"

namespace pipeshard {
namespace {

// The chosen input gets the gradient; equal ones share it, but for a limit (clamp), which is chosen where the
// other one is beyond it.
void chooseGradient(GradientContext& c, std::string_view wins) {
  if (c.inputCount() == 1) {
    c.give(0, c.outputGradient());
    return;
  }
  if (c.inputCount() > 2)
    c.refuse("it has more than two inputs; write it as a chain of operators with two inputs");
  const ValueId dy = c.outputGradient();
  const ValueId zero = c.scalar(c.type(dy), 0);
  if (isCallOf(exportedCall(c.node()), "aten.clamp")) {
    const ValueId beyond = c.compare(wins, c.input(1), c.input(0));
    if (c.needs(0)) c.giveReduced(0, c.where(beyond, zero, dy));
    if (c.needs(1)) c.giveReduced(1, c.where(beyond, dy, zero));
    return;
  }
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

// Inside the limits the gradient passes; at their ends, too, but for activations, which PyTorch has flat
// there.
void clipGradient(GradientContext& c) {
  c.requireVersion(11);
  if (c.needs(1) || c.needs(2)) c.refuse("a limit of Clip depends on a parameter; use Min and Max");
  ValueId gradient = c.outputGradient();
  const ValueId zero = c.scalar(c.type(gradient), 0);
  const ExportedCall call = exportedCall(c.node());
  const bool flat_ends = isCallOf(call, "aten.relu6.") || isCallOf(call, "aten.hardtanh.");
  // `inside` compares x with the limit where the gradient passes; `outside`, where it does not.
  const auto passInside = [&](size_t limit, std::string_view inside, std::string_view outside) {
    if (!c.hasInput(limit)) return;
    gradient = flat_ends ? c.where(c.compare(inside, c.input(0), c.input(limit)), gradient, zero)
                         : c.where(c.compare(outside, c.input(0), c.input(limit)), zero, gradient);
  };
  passInside(1, "Greater", "Less");
  passInside(2, "Less", "Greater");
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
