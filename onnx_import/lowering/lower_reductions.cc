// ReduceL2. ONNX's own body of it goes through float32, whatever the type of its input.
#include <cstdint>
#include <numeric>
#include <vector>

#include "onnx_import/lowering/lowering_rules.h"

namespace pipeshard {
namespace {

// The axes of a reduction, an input since opset 18 and an attribute before; all of them if it has none,
// unless it says that none means none.
std::vector<int64_t> reducedAxes(const LoweringContext& c) {
  std::vector<int64_t> axes = c.constantIntegers(1).value_or(c.node().intsAttribute("axes"));
  if (axes.empty() && c.node().intAttribute("noop_with_empty_axes", 0) == 0) {
    axes.resize(c.rank(c.input(0)));
    std::iota(axes.begin(), axes.end(), 0);
  }
  for (int64_t& axis : axes) axis += axis < 0 ? c.rank(c.input(0)) : 0;
  return axes;
}

// sqrt of the sum s of squares. Where s is 0 the root's derivative is infinite; as in PyTorch, that of the
// norm is 0 there: the root is taken of 1, and not chosen.
void lowerReduceL2(LoweringContext& c) {
  const ValueId x = c.input(0);
  const bool keeps = c.node().intAttribute("keepdims", 1) != 0;
  const std::vector<int64_t> axes = reducedAxes(c);
  const ValueId sum = c.reduce("ReduceSum", c.binary("Mul", x, x), axes, keeps);
  const ValueId zero = c.scalar(c.type(x), 0);
  const ValueId is_zero = c.compare("Equal", sum, zero);
  const ValueId root = c.unary("Sqrt", c.where(is_zero, c.scalar(c.type(x), 1), sum));
  c.give(0, c.where(is_zero, zero, root));
}

}  // namespace

void addReductionLowerings(LoweringRules& rules) { rules[{"", "ReduceL2"}] = lowerReduceL2; }

}  // namespace pipeshard
