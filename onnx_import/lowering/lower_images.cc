// Operators on images [N, C, spatial axes..]: sums over windows, and their inverses.
#include <algorithm>
#include <string>
#include <vector>

#include "ir/base/error.h"
#include "onnx_import/lowering/lowering_rules.h"

namespace pipeshard {
namespace {

// Zeros around x, as many before and behind each axis.
ValueId paddedWithZeros(LoweringContext& c, ValueId x, const std::vector<int64_t>& before,
                        const std::vector<int64_t>& behind) {
  Shape shape = c.shape(x);
  for (size_t axis = 0; axis < shape.size(); ++axis) shape[axis] += before[axis] + behind[axis];
  if (shape == c.shape(x)) return x;
  std::vector<int64_t> pads = before;
  pads.insert(pads.end(), behind.begin(), behind.end());
  return c.op("Pad", {x, c.integers(pads)}, c.type(x), shape);
}

// Y = X / (bias + alpha / size * sum of squares)^beta, the sum over a window of `size` channels around each:
// the squares, padded with zeros, shifted against each other and added.
void lowerLrn(LoweringContext& c) {
  const ValueId x = c.input(0);
  const Shape shape = c.shape(x);
  const DataType type = c.type(x);
  if (shape.size() < 2) c.refuse("its input has no channels");
  const int64_t size = c.node().intAttribute("size", 0);
  if (size < 1) c.refuse(fmt::format("its size is {}", size));
  const int64_t furthest = std::max<int64_t>(0, shape[1] - 1);
  std::vector<int64_t> before(shape.size(), 0);
  std::vector<int64_t> behind(shape.size(), 0);
  before[1] = std::min((size - 1) / 2, furthest);
  behind[1] = std::min(size / 2, furthest);
  const ValueId squares = paddedWithZeros(c, c.binary("Mul", x, x), before, behind);
  ValueId sum = c.slice(squares, 1, 0, shape[1]);
  for (int64_t shift = 1; shift <= before[1] + behind[1]; ++shift)
    sum = c.binary("Add", sum, c.slice(squares, 1, shift, shift + shape[1]));
  const auto number = [&](const char* name, float otherwise) {
    return static_cast<double>(c.node().floatAttribute(name, otherwise));
  };
  const double factor = number("alpha", 1e-4f) / static_cast<double>(size);
  const ValueId base = c.addNumber(c.binary("Mul", sum, c.scalar(type, factor)), number("bias", 1));
  c.give(0, c.binary("Div", x, c.binary("Pow", base, c.scalar(type, number("beta", 0.75f)))));
}

// ---- (sum of |x|^p)^(1/p)

int64_t normOrder(const LoweringContext& c) {
  const int64_t p = c.node().intAttribute("p", 2);
  if (p < 1) c.refuse(fmt::format("its p is {}", p));
  return p;
}

ValueId powerOfNorm(LoweringContext& c, ValueId x, int64_t p) {
  if (p == 2) return c.binary("Mul", x, x);
  const ValueId size = c.unary("Abs", x);
  return p == 1 ? size : c.binary("Pow", size, c.scalar(c.type(x), static_cast<double>(p)));
}

// Where all elements are 0, the norm has no derivative; the choice keeps the root away from it, so that their
// gradient is 0 and not infinity times 0.
ValueId rootOfNorm(LoweringContext& c, ValueId sum, int64_t p) {
  if (p == 1) return sum;
  const DataType type = c.type(sum);
  const ValueId zero = c.scalar(type, 0);
  const ValueId is_zero = c.compare("Equal", sum, zero);
  const ValueId base = c.where(is_zero, c.scalar(type, 1), sum);
  const ValueId root =
      p == 2 ? c.unary("Sqrt", base) : c.binary("Pow", base, c.scalar(type, 1 / static_cast<double>(p)));
  return c.where(is_zero, zero, root);
}

void lowerGlobalLpPool(LoweringContext& c) {
  const ValueId x = c.input(0);
  const int64_t p = normOrder(c);
  std::vector<int64_t> axes;
  for (int64_t axis = 2; axis < c.rank(x); ++axis) axes.push_back(axis);
  c.give(0, rootOfNorm(c, c.reduce("ReduceSum", powerOfNorm(c, x, p), axes), p));
}

// A list attribute with an entry for each axis, or the default for all.
std::vector<int64_t> windowList(const LoweringContext& c, const char* name, size_t size, int64_t otherwise) {
  std::vector<int64_t> list = c.node().intsAttribute(name);
  if (list.empty()) list.assign(size, otherwise);
  if (list.size() != size) c.refuse(fmt::format("its {} has {} entries, not {}", name, list.size(), size));
  return list;
}

struct NormWindow {
  std::vector<int64_t> kernel, strides, dilations;
  std::vector<int64_t> pads;  // such that the last window ends within them, ceil_mode or not

  // An AveragePool in every opset: without dilations, and with pads smaller than the kernel.
  bool isPlain() const {
    for (size_t i = 0; i < kernel.size(); ++i) {
      if (dilations[i] != 1 || std::max(pads[i], pads[kernel.size() + i]) >= kernel[i]) return false;
    }
    return true;
  }
  LoweringContext::Attributes attributes() const {
    return {{"kernel_shape", kernel}, {"strides", strides}, {"pads", pads}};
  }
};

NormWindow normWindow(const LoweringContext& c) {
  const Shape in = c.shape(c.input(0));
  const Shape out = c.outputShape();
  if (in.size() < 3 || in.size() > 5)
    c.refuse(fmt::format("its input is {}; pools have one to three spatial axes", shapeToString(in)));
  const size_t axes = in.size() - 2;
  NormWindow window{c.node().intsAttribute("kernel_shape"), windowList(c, "strides", axes, 1),
                    windowList(c, "dilations", axes, 1), windowList(c, "pads", 2 * axes, 0)};
  if (window.kernel.size() != axes)
    c.refuse(fmt::format("its kernel_shape has {} entries, not {}", window.kernel.size(), axes));
  std::string shared = c.node().stringAttribute("auto_pad", "NOTSET");
  if (shared.empty()) shared = "NOTSET";
  if (shared != "NOTSET" && shared != "VALID" && shared != "SAME_UPPER" && shared != "SAME_LOWER")
    c.refuse(fmt::format("its auto_pad is '{}'", shared));
  for (size_t i = 0; i < axes; ++i) {
    const int64_t reach =
        (out[i + 2] - 1) * window.strides[i] + (window.kernel[i] - 1) * window.dilations[i] + 1;
    const int64_t missing = std::max<int64_t>(0, reach - in[i + 2]);
    if (shared != "NOTSET") window.pads[i] = 0;
    if (shared == "SAME_UPPER") window.pads[i] = missing / 2;
    if (shared == "SAME_LOWER") window.pads[i] = missing - missing / 2;
    window.pads[axes + i] = std::max<int64_t>(0, reach - in[i + 2] - window.pads[i]);
  }
  return window;
}

// Sums over windows are averages that count the padding, times the window's size; what an AveragePool cannot
// do is a convolution of each channel with ones.
void lowerLpPool(LoweringContext& c) {
  const ValueId x = c.input(0);
  const DataType type = c.type(x);
  const int64_t p = normOrder(c);
  const NormWindow window = normWindow(c);
  const ValueId powers = powerOfNorm(c, x, p);
  LoweringContext::Attributes attributes = window.attributes();
  ValueId sum;
  if (window.isPlain()) {
    attributes["count_include_pad"] = int64_t{1};
    const ValueId mean = c.op("AveragePool", {powers}, type, c.outputShape(), std::move(attributes));
    const auto size = static_cast<double>(elementCount(window.kernel));
    sum = c.binary("Mul", mean, c.scalar(type, size));
  } else {
    const int64_t channels = c.shape(x)[1];
    Shape weight{channels, 1};
    weight.insert(weight.end(), window.kernel.begin(), window.kernel.end());
    c.requireTable(weight);
    const ValueId ones = c.numbers(type, weight, std::vector<double>(elementCount(weight), 1));
    attributes["dilations"] = window.dilations;
    attributes["group"] = channels;
    sum = c.op("Conv", {powers, ones}, type, c.outputShape(), std::move(attributes));
  }
  c.give(0, rootOfNorm(c, sum, p));
}

// ---- Col2Im

// How many places the block has along each axis of the image; their product is the input's last axis.
std::vector<int64_t> blockPlaces(const LoweringContext& c, const std::vector<int64_t>& image,
                                 const std::vector<int64_t>& block) {
  const size_t axes = image.size();
  const std::vector<int64_t> strides = windowList(c, "strides", axes, 1);
  const std::vector<int64_t> dilations = windowList(c, "dilations", axes, 1);
  const std::vector<int64_t> pads = windowList(c, "pads", 2 * axes, 0);
  std::vector<int64_t> places;
  for (size_t i = 0; i < axes; ++i) {
    const int64_t room = image[i] + pads[i] + pads[axes + i] - (block[i] - 1) * dilations[i] - 1;
    if (room < 0) c.refuse(fmt::format("its block does not fit into the image along axis {}", i));
    places.push_back(room / strides[i] + 1);
  }
  return places;
}

// A transposed convolution adds to the image, at every place of a block, the input times the weight. With one
// group for each channel of the image, whose input channels are the elements of the block, weight b is 1 at
// element b and 0 elsewhere: then it puts every element where it belongs.
void lowerCol2Im(LoweringContext& c) {
  const ValueId x = c.input(0);
  const DataType type = c.type(x);
  const std::vector<int64_t> image = c.constantIntegers(1).value_or(std::vector<int64_t>());
  const std::vector<int64_t> block = c.constantIntegers(2).value_or(std::vector<int64_t>());
  const Shape given = c.shape(x);
  const size_t axes = image.size();
  if (axes < 1 || axes > 3) c.refuse(fmt::format("its image has {} spatial axes, not one to three", axes));
  if (block.size() != axes || given.size() != 3)
    c.refuse(fmt::format("a block of {} axes and an input {} do not fit to an image of {}", block.size(),
                         shapeToString(given), axes));
  if (!isFloatingPoint(type)) c.refuse(fmt::format("an image of {}", dataTypeName(type)));
  const int64_t size = elementCount(block);
  const int64_t channels = c.outputShape()[1];
  const std::vector<int64_t> places = blockPlaces(c, image, block);
  if (given[1] != channels * size || given[2] != elementCount(places))
    c.refuse(fmt::format("its input {} is not what a block of {} elements takes from the image",
                         shapeToString(given), size));
  std::vector<int64_t> rest;  // of the image, behind the last block
  const std::vector<int64_t> strides = windowList(c, "strides", axes, 1);
  const std::vector<int64_t> dilations = windowList(c, "dilations", axes, 1);
  const std::vector<int64_t> pads = windowList(c, "pads", 2 * axes, 0);
  for (size_t i = 0; i < axes; ++i) {
    const int64_t covered = (places[i] - 1) * strides[i] + (block[i] - 1) * dilations[i] + 1;
    rest.push_back(image[i] + pads[i] + pads[axes + i] - covered);
  }
  Shape weight{given[1], 1};
  weight.insert(weight.end(), block.begin(), block.end());
  c.requireTable({given[1], size});
  std::vector<double> elements(given[1] * size, 0);
  for (int64_t i = 0; i < given[1]; ++i) elements[i * size + i % size] = 1;
  Shape laid_out{given[0], given[1]};
  laid_out.insert(laid_out.end(), places.begin(), places.end());
  c.give(0, c.op("ConvTranspose", {c.reshape(x, laid_out), c.numbers(type, weight, elements)}, type,
                 c.outputShape(),
                 {{"group", channels},
                  {"kernel_shape", block},
                  {"strides", strides},
                  {"dilations", dilations},
                  {"pads", pads},
                  {"output_padding", rest}}));
}

// ---- MaxUnpool

// The image that was pooled, as kernel, strides and pads say it: what the indices count through.
Shape pooledImage(const LoweringContext& c) {
  Shape image = c.shape(c.input(0));
  if (image.size() < 3) c.refuse("its input has no image axes");
  const size_t axes = image.size() - 2;
  const std::vector<int64_t> kernel = c.node().intsAttribute("kernel_shape");
  const std::vector<int64_t> strides = windowList(c, "strides", axes, 1);
  const std::vector<int64_t> pads = windowList(c, "pads", 2 * axes, 0);
  if (kernel.size() != axes)
    c.refuse(fmt::format("its kernel_shape has {} entries, not {}", kernel.size(), axes));
  for (size_t i = 0; i < axes; ++i)
    image[i + 2] = (image[i + 2] - 1) * strides[i] + kernel[i] - pads[i] - pads[axes + i];
  return image;
}

// ONNX does not infer it from input 2.
Shape unpooledShape(const LoweringContext& c, const Shape& image) {
  if (!c.hasInput(2)) return image;
  const Shape wanted =
      !c.isKnown(2) && c.hasOutputType() ? c.outputShape() : Shape(c.constantIntegers(2).value());
  if (wanted.size() != image.size() || !std::equal(image.begin(), image.begin() + 2, wanted.begin()))
    c.refuse(
        fmt::format("its output {} has another rank, batch or number of channels", shapeToString(wanted)));
  return wanted;
}

// The indices count through the whole tensor; their rest by the size of an image counts through the image,
// for any part of the batch. Scattered are not the elements but their numbers (an element that does not exist
// has the number `count`, and is 0): then the output is a GatherElements, which has a gradient.
void lowerMaxUnpool(LoweringContext& c) {
  const ValueId x = c.input(0);
  const Shape given = c.shape(x);
  if (c.shape(c.input(1)) != given) c.refuse("its indices have another shape than its input");
  const Shape image = pooledImage(c);
  Shape behind = unpooledShape(c, image);
  for (size_t axis = 0; axis < behind.size(); ++axis) {
    behind[axis] -= image[axis];
    if (axis > 1 && (image[axis] < 1 || behind[axis] < 0))
      c.refuse(fmt::format("its kernel, strides and pads make {} of axis {}, and the output has {}",
                           image[axis], axis, image[axis] + behind[axis]));
  }
  const int64_t size = elementCount(Shape(image.begin() + 2, image.end()));
  const int64_t count = elementCount(Shape(given.begin() + 2, given.end()));
  if (count == 0) c.refuse("its input is empty");
  const Shape line{given[0], given[1], count};
  const Shape image_line{given[0], given[1], size};
  const auto integer = [&](int64_t number) {
    return c.scalar(DataType::kInt64, static_cast<double>(number));
  };
  const ValueId places = c.binary("Mod", c.reshape(c.input(1), line), integer(size));
  const ValueId zeros = c.binary("Mul", places, integer(0));
  c.requireTable({count});
  std::vector<int64_t> in_order(count);
  for (int64_t i = 0; i < count; ++i) in_order[i] = i;
  const ValueId numbers = c.binary("Add", zeros, c.integers(in_order));
  const ValueId none = c.binary("Add", c.slice(zeros, 2, 0, 1), integer(count));
  const ValueId sources = c.op("ScatterElements", {c.expand(none, image_line), places, numbers},
                               DataType::kInt64, image_line, {{"axis", int64_t{2}}});
  const ValueId with_zero = paddedWithZeros(c, c.reshape(x, line), {0, 0, 0}, {0, 0, 1});
  const ValueId unpooled =
      c.op("GatherElements", {with_zero, sources}, c.type(x), image_line, {{"axis", int64_t{2}}});
  c.give(0, paddedWithZeros(c, c.reshape(unpooled, image), Shape(image.size(), 0), behind));
}

}  // namespace

void addImageLowerings(LoweringRules& rules) {
  rules[{"", "Col2Im"}] = lowerCol2Im;
  rules[{"", "GlobalLpPool"}] = lowerGlobalLpPool;
  rules[{"", "LpPool"}] = lowerLpPool;
  rules[{"", "LRN"}] = lowerLrn;
  rules[{"", "MaxUnpool"}] = {lowerMaxUnpool, nullptr, true};
}

}  // namespace pipeshard
