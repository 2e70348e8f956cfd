// Convolutions, pools and batch normalisation.
#include <algorithm>

#include <fmt/format.h>

#include "onnx_import/autodiff/gradient_rules.h"

namespace pipeshard {
namespace {

using Integers = std::vector<int64_t>;

// The attributes of a sliding window, complete and without auto_pad.
struct WindowAttributes {
  Integers kernel, strides, dilations, pads;

  std::map<std::string, Attribute> attributes() const {
    return {{"kernel_shape", kernel}, {"strides", strides}, {"dilations", dilations}, {"pads", pads}};
  }
  int64_t reach(size_t axis) const { return (kernel[axis] - 1) * dilations[axis] + 1; }
};

WindowAttributes windowOf(const GradientContext& c, Integers kernel, const Shape& image,
                          const Shape& output) {
  const size_t axes = kernel.size();
  const auto listed = [&](std::string_view name, size_t size, int64_t otherwise) {
    const Integers list = c.node().intsAttribute(name);
    return list.empty() ? Integers(size, otherwise) : list;
  };
  WindowAttributes window{std::move(kernel), listed("strides", axes, 1), listed("dilations", axes, 1),
                          Integers(2 * axes, 0)};
  const std::string auto_pad = c.node().stringAttribute("auto_pad", "NOTSET");
  if (auto_pad == "NOTSET" || auto_pad.empty()) window.pads = listed("pads", 2 * axes, 0);
  if (auto_pad != "SAME_UPPER" && auto_pad != "SAME_LOWER") return window;
  for (size_t i = 0; i < axes; ++i) {
    const int64_t total =
        std::max<int64_t>(0, (output[i + 2] - 1) * window.strides[i] + window.reach(i) - image[i + 2]);
    window.pads[i] = auto_pad == "SAME_UPPER" ? total / 2 : total - total / 2;
    window.pads[axes + i] = total - window.pads[i];
  }
  return window;
}

// All axes but that of the channels.
Integers axesButChannels(size_t rank) {
  Integers axes;
  for (size_t i = 0; i < rank; ++i) {
    if (i != 1) axes.push_back(i);
  }
  return axes;
}

void biasGradient(GradientContext& c, ValueId dy) {
  const Shape wanted = {c.shape(dy)[1]};
  if (c.shape(c.input(2)) != wanted) {
    c.refuse(fmt::format("its bias has shape {}; it must be {}", shapeToString(c.shape(c.input(2))),
                         shapeToString(wanted)));
  }
  c.give(2, c.reduceSum(dy, axesButChannels(c.shape(dy).size()), false, c.gradientType(2)));
}

void convGradient(GradientContext& c) {
  const ValueId x = c.input(0);
  const ValueId w = c.input(1);
  const ValueId dy = c.outputGradient();
  const Shape image = c.shape(x);
  const Shape weight = c.shape(w);
  const Shape output = c.shape(dy);
  const DataType type = c.type(x);
  const WindowAttributes window = windowOf(c, Integers(weight.begin() + 2, weight.end()), image, output);
  std::map<std::string, Attribute> attributes = window.attributes();
  attributes["group"] = c.node().intAttribute("group", 1);
  if (c.needs(0)) {
    const size_t axes = window.kernel.size();
    Integers rest;  // what the image has beyond the last window
    for (size_t i = 0; i < axes; ++i) {
      const int64_t covered = (output[i + 2] - 1) * window.strides[i] + window.reach(i);
      rest.push_back(image[i + 2] + window.pads[i] + window.pads[axes + i] - covered);
    }
    std::map<std::string, Attribute> with_padding = attributes;
    with_padding["output_padding"] = rest;
    c.give(0, c.function("ConvInputGrad", "", {dy, w}, type, image, std::move(with_padding)));
  }
  if (c.needs(1)) c.give(1, c.function("ConvWeightGrad", "", {dy, x}, c.gradientType(1), weight, attributes));
  if (c.needs(2)) biasGradient(c, dy);
}

// The window of a transposed convolution as that of the convolution from its output to its input. Its pads at
// the end need only cover the last position; those at the begin follow output_shape or auto_pad, which share
// out what the windows reach beyond the output.
WindowAttributes transposedWindowOf(const GradientContext& c, Integers kernel, const Shape& input,
                                    const Shape& output) {
  const std::string auto_pad = c.node().stringAttribute("auto_pad", "NOTSET");
  const bool same = auto_pad == "SAME_UPPER" || auto_pad == "SAME_LOWER";
  const bool shared = same || !c.node().intsAttribute("output_shape").empty();
  const size_t axes = kernel.size();
  WindowAttributes window = windowOf(c, std::move(kernel), output, input);
  const Integers padding = c.node().intsAttribute("output_padding");
  for (size_t i = 0; i < axes; ++i) {
    const int64_t reach = (input[i + 2] - 1) * window.strides[i] + window.reach(i);
    const int64_t total = std::max<int64_t>(0, reach + (padding.empty() ? 0 : padding[i]) - output[i + 2]);
    if (shared) window.pads[i] = auto_pad == "SAME_UPPER" ? total / 2 : total - total / 2;
    window.pads[axes + i] = std::max<int64_t>(0, reach - output[i + 2] - window.pads[i]);
  }
  return window;
}

// dY without what lies so far behind the last window (output_padding, output_shape) that one more window
// would fit.
ValueId withinWindows(GradientContext& c, const WindowAttributes& window, const Shape& input) {
  const ValueId dy = c.outputGradient();
  Shape shape = c.shape(dy);
  Integers starts, ends, axes;
  for (size_t i = 0; i < window.kernel.size(); ++i) {
    const int64_t end = (input[i + 2] - 1) * window.strides[i] + window.reach(i) - window.pads[i];
    if (shape[i + 2] - end < window.strides[i]) continue;
    shape[i + 2] = end;
    starts.push_back(0);
    ends.push_back(end);
    axes.push_back(i + 2);
  }
  if (axes.empty()) return dy;
  return c.op("Slice", {dy, c.integers(starts), c.integers(ends), c.integers(axes)}, c.type(dy), shape);
}

// ConvTranspose is the adjoint of a Conv from its output to its input: dX is that Conv of dY, dW its weight's
// gradient.
void convTransposeGradient(GradientContext& c) {
  const ValueId x = c.input(0);
  const ValueId w = c.input(1);
  const ValueId dy = c.outputGradient();
  const Shape weight = c.shape(w);
  const WindowAttributes window =
      transposedWindowOf(c, Integers(weight.begin() + 2, weight.end()), c.shape(x), c.shape(dy));
  std::map<std::string, Attribute> attributes = window.attributes();
  attributes["group"] = c.node().intAttribute("group", 1);
  if (c.needs(0) || c.needs(1)) {
    const ValueId image = withinWindows(c, window, c.shape(x));
    if (c.needs(0)) c.give(0, c.op("Conv", {image, w}, c.type(x), c.shape(x), attributes));
    if (c.needs(1))
      c.give(1, c.function("ConvWeightGrad", "", {x, image}, c.gradientType(1), weight, attributes));
  }
  if (c.needs(2)) biasGradient(c, dy);
}

void maxPoolGradient(GradientContext& c) {
  if (c.outputGradient(1).valid()) c.refuse("the loss depends on its output Indices");
  const ValueId x = c.input(0);
  const ValueId dy = c.outputGradient();
  std::map<std::string, Attribute> attributes =
      windowOf(c, c.node().intsAttribute("kernel_shape"), c.shape(x), c.shape(dy)).attributes();
  attributes["ceil_mode"] = c.node().intAttribute("ceil_mode", 0);
  c.give(0, c.function("MaxPoolGrad", "", {dy, x}, c.type(x), c.shape(x), std::move(attributes)));
}

void averagePoolGradient(GradientContext& c) {
  const ValueId x = c.input(0);
  const ValueId dy = c.outputGradient();
  const Shape image = c.shape(x);
  std::map<std::string, Attribute> attributes =
      windowOf(c, c.node().intsAttribute("kernel_shape"), image, c.shape(dy)).attributes();
  for (const char* name : {"ceil_mode", "count_include_pad"})
    attributes[name] = c.node().intAttribute(name, 0);
  attributes["image"] = Integers(image.begin() + 2, image.end());
  c.give(0, c.function("AveragePoolGrad", "", {dy}, c.type(x), image, std::move(attributes)));
}

// A MaxPool whose only window is the whole image. Pools take one to three spatial axes; other images are seen
// as lines.
void globalMaxPoolGradient(GradientContext& c) {
  const ValueId x = c.input(0);
  const Shape image = c.shape(x);
  const Shape line = {image[0], image[1],
                      image[0] * image[1] == 0 ? 0 : elementCount(image) / (image[0] * image[1])};
  const Shape seen = image.size() >= 3 && image.size() <= 5 ? image : line;
  const size_t axes = seen.size() - 2;
  Shape pooled(seen.size(), 1);
  std::copy_n(seen.begin(), 2, pooled.begin());
  const WindowAttributes window{Integers(seen.begin() + 2, seen.end()), Integers(axes, 1), Integers(axes, 1),
                                Integers(2 * axes, 0)};
  std::map<std::string, Attribute> attributes = window.attributes();
  attributes["ceil_mode"] = int64_t{0};
  const ValueId dy = c.reshape(c.outputGradient(), pooled);
  c.give(0, c.reshape(c.function("MaxPoolGrad", "", {dy, c.reshape(x, seen)}, c.type(x), seen,
                                 std::move(attributes)),
                      image));
}

void globalAveragePoolGradient(GradientContext& c) {
  const Shape image = c.shape(c.input(0));
  const ValueId dy = c.outputGradient();
  const double share =
      static_cast<double>(elementCount(c.shape(dy))) / static_cast<double>(elementCount(image));
  c.give(0, c.expand(c.scale(dy, share), image));
}

// With given statistics:   Y = (X - Mean) Scale / sqrt(Var + epsilon) + B
// They may be computed, too: PyTorch exports a batch normalisation without running statistics so. All is done
// in the type of the scale: X may be narrower (mixed precision).
void inferenceGradient(GradientContext& c, const Integers& axes) {
  const DataType type = c.type(c.input(1));
  const ValueId x = c.cast(c.input(0), type), dy = c.cast(c.outputGradient(), type);
  const ValueId mean = c.cast(c.input(3), type), variance = c.cast(c.input(4), type);
  Shape column(c.shape(x).size() - 1, 1);
  column[0] = c.shape(x)[1];
  const ValueId deviation =
      c.unary("Sqrt", c.addNumber(variance, static_cast<double>(c.node().floatAttribute("epsilon", 1e-5f))));
  const ValueId inverse = c.unary("Reciprocal", deviation);
  const ValueId slope = c.binary("Mul", c.input(1), inverse);
  const auto give = [&](size_t position, ValueId gradient) {
    c.give(position, c.cast(gradient, c.type(c.input(position))));
  };
  if (c.needs(0)) give(0, c.binary("Mul", dy, c.reshape(slope, column)));
  if (c.needs(1)) {
    const ValueId centred = c.binary("Sub", x, c.reshape(mean, column));
    give(1, c.binary("Mul", c.reduceSum(c.binary("Mul", dy, centred), axes, false), inverse));
  }
  if (c.needs(2)) give(2, c.reduceSum(dy, axes, false));
  if (c.needs(3)) give(3, c.unary("Neg", c.binary("Mul", c.reduceSum(dy, axes, false), slope)));
  if (c.needs(4)) {
    const ValueId centred = c.binary("Sub", x, c.reshape(mean, column));
    const ValueId moment = c.reduceSum(c.binary("Mul", dy, centred), axes, false);
    const ValueId cubed = c.binary("Mul", slope, c.binary("Mul", inverse, inverse));
    give(4, c.scale(c.binary("Mul", moment, cubed), -0.5));
  }
}

void batchNormalizationGradient(GradientContext& c) {
  c.requireVersion(14);
  if (c.outputGradient(1).valid() || c.outputGradient(2).valid())
    c.refuse("the loss depends on its running statistics");
  const ValueId x = c.input(0);
  const ValueId dy = c.outputGradient();
  const Shape shape = c.shape(x);
  if (shape.size() < 2) c.refuse("its gradient needs an input with a batch and a channel axis");
  const Integers axes = axesButChannels(shape.size());
  if (c.node().intAttribute("training_mode", 0) == 0) return inferenceGradient(c, axes);
  const std::map<std::string, Attribute> attributes = {
      {"epsilon", c.node().floatAttribute("epsilon", 1e-5f)}};
  if (c.needs(0))
    c.give(0,
           c.function("BatchNormalizationInputGrad", "", {dy, x, c.input(1)}, c.type(x), shape, attributes));
  if (!c.needs(1) && !c.needs(2)) return;
  const auto wanted = [&](size_t position) {
    return c.needs(position) ? std::optional<Shape>(Shape{shape[1]}) : std::nullopt;
  };
  const std::vector<ValueId> gradients = c.functionOutputs(
      "BatchNormalizationWeightGrad", "", {dy, x}, c.type(c.input(1)), {wanted(1), wanted(2)}, attributes);
  for (size_t i = 1; i <= 2; ++i) {
    if (c.needs(i)) c.give(i, gradients[i - 1]);
  }
}

// In training mode: the running statistics.
uint32_t stoppedInTraining(const Node& node) {
  return node.intAttribute("training_mode", 0) != 0 ? (uint32_t{1} << 3) | (uint32_t{1} << 4) : 0;
}

}  // namespace

void addConvolutionRules(GradientRules& rules) {
  rules[{"", "Conv"}] = {convGradient};
  rules[{"", "ConvTranspose"}] = {convTransposeGradient};
  rules[{"", "AveragePool"}] = {averagePoolGradient};
  rules[{"", "GlobalMaxPool"}] = {globalMaxPoolGradient};
  rules[{"", "MaxPool"}] = {maxPoolGradient};
  rules[{"", "GlobalAveragePool"}] = {globalAveragePoolGradient};
  rules[{"", "BatchNormalization"}] = {batchNormalizationGradient, 0, stoppedInTraining};
}

}  // namespace pipeshard
