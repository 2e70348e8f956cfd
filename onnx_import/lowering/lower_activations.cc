// Activations.
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

}  // namespace

void addActivationLowerings(LoweringRules& rules) { rules[{"", "Celu"}] = lowerCelu; }

}  // namespace pipeshard
