// Operators that take some elements or put them together: Slice, Split, Concat, Pad, Gather, GatherElements,
// GatherND, TopK, Trilu.
#include <algorithm>

#include <fmt/format.h>

#include "onnx_import/autodiff/gradient_rules.h"

namespace pipeshard {
namespace {

ValueId sliceAxis(GradientContext& c, ValueId x, int64_t axis, int64_t start, int64_t end) {
  Shape shape = c.shape(x);
  if (start == 0 && end == shape[axis]) return x;
  shape[axis] = end - start;
  return c.op("Slice", {x, c.integers({start}), c.integers({end}), c.integers({axis})}, c.type(x),
              std::move(shape));
}

// `before` and `after`: zeros to add per axis.
ValueId padZeros(GradientContext& c, ValueId x, const Shape& before, const Shape& after) {
  Shape shape = c.shape(x);
  std::vector<int64_t> pads = before;
  pads.insert(pads.end(), after.begin(), after.end());
  if (std::all_of(pads.begin(), pads.end(), [](int64_t pad) { return pad == 0; })) return x;
  for (size_t i = 0; i < shape.size(); ++i) shape[i] += before[i] + after[i];
  return c.op("Pad", {x, c.integers(pads)}, c.type(x), std::move(shape));
}

ValueId scatterAxis(GradientContext& c, ValueId dy, ValueId indices, const Shape& data_shape, int64_t axis) {
  return c.function("GatherGrad", "", {dy, indices, c.integers(data_shape)}, c.type(dy), data_shape,
                    {{"axis", axis}});
}

// dY added elementwise at places along the axis.
ValueId scatterPlaces(GradientContext& c, ValueId dy, ValueId places, const Shape& data_shape, int64_t axis) {
  return c.function("GatherElementsGrad", "", {dy, places, c.integers(data_shape)}, c.type(dy), data_shape,
                    {{"axis", axis}});
}

void sliceGradient(GradientContext& c) {
  c.requireVersion(10);
  const Shape from = c.shape(c.input(0));
  const Shape to = c.shape(c.output());
  const std::vector<int64_t> starts = c.constantIntegers(1).value();
  const std::optional<std::vector<int64_t>> axes = c.constantIntegers(3);
  const std::optional<std::vector<int64_t>> steps = c.constantIntegers(4);
  Shape before(from.size(), 0);
  Shape after(from.size(), 0);
  ValueId gradient = c.outputGradient();
  for (size_t i = 0; i < starts.size(); ++i) {
    const size_t axis = axes ? normalizeAxis((*axes)[i], from.size()) : static_cast<int>(i);
    const int64_t step = steps ? (*steps)[i] : 1;
    const int64_t size = from[axis];
    const int64_t start =
        std::clamp<int64_t>(starts[i] < 0 ? starts[i] + size : starts[i], 0, step > 0 ? size : size - 1);
    if (step == 1) {
      before[axis] = start;
      after[axis] = size - start - to[axis];
      continue;
    }
    std::vector<int64_t> taken;
    for (int64_t k = 0; k < to[axis]; ++k) taken.push_back(start + k * step);
    Shape shape = c.shape(gradient);
    shape[axis] = size;
    gradient = scatterAxis(c, gradient, c.integers(taken), shape, axis);
  }
  std::vector<size_t> cut;
  for (size_t axis = 0; axis < from.size(); ++axis) {
    if (before[axis] > 0 || after[axis] > 0) cut.push_back(axis);
  }
  if (cut.size() == 1) return c.givePart(0, gradient, cut[0], before[cut[0]]);
  c.give(0, padZeros(c, gradient, before, after));
}

void splitGradient(GradientContext& c) {
  const Shape shape = c.shape(c.input(0));
  const int64_t axis = normalizeAxis(c.node().intAttribute("axis", 0), shape.size());
  std::vector<ValueId> pieces;
  for (size_t i = 0; i < c.node().outputs.size(); ++i) {
    ValueId piece = c.outputGradient(i);
    if (!piece.valid()) {
      if (!c.node().outputs[i].valid()) c.refuse("an output is left out");
      piece = c.expand(c.scalar(c.type(c.input(0)), 0), c.shape(c.output(i)));
    }
    pieces.push_back(piece);
  }
  c.give(0, pieces.size() == 1 ? pieces[0]
                               : c.op("Concat", pieces, c.type(c.input(0)), shape, {{"axis", axis}}));
}

void concatGradient(GradientContext& c) {
  const size_t axis = normalizeAxis(c.node().intAttribute("axis", 0), c.shape(c.output()).size());
  int64_t start = 0;
  for (size_t i = 0; i < c.inputCount(); ++i) {
    const int64_t end = start + c.shape(c.input(i))[axis];
    if (c.needs(i)) c.give(i, sliceAxis(c, c.outputGradient(), axis, start, end));
    start = end;
  }
}

// For every element of a padded axis the place it is copied from: of an axis of `size` elements, to which
// `before` and `after` are added in one of Pad's modes without a constant.
std::vector<int64_t> paddedFrom(std::string_view mode, int64_t size, int64_t before, int64_t after) {
  const int64_t period = mode == "wrap" ? size : std::max<int64_t>(1, 2 * (size - 1));
  std::vector<int64_t> places;
  for (int64_t i = -before; i < size + after; ++i) {
    const int64_t phase = (i % period + period) % period;
    if (mode == "edge") places.push_back(std::clamp<int64_t>(i, 0, size - 1));
    if (mode == "wrap") places.push_back(phase);
    if (mode == "reflect") places.push_back(std::min(phase, period - phase));  // the edge is not repeated
  }
  return places;
}

// What a node adds before and after every axis.
std::pair<Shape, Shape> padsOf(const GradientContext& c) {
  const size_t rank = c.shape(c.input(0)).size();
  const std::vector<int64_t> pads = c.constantIntegers(1).value();
  const std::optional<std::vector<int64_t>> axes = c.constantIntegers(3);
  const size_t count = pads.size() / 2;
  std::pair<Shape, Shape> result = {Shape(rank, 0), Shape(rank, 0)};
  for (size_t i = 0; i < count; ++i) {
    const size_t axis = axes ? normalizeAxis((*axes)[i], rank) : static_cast<int>(i);
    result.first[axis] = pads[i];
    result.second[axis] = pads[count + i];
  }
  return result;
}

// What was padded with a constant is cut off, what was cut off gets zeros.
ValueId unpadConstant(GradientContext& c, const Shape& before, const Shape& after) {
  const size_t rank = before.size();
  Shape cut_before(rank, 0);
  Shape cut_after(rank, 0);
  ValueId gradient = c.outputGradient();
  for (size_t axis = 0; axis < rank; ++axis) {
    const int64_t size = c.shape(gradient)[axis];
    gradient = sliceAxis(c, gradient, axis, std::max<int64_t>(before[axis], 0),
                         size - std::max<int64_t>(after[axis], 0));
    cut_before[axis] = std::max<int64_t>(-before[axis], 0);  // a negative pad cut elements off
    cut_after[axis] = std::max<int64_t>(-after[axis], 0);
  }
  return padZeros(c, gradient, cut_before, cut_after);
}

// The gradients of an element and its copies are summed, axis by axis.
void padGradient(GradientContext& c) {
  c.requireVersion(11);
  const std::string mode = c.node().stringAttribute("mode", "constant");
  if (c.needs(2)) c.refuse("the value it pads with depends on a parameter");
  const auto [before, after] = padsOf(c);
  if (mode == "constant") return c.give(0, unpadConstant(c, before, after));
  if (mode != "edge" && mode != "reflect" && mode != "wrap")
    c.refuse(fmt::format("mode '{}' has no gradient rule", mode));
  const Shape sizes = c.shape(c.input(0));
  ValueId gradient = c.outputGradient();
  for (size_t axis = 0; axis < sizes.size(); ++axis) {
    if (before[axis] == 0 && after[axis] == 0) continue;
    if (sizes[axis] == 0) c.refuse(fmt::format("axis {} has no elements to copy", axis));
    Shape shape = c.shape(gradient);
    shape[axis] = sizes[axis];
    const ValueId places = c.integers(paddedFrom(mode, sizes[axis], before[axis], after[axis]));
    gradient = scatterAxis(c, gradient, places, shape, static_cast<int64_t>(axis));
  }
  c.give(0, gradient);
}

// One element of an axis is a part.
void gatherGradient(GradientContext& c) {
  const Shape from = c.shape(c.input(0));
  const size_t axis = normalizeAxis(c.node().intAttribute("axis", 0), from.size());
  if (const std::optional<double> number = c.constantNumber(c.input(1)); number && from[axis] > 0) {
    const auto index = static_cast<int64_t>(*number);
    const int64_t start = index < 0 ? index + from[axis] : index;
    Shape one = from;
    one[axis] = 1;
    if (start >= 0 && start < from[axis])
      return c.givePart(0, c.reshape(c.outputGradient(), one), axis, start);
  }
  const ValueId indices = c.cast(c.input(1), DataType::kInt64);
  c.give(0, scatterAxis(c, c.outputGradient(), indices, from, c.node().intAttribute("axis", 0)));
}

void gatherElementsGradient(GradientContext& c) {
  const ValueId indices = c.cast(c.input(1), DataType::kInt64);
  c.give(0, scatterPlaces(c, c.outputGradient(), indices, c.shape(c.input(0)),
                          c.node().intAttribute("axis", 0)));
}

// The values are elements of the input, at the places that output 1 tells.
void topKGradient(GradientContext& c) {
  const ValueId dy = c.outputGradient(0);
  const ValueId places = c.ensureOutput(1, "places", DataType::kInt64, c.shape(dy));
  c.give(0, scatterPlaces(c, dy, places, c.shape(c.input(0)), c.node().intAttribute("axis", -1)));
}

// ScatterND knows no batches. So the axes that a tuple addresses become one axis, the tuples places on it:
// data [batch.., addressed.., rest..] is [batches, places, rest], and dY [batches, tuples, rest].
//   data [2,3,4,5], indices [2,7,2], batch_dims 1: dY [2,7,5] goes to [2,12,5], the tuple (i, j) to 4 i + j
void batchedGatherNdGradient(GradientContext& c, size_t batch_axes) {
  const Shape data = c.shape(c.input(0));
  const Shape indices = c.shape(c.input(1));
  const int64_t depth = indices.back();
  const auto addressed = data.begin() + batch_axes;
  const Shape sizes(addressed, addressed + depth);
  const int64_t batches = elementCount(Shape(data.begin(), addressed));
  const int64_t tuples = elementCount(Shape(indices.begin() + batch_axes, indices.end() - 1));
  const int64_t rest = elementCount(Shape(addressed + depth, data.end()));
  ValueId places = c.reshape(c.input(1), {batches, tuples, depth});
  if (depth != 1) {
    const ValueId negative = c.compare("Less", places, c.scalar(DataType::kInt64, 0));
    places = c.where(negative, c.binary("Add", places, c.integers(sizes)), places);
    places = c.reduceSum(c.binary("Mul", places, c.integers(rowMajorStrides(sizes))), {2}, true);
  }
  const ValueId dy = c.reshape(c.outputGradient(), {batches, tuples, rest});
  const Shape flat = {batches, elementCount(sizes), rest};
  c.give(0, c.reshape(scatterPlaces(c, dy, c.expand(places, c.shape(dy)), flat, 1), data));
}

void gatherNdGradient(GradientContext& c) {
  const int64_t batch_dims = c.node().intAttribute("batch_dims", 0);
  if (batch_dims != 0) return batchedGatherNdGradient(c, batch_dims);
  const Shape shape = c.shape(c.input(0));
  const DataType type = c.type(c.input(0));
  const ValueId zeros = c.expand(c.scalar(type, 0), shape);
  c.give(0, c.op("ScatterND", {zeros, c.input(1), c.outputGradient()}, type, shape,
                 {{"reduction", std::string("add")}}));
}

void triluGradient(GradientContext& c) {
  std::vector<ValueId> inputs = {c.outputGradient()};
  if (c.hasInput(1)) inputs.push_back(c.input(1));
  c.give(0, c.op("Trilu", std::move(inputs), c.type(c.input(0)), c.shape(c.input(0)),
                 {{"upper", c.node().intAttribute("upper", 1)}}));
}

}  // namespace

void addMovementRules(GradientRules& rules) {
  rules[{"", "Slice"}] = {sliceGradient, kAllButFirst};
  rules[{"", "Split"}] = {splitGradient, kAllButFirst};
  rules[{"", "Concat"}] = {concatGradient};
  rules[{"", "Pad"}] = {padGradient, 2 | 8};
  rules[{"", "Gather"}] = {gatherGradient, kAllButFirst};
  rules[{"", "GatherElements"}] = {gatherElementsGradient, kAllButFirst};
  rules[{"", "GatherND"}] = {gatherNdGradient, kAllButFirst};
  rules[{"", "TopK"}] = {topKGradient, kAllButFirst};
  rules[{"", "Trilu"}] = {triluGradient, kAllButFirst};
}

}  // namespace pipeshard
