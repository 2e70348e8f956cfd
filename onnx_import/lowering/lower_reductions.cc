// Reductions of which ONNX's own bodies are not good enough: that of ReduceL2 goes through float32, whatever
// the type of its input, that of ReduceLogSumExp overflows.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "ir/operators/reduced_axes.h"
#include "onnx_import/lowering/lowering_rules.h"

namespace pipeshard {
namespace {

// The reduced axes as [0, rank), in the node's order.
std::vector<int64_t> axesFolded(const LoweringContext& c) {
  std::vector<int64_t> axes = reducedAxes(
      c.node(), c.constantIntegers(1).value_or(c.node().intsAttribute("axes")), c.rank(c.input(0)));
  for (int64_t& axis : axes) axis += axis < 0 ? c.rank(c.input(0)) : 0;
  return axes;
}

// Integers are reduced in float64, and cut off at the end.
DataType reducedIn(DataType type) {
  if (!isFloatingPoint(type) || type == DataType::kFloat64) return DataType::kFloat64;
  return DataType::kFloat32;
}

// sqrt of the sum s of squares. Where s is 0 the root's derivative is infinite; as in PyTorch, that of the
// norm is 0 there: the root is taken of 1, and not chosen.
void lowerReduceL2(LoweringContext& c) {
  const DataType type = reducedIn(c.type(c.input(0)));
  const ValueId x = c.cast(c.input(0), type);
  const bool keeps = c.node().intAttribute("keepdims", 1) != 0;
  const ValueId sum = c.reduce("ReduceSum", c.binary("Mul", x, x), axesFolded(c), keeps);
  const ValueId zero = c.scalar(type, 0);
  const ValueId is_zero = c.compare("Equal", sum, zero);
  const ValueId root = c.unary("Sqrt", c.where(is_zero, c.scalar(type, 1), sum));
  c.give(0, c.cast(c.where(is_zero, zero, root), c.outputType()));
}

// m + log(sum of exp(x - m)), m the greatest x, if it is finite, else 0: no sum overflows, or vanishes. The
// gradients through the two m cancel each other.
void lowerReduceLogSumExp(LoweringContext& c) {
  const DataType type = reducedIn(c.type(c.input(0)));
  const ValueId x = c.cast(c.input(0), type);
  const std::vector<int64_t> axes = axesFolded(c);
  const bool keeps = c.node().intAttribute("keepdims", 1) != 0;
  ValueId result;
  if (elementCount(c.shape(x)) == 0) {  // there may be no greatest
    result = c.unary("Log", c.reduce("ReduceSum", c.unary("Exp", x), axes, keeps));
  } else {
    const ValueId greatest = c.reduce("ReduceMax", x, axes);
    const ValueId zero = c.scalar(type, 0);
    const ValueId is_finite = c.compare("Equal", c.binary("Sub", greatest, greatest), zero);
    const ValueId shift = c.where(is_finite, greatest, zero);
    const ValueId sum = c.reduce("ReduceSum", c.unary("Exp", c.binary("Sub", x, shift)), axes);
    result = c.binary("Add", shift, c.unary("Log", sum));
    std::vector<int64_t> gone = keeps ? std::vector<int64_t>() : axes;
    std::sort(gone.rbegin(), gone.rend());
    for (int64_t axis : gone) result = c.squeeze(result, axis);
  }
  c.give(0, c.cast(result, c.outputType()));
}

}  // namespace

void addReductionLowerings(LoweringRules& rules) {
  rules[{"", "ReduceL2"}] = lowerReduceL2;
  rules[{"", "ReduceLogSumExp"}] = lowerReduceLogSumExp;
}

}  // namespace pipeshard
