// Operators that take some elements or put them together: Slice, Split, Concat, Pad, Gather, GatherElements,
// GatherND, Trilu.
#include <algorithm>

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

void padGradient(GradientContext& c) {
  c.requireVersion(11);
  if (c.node().stringAttribute("mode", "constant") != "constant")
    c.refuse("only mode \"constant\" has a gradient rule");
  if (c.needs(2)) c.refuse("the value it pads with depends on a parameter");
  const Shape shape = c.shape(c.input(0));
  const std::vector<int64_t> pads = c.constantIntegers(1).value();
  const std::optional<std::vector<int64_t>> axes = c.constantIntegers(3);
  const size_t count = pads.size() / 2;
  Shape before(shape.size(), 0);
  Shape after(shape.size(), 0);
  ValueId gradient = c.outputGradient();
  for (size_t i = 0; i < count; ++i) {
    const size_t axis = axes ? normalizeAxis((*axes)[i], shape.size()) : static_cast<int>(i);
    const int64_t size = c.shape(gradient)[axis];
    gradient = sliceAxis(c, gradient, axis, std::max<int64_t>(pads[i], 0),
                         size - std::max<int64_t>(pads[count + i], 0));
    before[axis] = std::max<int64_t>(-pads[i], 0);  // a negative pad cut elements off
    after[axis] = std::max<int64_t>(-pads[count + i], 0);
  }
  c.give(0, padZeros(c, gradient, before, after));
}

void gatherGradient(GradientContext& c) {
  const ValueId indices = c.cast(c.input(1), DataType::kInt64);
  c.give(0,
         scatterAxis(c, c.outputGradient(), indices, c.shape(c.input(0)), c.node().intAttribute("axis", 0)));
}

void gatherElementsGradient(GradientContext& c) {
  const ValueId indices = c.cast(c.input(1), DataType::kInt64);
  const Shape shape = c.shape(c.input(0));
  c.give(0, c.function("GatherElementsGrad", "", {c.outputGradient(), indices, c.integers(shape)},
                       c.type(c.input(0)), shape, {{"axis", c.node().intAttribute("axis", 0)}}));
}

void gatherNdGradient(GradientContext& c) {
  if (c.node().intAttribute("batch_dims", 0) != 0)
    c.refuse("batch_dims other than 0 has no gradient rule; use GatherElements");
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
  rules[{"", "Trilu"}] = {triluGradient, kAllButFirst};
}

}  // namespace pipeshard
