// ReduceSum, ReduceMean, ReduceMax, ReduceMin, ReduceProd, CumSum.
#include <algorithm>

#include "ir/graph/exporter_marks.h"
#include "ir/operators/reduced_axes.h"
#include "onnx_import/autodiff/gradient_rules.h"

namespace pipeshard {
namespace {

// The reduced axes as [0, rank), ascending.
std::vector<int64_t> foldedAxes(const GradientContext& c) {
  const size_t rank = c.shape(c.input(0)).size();
  std::vector<int64_t> axes =
      reducedAxes(c.node(), c.constantIntegers(1).value_or(c.node().intsAttribute("axes")), rank);
  for (int64_t& axis : axes) axis = normalizeAxis(axis, rank);
  std::sort(axes.begin(), axes.end());
  return axes;
}

Shape keptShape(const GradientContext& c, const std::vector<int64_t>& axes) {
  Shape shape = c.shape(c.input(0));
  for (int64_t axis : axes) shape[axis] = 1;
  return shape;
}

// dY with the reduced axes back as 1, repeated along them. A scalar repeats along any axes as it is.
ValueId spread(GradientContext& c, ValueId dy, const Shape& kept_shape) {
  const ValueId kept = c.shape(dy).empty() ? dy : c.reshape(dy, kept_shape);
  return c.expand(kept, c.shape(c.input(0)));
}

void reduceSumGradient(GradientContext& c) {
  c.give(0, spread(c, c.outputGradient(), keptShape(c, foldedAxes(c))));
}

void reduceMeanGradient(GradientContext& c) {
  const Shape kept_shape = keptShape(c, foldedAxes(c));
  const double parts =
      static_cast<double>(elementCount(c.shape(c.input(0)))) / static_cast<double>(elementCount(kept_shape));
  c.give(0, spread(c, c.scale(c.outputGradient(), 1 / parts), kept_shape));
}

// max(dim) and min(dim), which give the place as well: PyTorch's gradient is of the first of equal extremes.
bool hasOnePlace(const GradientContext& c) {
  const ExportedCall call = exportedCall(c.node());
  return isCallOf(call, "aten.max.dim") || isCallOf(call, "aten.min.dim");
}

// Else (amax, or not told) equal extremes share the gradient.
void reduceExtremeGradient(GradientContext& c) {
  const std::vector<int64_t> axes = foldedAxes(c);
  const Shape kept_shape = keptShape(c, axes);
  const ValueId x = c.input(0);
  if (axes.size() == 1 && hasOnePlace(c)) {
    const ValueId place = c.op(c.node().is("ReduceMax") ? "ArgMax" : "ArgMin", {x}, DataType::kInt64,
                               kept_shape, {{"axis", axes[0]}, {"keepdims", int64_t{1}}});
    const ValueId dy = c.reshape(c.outputGradient(), kept_shape);
    const Shape shape = c.shape(x);
    return c.give(0, c.function("GatherElementsGrad", "", {dy, place, c.integers(shape)}, c.type(dy), shape,
                                {{"axis", axes[0]}}));
  }
  const ValueId hit = c.cast(c.compare("Equal", x, c.reshape(c.output(), kept_shape)), c.type(x));
  const ValueId share =
      c.binary("Div", c.reshape(c.outputGradient(), kept_shape), c.reduceSum(hit, axes, true));
  c.give(0, c.binary("Mul", hit, share));
}

// The slope in an element is the product of the others: the product of all but the zeros, divided by the
// element if it is none, and 0 where another one is zero.
void reduceProdGradient(GradientContext& c) {
  const std::vector<int64_t> axes = foldedAxes(c);
  if (axes.empty()) return c.give(0, c.outputGradient());
  const ValueId x = c.input(0);
  const ValueId zero = c.scalar(c.type(x), 0);
  const ValueId is_zero = c.compare("Equal", x, zero);
  const ValueId factors = c.where(is_zero, c.scalar(c.type(x), 1), x);
  const ValueId counted = c.cast(is_zero, c.type(x));
  const ValueId other_zeros = c.binary("Sub", c.reduceSum(counted, axes, true), counted);
  const ValueId product = c.binary("Mul", c.reshape(c.outputGradient(), keptShape(c, axes)),
                                   c.reduce("ReduceProd", factors, axes, true));
  c.give(0, c.where(c.compare("Greater", other_zeros, zero), zero, c.binary("Div", product, factors)));
}

// An element is in the sums from it to the end: the gradients are summed the other way.
void cumSumGradient(GradientContext& c) {
  const ValueId dy = c.outputGradient();
  const int64_t reverse = c.node().intAttribute("reverse", 0) == 0 ? 1 : 0;
  c.give(0, c.op("CumSum", {dy, c.input(1)}, c.type(dy), c.shape(dy),
                 {{"exclusive", c.node().intAttribute("exclusive", 0)}, {"reverse", reverse}}));
}

}  // namespace

void addReductionRules(GradientRules& rules) {
  rules[{"", "ReduceSum"}] = {reduceSumGradient, 2};
  rules[{"", "ReduceMean"}] = {reduceMeanGradient, 2};
  rules[{"", "ReduceMax"}] = {reduceExtremeGradient, 2};
  rules[{"", "ReduceMin"}] = {reduceExtremeGradient, 2};
  rules[{"", "ReduceProd"}] = {reduceProdGradient, 2};
  rules[{"", "CumSum"}] = {cumSumGradient, 2};
}

}  // namespace pipeshard
