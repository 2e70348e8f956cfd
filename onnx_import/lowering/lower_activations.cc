// Activations. Those with a corner have PyTorch's gradient there, which the bodies that ONNX gives them do
// not have: a slope on the left of 0 holds at 0, a range is flat at its ends.
#include "onnx_import/lowering/lowering_rules.h"

namespace pipeshard {
namespace {

// alpha * Elu(x / alpha) = max(0, x) + min(0, alpha * (exp(x / alpha) - 1)). ONNX's own body makes a list of
// one of a scalar.
void lowerCelu(LoweringContext& c) {
  const ValueId x = c.input(0);
  const ValueId alpha = c.scalar(c.type(x), c.node().floatAttribute("alpha", 1));
  const ValueId elu = c.op("Elu", {c.binary("Div", x, alpha)}, c.type(x), c.shape(x));
  c.give(0, c.binary("Mul", elu, alpha));
}

// gamma * Elu(x)
void lowerSelu(LoweringContext& c) {
  const ValueId x = c.input(0);
  const float alpha = c.node().floatAttribute("alpha", 1.67326319217681884765625F);
  const float gamma = c.node().floatAttribute("gamma", 1.05070102214813232421875F);
  const ValueId elu = c.op("Elu", {x}, c.type(x), c.shape(x), {{"alpha", alpha}});
  c.give(0, c.binary("Mul", elu, c.scalar(c.type(x), gamma)));
}

// x where it is positive, else slope * x.
void lowerPRelu(LoweringContext& c) {
  const ValueId x = c.input(0);
  const ValueId positive = c.compare("Greater", x, c.scalar(c.type(x), 0));
  c.give(0, c.where(positive, x, c.binary("Mul", c.input(1), x)));
}

// Of other types ONNX's body will do: they have no gradient.
bool isOfRealNumbers(const Graph& graph, const Node& node) {
  return !node.inputs.empty() && node.inputs[0].valid() &&
         isFloatingPoint(graph.value(node.inputs[0]).data_type);
}

ValueId hardSigmoid(LoweringContext& c, double alpha, double beta) {
  const ValueId x = c.input(0);
  return c.clip(c.addNumber(c.binary("Mul", x, c.scalar(c.type(x), alpha)), beta), 0, 1);
}

void lowerHardSigmoid(LoweringContext& c) {
  c.give(0, hardSigmoid(c, c.node().floatAttribute("alpha", 0.2F), c.node().floatAttribute("beta", 0.5F)));
}

// Its 1/6 is an attribute of ONNX's HardSigmoid: of float32 for all types.
void lowerHardSwish(LoweringContext& c) {
  c.give(0, c.binary("Mul", c.input(0), hardSigmoid(c, 1.0F / 6, 0.5)));
}

}  // namespace

void addActivationLowerings(LoweringRules& rules) {
  rules[{"", "Celu"}] = lowerCelu;
  rules[{"", "Selu"}] = lowerSelu;
  rules[{"", "PRelu"}] = {lowerPRelu, isOfRealNumbers};
  rules[{"", "HardSigmoid"}] = lowerHardSigmoid;
  rules[{"", "HardSwish"}] = lowerHardSwish;
}

}  // namespace pipeshard
