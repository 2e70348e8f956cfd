// Max, Min, Where, Clip: operators that choose between their inputs.
#include <algorithm>
#include <array>
#include <sstream>
#include <string>
#include <string_view>

#include "ir/graph/exporter_marks.h"
#include "ir/graph/flat_ends.h"
#include "onnx_import/autodiff/gradient_rules.h"

namespace pipeshard {
namespace {

// Where x is just the limit: x has no gradient, all of it, or half, and the limit the rest.
enum class AtLimit { kFlat, kPasses, kShares };
enum class Side { kLow, kHigh };

// PyTorch up to 2.13 passed the gradient of clamp at its limits.
bool isOfPassingClamps(const Graph& graph) {
  std::istringstream version(graph.producer_version);
  int major = 0, minor = 0;
  char dot = 0;
  return graph.producer_name == "pytorch" && version >> major >> dot >> minor && dot == '.' &&
         (major < 2 || (major == 2 && minor < 14));
}

// The call's limit is a tensor of the module. Of a number the exporter makes a "scalar_tensor_default".
bool isTensorLimit(const ExportedCall& call, Side side) {
  if (!call.function.ends_with(".Tensor")) return false;
  const std::vector<std::string> arguments = argumentTexts(call);
  const size_t place = side == Side::kHigh && !isCallOf(call, "aten.clamp_max") ? 2 : 1;
  return place < arguments.size() && arguments[place].starts_with('%') &&
         !arguments[place].starts_with("%scalar_tensor_default");
}

// Without a call to tell: a Clip to [0, 6] is a relu6.
bool isSix(const GradientContext& c) {
  return c.node().is("Clip") && c.hasInput(1) && c.hasInput(2) && c.constantNumber(c.input(1)) == 0.0 &&
         c.constantNumber(c.input(2)) == 6.0;
}

// As PyTorch has it, by the call that the node is part of and the exporter's version. Activations are flat at
// their ends in every version, and clamp with numbers from 2.14 on. maximum and minimum share, and clamp with
// tensors from 2.14 on.
AtLimit atLimit(const GradientContext& c, Side side) {
  constexpr std::array kFlat{"aten.relu6.", "aten.hardtanh", "aten.hardsigmoid", "aten.hardswish"};
  const ExportedCall call = exportedCall(c.node());
  const bool is_activation =
      std::ranges::any_of(kFlat, [&](std::string_view function) { return isCallOf(call, function); });
  if (is_activation || hasFlatEnds(c.node())) return AtLimit::kFlat;
  if (!c.node().is("Clip") && !isCallOf(call, "aten.clamp")) return AtLimit::kShares;
  if (isOfPassingClamps(c.graph()))
    return call.function.empty() && isSix(c) ? AtLimit::kFlat : AtLimit::kPasses;
  return isTensorLimit(call, side) ? AtLimit::kShares : AtLimit::kFlat;
}

// The chosen input gets the gradient. Where the first is just the second, its limit: as atLimit says.
void chooseGradient(GradientContext& c, Side side) {
  if (c.inputCount() == 1) {
    c.give(0, c.outputGradient());
    return;
  }
  if (c.inputCount() > 2)
    c.refuse("it has more than two inputs; write it as a chain of operators with two inputs");
  const std::string_view wins = side == Side::kLow ? "Greater" : "Less";
  const ValueId dy = c.outputGradient();
  const ValueId zero = c.scalar(c.type(dy), 0);
  const AtLimit ends = atLimit(c, side);
  if (ends != AtLimit::kShares) {
    const size_t winner = ends == AtLimit::kFlat ? 0 : 1;  // the one that has to be beyond the other
    const ValueId beyond = c.compare(wins, c.input(winner), c.input(1 - winner));
    if (c.needs(winner)) c.giveReduced(winner, c.where(beyond, dy, zero));
    if (c.needs(1 - winner)) c.giveReduced(1 - winner, c.where(beyond, zero, dy));
    return;
  }
  const ValueId shared = c.where(c.compare("Equal", c.input(0), c.input(1)), c.scale(dy, 0.5), zero);
  for (size_t i = 0; i < 2; ++i) {
    if (c.needs(i)) c.giveReduced(i, c.where(c.compare(wins, c.input(i), c.input(1 - i)), dy, shared));
  }
}

void maxGradient(GradientContext& c) { chooseGradient(c, Side::kLow); }
void minGradient(GradientContext& c) { chooseGradient(c, Side::kHigh); }

void whereGradient(GradientContext& c) {
  const ValueId dy = c.outputGradient();
  const ValueId zero = c.scalar(c.type(dy), 0);
  if (c.needs(1)) c.giveReduced(1, c.where(c.input(0), dy, zero));
  if (c.needs(2)) c.giveReduced(2, c.where(c.input(0), zero, dy));
}

// The gradient that passes a limit of Clip, if there is one.
ValueId passedBy(GradientContext& c, Side side, ValueId gradient) {
  const size_t position = side == Side::kLow ? 1 : 2;
  if (!c.hasInput(position)) return gradient;
  const std::string_view inside = side == Side::kLow ? "Greater" : "Less";
  const std::string_view outside = side == Side::kLow ? "Less" : "Greater";
  const ValueId x = c.input(0), limit = c.input(position);
  const ValueId zero = c.scalar(c.type(gradient), 0);
  const AtLimit ends = atLimit(c, side);
  if (ends == AtLimit::kFlat) return c.where(c.compare(inside, x, limit), gradient, zero);
  const ValueId passed = c.where(c.compare(outside, x, limit), zero, gradient);
  if (ends == AtLimit::kPasses) return passed;
  return c.where(c.compare("Equal", x, limit), c.scale(gradient, 0.5), passed);
}

void clipGradient(GradientContext& c) {
  c.requireVersion(11);
  if (c.needs(1) || c.needs(2)) c.refuse("a limit of Clip depends on a parameter; use Min and Max");
  c.give(0, passedBy(c, Side::kHigh, passedBy(c, Side::kLow, c.outputGradient())));
}

}  // namespace

void addSelectionRules(GradientRules& rules) {
  rules[{"", "Max"}] = {maxGradient};
  rules[{"", "Min"}] = {minGradient};
  rules[{"", "Where"}] = {whereGradient, 1};
  rules[{"", "Clip"}] = {clipGradient};
}

}  // namespace pipeshard
