// Operators of ONNX Runtime's training files that move elements, and the gradients of such; products and
// sums.
#include <algorithm>
#include <numeric>
#include <vector>

#include "ir/base/error.h"
#include "ir/operators/reduced_axes.h"
#include "onnx_import/lowering/lowering_rules.h"

namespace pipeshard {
namespace {

// The constant that an input is; refuses a node that lacks it.
std::vector<int64_t> wanted(LoweringContext& c, size_t position) {
  c.input(position);
  return *c.constantIntegers(position);
}

ValueId zerosOf(LoweringContext& c, DataType type, const Shape& shape) {
  return c.expand(c.scalar(type, 0), shape);
}

// Sums over what was broadcast.
ValueId reducedTo(LoweringContext& c, ValueId x, const Shape& shape) {
  const Shape whole = c.shape(x);
  const int64_t skip = std::ssize(whole) - std::ssize(shape);
  std::vector<int64_t> axes;
  for (int64_t axis = 0; axis < std::ssize(whole); ++axis) {
    if (axis < skip || shape[axis - skip] != whole[axis]) axes.push_back(axis);
  }
  return c.reshape(c.reduce("ReduceSum", x, axes), shape);
}

// zeros of `shape`, with `updates` added where `indices` (of their shape) point along the axis
ValueId scattered(LoweringContext& c, const Shape& shape, int64_t axis, ValueId indices, ValueId updates) {
  const DataType type = c.type(updates);
  return c.op("ScatterElements", {zerosOf(c, type, shape), indices, updates}, type, shape,
              {{"axis", axis}, {"reduction", std::string("add")}});
}

// ---- gradients of movements

// shape, indices, dY: the rows of dY are added to those that the indices point to.
void lowerGatherGradient(LoweringContext& c) {
  const Shape shape = wanted(c, 0);
  const ValueId indices = c.input(1), dy = c.input(2);
  const int64_t axis = normalizeAxis(c.node().intAttribute("axis", 0), shape.size());
  const int64_t before = elementCount(Shape(shape.begin(), shape.begin() + axis));
  const int64_t behind = elementCount(Shape(shape.begin() + axis + 1, shape.end()));
  const Shape rows{before, elementCount(c.shape(indices)), behind};
  const ValueId places = c.expand(c.reshape(indices, {1, rows[1], 1}), rows);
  const ValueId sums = scattered(c, {before, shape[axis], behind}, 1, places, c.reshape(dy, rows));
  c.give(0, c.reshape(sums, shape));
}

// dY, shape, indices
void lowerGatherElementsGradient(LoweringContext& c) {
  const Shape shape = wanted(c, 1);
  const int64_t axis = normalizeAxis(c.node().intAttribute("axis", 0), shape.size());
  c.give(0, scattered(c, shape, axis, c.input(2), c.input(0)));
}

// shape, indices, dY
void lowerGatherNdGradient(LoweringContext& c) {
  const Shape shape = wanted(c, 0);
  if (c.node().intAttribute("batch_dims", 0) != 0) c.refuse("it has batch_dims");
  const ValueId dy = c.input(2);
  c.give(0, c.op("ScatterND", {zerosOf(c, c.type(dy), shape), c.input(1), dy}, c.type(dy), shape,
                 {{"reduction", std::string("add")}}));
}

// dY, shape, starts, ends, axes, steps: an axis after the other is put back into zeros.
void lowerSliceGradient(LoweringContext& c) {
  const Shape shape = wanted(c, 1);
  const std::vector<int64_t> starts = wanted(c, 2);
  std::vector<int64_t> axes(starts.size());
  std::iota(axes.begin(), axes.end(), 0);
  axes = c.constantIntegers(4).value_or(axes);
  const std::vector<int64_t> steps = c.constantIntegers(5).value_or(std::vector<int64_t>(starts.size(), 1));
  ValueId x = c.input(0);
  for (size_t i = 0; i < axes.size(); ++i) {
    const int64_t axis = normalizeAxis(axes[i], shape.size());
    const int64_t size = shape[axis];
    const int64_t count = c.shape(x)[axis];
    const int64_t start = starts[i] < 0 ? std::max<int64_t>(starts[i] + size, 0) : starts[i];
    const int64_t first = std::min(start, steps[i] < 0 ? size - 1 : size);
    if (count == size && steps[i] == 1) continue;
    c.requireTable({count});
    std::vector<double> places(count);
    for (int64_t k = 0; k < count; ++k) places[k] = static_cast<double>(first + k * steps[i]);
    Shape along(shape.size(), 1);
    along[axis] = count;
    const ValueId indices = c.expand(c.numbers(DataType::kInt64, along, places), c.shape(x));
    Shape whole = c.shape(x);
    whole[axis] = size;
    x = scattered(c, whole, axis, indices, x);
  }
  c.give(0, x);
}

// dY, mask, ratio, training_mode: dY / (1 - ratio) where the mask has let it pass
void lowerDropoutGradient(LoweringContext& c) {
  const ValueId dy = c.input(0);
  const std::vector<double> training = c.constantNumbers(3).value_or(std::vector<double>{1});
  const double ratio = c.constantNumbers(2).value_or(std::vector<double>{0.5}).at(0);
  if (training.at(0) == 0 || ratio == 0) return c.give(0, c.unary("Identity", dy));
  const ValueId scaled = c.binary("Mul", dy, c.scalar(c.type(dy), 1 / (1 - ratio)));
  c.give(0, c.where(c.input(1), scaled, c.scalar(c.type(dy), 0)));
}

// dY, indices into all elements of X; the shape of X is known as that of the output alone.
void lowerMaxPoolGradient(LoweringContext& c) {
  const Shape shape = c.outputShape();
  const int64_t count = elementCount(c.shape(c.input(0)));
  const ValueId sums =
      scattered(c, {elementCount(shape)}, 0, c.reshape(c.input(1), {count}), c.reshape(c.input(0), {count}));
  c.give(0, c.reshape(sums, shape));
}

// ---- gradients of products

// dY, A, B: dY / B and -dY * A / B^2, summed over what was broadcast
void lowerDivGradient(LoweringContext& c) {
  const ValueId dy = c.input(0), a = c.input(1), b = c.input(2);
  const ValueId quotient = c.binary("Div", dy, b);
  if (c.hasOutput(0)) c.give(0, reducedTo(c, quotient, c.shape(a)));
  if (!c.hasOutput(1)) return;
  const ValueId slope = c.unary("Neg", c.binary("Mul", quotient, c.binary("Div", a, b)));
  c.give(1, reducedTo(c, slope, c.shape(b)));
}

struct ConvolutionSizes {
  int64_t group;
  std::vector<int64_t> strides, dilations, pads;
};

ConvolutionSizes convolutionSizes(LoweringContext& c, size_t axes) {
  const Node& node = c.node();
  const std::string pad = node.stringAttribute("auto_pad", "NOTSET");
  if (pad != "NOTSET" && pad != "VALID") c.refuse(fmt::format("its auto_pad is {}", pad));
  const std::vector<int64_t> ones(axes, 1);
  return {node.intAttribute("group", 1), node.intsAttribute("strides", ones),
          node.intsAttribute("dilations", ones),
          node.intsAttribute("pads", std::vector<int64_t>(2 * axes, 0))};
}

// A ConvTranspose of dY; what the strides left over at the end of X gets zeros.
ValueId convolutionInputGradient(LoweringContext& c, const ConvolutionSizes& sizes) {
  const Shape x = c.shape(c.input(1)), w = c.shape(c.input(2)), dy = c.shape(c.input(0));
  std::vector<int64_t> left_over;
  for (size_t i = 0; i + 2 < x.size(); ++i) {
    const int64_t reached = sizes.strides[i] * (dy[i + 2] - 1) + (w[i + 2] - 1) * sizes.dilations[i] + 1 -
                            sizes.pads[i] - sizes.pads[i + x.size() - 2];
    left_over.push_back(x[i + 2] - reached);
  }
  return c.op("ConvTranspose", {c.input(0), c.input(2)}, c.type(c.input(0)), x,
              {{"group", sizes.group},
               {"strides", sizes.strides},
               {"dilations", sizes.dilations},
               {"pads", sizes.pads},
               {"output_padding", left_over}});
}

// A Conv of X with dY in the place of the kernel, batch and channels exchanged:
//   X [N, g c, ...] as [c, g N, ...], dY [N, M, ...] as [M, N, ...]  ->  [c, M, kernel and what is left over]
ValueId convolutionWeightGradient(LoweringContext& c, const ConvolutionSizes& sizes) {
  const Shape x = c.shape(c.input(1)), w = c.shape(c.input(2)), dy = c.shape(c.input(0));
  const DataType type = c.type(c.input(0));
  const size_t axes = x.size() - 2;
  Shape split{x[0], sizes.group, w[1]}, exchanged{w[1], sizes.group * x[0]}, result{w[1], w[0]};
  std::vector<int64_t> order{2, 1, 0}, swap{1, 0};
  for (size_t i = 0; i < axes; ++i) {
    split.push_back(x[i + 2]);
    exchanged.push_back(x[i + 2]);
    order.push_back(static_cast<int64_t>(i) + 3);
    swap.push_back(static_cast<int64_t>(i) + 2);
    const int64_t span =
        x[i + 2] + sizes.pads[i] + sizes.pads[i + axes] - (dy[i + 2] - 1) * sizes.strides[i] - 1;
    result.push_back(span / sizes.dilations[i] + 1);
  }
  const ValueId images = c.reshape(c.transpose(c.reshape(c.input(1), split), order), exchanged);
  ValueId sums = c.op("Conv", {images, c.transpose(c.input(0), swap)}, type, result,
                      {{"group", sizes.group},
                       {"strides", sizes.dilations},
                       {"dilations", sizes.strides},
                       {"pads", sizes.pads}});
  for (size_t i = 0; i < axes; ++i) sums = c.slice(sums, static_cast<int64_t>(i) + 2, 0, w[i + 2]);
  return c.transpose(sums, swap);
}

// dY, X, W
void lowerConvGradient(LoweringContext& c) {
  const int64_t rank = c.rank(c.input(1));
  if (rank < 3) c.refuse("its input has no image axes");
  const ConvolutionSizes sizes = convolutionSizes(c, rank - 2);
  if (c.hasOutput(0)) c.give(0, convolutionInputGradient(c, sizes));
  if (c.hasOutput(1)) c.give(1, convolutionWeightGradient(c, sizes));
  if (!c.hasOutput(2)) return;
  std::vector<int64_t> axes{0};
  for (int64_t axis = 2; axis < rank; ++axis) axes.push_back(axis);
  c.give(2, c.reduce("ReduceSum", c.input(0), axes, false));
}

// ---- operators that give more than ONNX's, or take as inputs what was an attribute there

void lowerConcatTraining(LoweringContext& c) {
  std::vector<ValueId> parts;
  std::vector<int64_t> sizes;
  const int64_t axis = normalizeAxis(c.node().intAttribute("axis", 0), c.rank(c.input(0)));
  for (size_t i = 0; i < c.node().inputs.size(); ++i) {
    parts.push_back(c.input(i));
    sizes.push_back(c.shape(parts.back())[axis]);
  }
  const ValueId whole = c.concat(parts, axis);
  c.give(0, parts.size() == 1 ? c.unary("Identity", whole) : whole);
  if (c.hasOutput(1)) c.give(1, c.integers(sizes));
}

void lowerSplitTraining(LoweringContext& c) {
  const ValueId x = c.input(0);
  const int64_t axis = normalizeAxis(c.node().intAttribute("axis", 0), c.rank(x));
  int64_t from = 0;
  const std::vector<int64_t> sizes = wanted(c, 1);
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (c.hasOutput(i)) c.give(i, c.slice(x, axis, from, from + sizes[i]));
    from += sizes[i];
  }
}

void lowerReduceSumTraining(LoweringContext& c) {
  const ValueId x = c.input(0);
  std::vector<int64_t> axes = reducedAxes(c.node(), wanted(c, 1), c.rank(x));
  const bool keep = c.node().intAttribute("keepdims", 1) != 0;
  for (int64_t& axis : axes) axis = normalizeAxis(axis, c.rank(x));
  c.give(0, axes.empty() ? c.unary("Identity", x) : c.reduce("ReduceSum", x, axes, keep));
}

// The axes that a gradient is summed over for each of two shapes that were broadcast, last to first.
void lowerBroadcastGradientArgs(LoweringContext& c) {
  const Shape shapes[] = {wanted(c, 0), wanted(c, 1)};
  const Shape whole = broadcastShapes(shapes[0], shapes[1]);
  for (size_t i = 0; i < 2; ++i) {
    if (!c.hasOutput(i)) continue;
    std::vector<int64_t> axes;
    const int64_t skip = std::ssize(whole) - std::ssize(shapes[i]);
    for (int64_t axis = std::ssize(whole); axis-- > 0;) {
      const int64_t size = axis < skip ? 1 : shapes[i][axis - skip];
      if (axis < skip || (size == 1 && whole[axis] != 1)) axes.push_back(axis);
    }
    c.give(i, c.integers(axes));
  }
}

// input * scale, or input / scale
void lowerScale(LoweringContext& c) {
  const bool down = c.node().intAttribute("scale_down", 0) != 0;
  const ValueId scale = c.reshape(c.cast(c.input(1), c.type(c.input(0))), {});
  c.give(0, c.binary(down ? "Div" : "Mul", c.input(0), scale));
}

}  // namespace

void addTrainingLowerings(LoweringRules& rules) {
  const std::map<std::string, LoweringRule::Apply> operators = {
      {"GatherGrad", lowerGatherGradient},
      {"GatherElementsGrad", lowerGatherElementsGradient},
      {"GatherNDGrad", lowerGatherNdGradient},
      {"SliceGrad", lowerSliceGradient},
      {"DropoutGrad", lowerDropoutGradient},
      {"DivGrad", lowerDivGradient},
      {"ConvGrad", lowerConvGradient},
      {"ConcatTraining", lowerConcatTraining},
      {"SplitTraining", lowerSplitTraining},
      {"ReduceSumTraining", lowerReduceSumTraining},
      {"BroadcastGradientArgs", lowerBroadcastGradientArgs},
      {"Scale", lowerScale},
  };
  for (const char* domain : {"", "com.microsoft"}) {
    for (const auto& [op_type, apply] : operators) rules[{domain, op_type}] = {apply, nullptr, true};
    rules[{domain, "MaxPoolGrad"}] = lowerMaxPoolGradient;
  }
}

}  // namespace pipeshard
