// Resize and Upsample.
//
// Every output position of an axis looks at a place on the input's axis and takes a weighted mean of the
// elements around it. Places and weights depend on neither the data nor the other axes, so one axis after the
// other is multiplied by a constant matrix [output, input]; for the nearest element, it is a Gather instead.
// An axis whose every position looks at itself stays as it is, as the batch does.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "ir/base/error.h"
#include "onnx_import/lowering/lowering_rules.h"

namespace pipeshard {
namespace {

// What the attributes say.
struct ResizeWay {
  std::string mode;
  std::string rounding;     // to the nearest element
  std::string coordinates;  // how an output position becomes a place on the input
  double cubic = 0;         // the cubic kernel's slope at distance 1
  bool antialias = false;
  bool inside_only = false;  // elements beyond the ends have no weight (else they are those at the ends)
  double extrapolation = 0;

  bool crops() const { return coordinates == "tf_crop_and_resize"; }
};

struct ResizedAxis {
  int64_t axis = 0;
  int64_t from = 0;
  int64_t to = 0;
  // The scale is divide / multiply: two sizes, whose quotient may be inexact, or a given scale and 1.
  double multiply = 1;
  double divide = 1;
  double start = 0;  // of the cropped part, in [0, 1]
  double end = 1;

  double scale() const { return divide / multiply; }
  double inInput(double steps) const { return steps * multiply / divide; }
  // Of the output before it is rounded down to `to`.
  double length() const { return static_cast<double>(from) * divide / multiply; }
};

// Where on the input the positions of the output look, and which of them look beyond its ends (1) when it is
// cropped: those get the extrapolation value, whatever their place.
struct ResizePlaces {
  std::vector<double> at;
  std::vector<double> beyond;
};

bool resizesAsBefore11(const Node& node) { return node.is("Upsample") || node.opset_version < 11; }

ResizeWay resizeWay(const LoweringContext& c) {
  const Node& node = c.node();
  ResizeWay way;
  way.mode = node.stringAttribute("mode", "nearest");
  way.rounding = node.stringAttribute("nearest_mode", "round_prefer_floor");
  way.coordinates = node.stringAttribute("coordinate_transformation_mode", "half_pixel");
  way.cubic = static_cast<double>(node.floatAttribute("cubic_coeff_a", -0.75f));
  way.antialias = node.intAttribute("antialias", 0) != 0;
  way.inside_only = node.intAttribute("exclude_outside", 0) != 0;
  way.extrapolation = static_cast<double>(node.floatAttribute("extrapolation_value", 0));
  if (resizesAsBefore11(node)) {
    way.rounding = "floor";
    way.coordinates = "asymmetric";
  }
  if (way.mode != "nearest" && way.mode != "linear" && way.mode != "cubic")
    c.refuse(fmt::format("its mode is '{}', not 'nearest', 'linear' or 'cubic'", way.mode));
  if (way.antialias && way.mode == "nearest") c.refuse("antialias has no meaning with mode 'nearest'");
  return way;
}

std::vector<double> resizeScales(const LoweringContext& c) {
  const Node& node = c.node();
  const auto found = node.attributes.find("scales");
  if (found != node.attributes.end()) {
    const auto* listed = std::get_if<std::vector<float>>(&found->second);
    if (listed == nullptr) c.refuse("its attribute 'scales' is no list of numbers");
    return {listed->begin(), listed->end()};
  }
  return c.constantNumbers(resizesAsBefore11(node) ? 1 : 2).value_or(std::vector<double>());
}

// Sizes of which the aspect ratio is kept: the axis with the least (or largest) scale gives it to all.
void keepAspectRatio(const LoweringContext& c, std::vector<ResizedAxis>& axes) {
  const std::string policy = c.node().stringAttribute("keep_aspect_ratio_policy", "stretch");
  if (policy == "stretch") return;
  if (policy != "not_larger" && policy != "not_smaller")
    c.refuse(fmt::format("its keep_aspect_ratio_policy is '{}'", policy));
  const auto less = [](const ResizedAxis& a, const ResizedAxis& b) { return a.scale() < b.scale(); };
  const ResizedAxis chosen = policy == "not_larger" ? *std::min_element(axes.begin(), axes.end(), less)
                                                    : *std::max_element(axes.begin(), axes.end(), less);
  for (ResizedAxis& axis : axes) {
    axis.multiply = chosen.multiply;
    axis.divide = chosen.divide;
  }
}

void takeCrops(const LoweringContext& c, std::vector<ResizedAxis>& axes) {
  const std::vector<double> region = c.constantNumbers(1).value_or(std::vector<double>());
  if (region.size() != 2 * axes.size())
    c.refuse(
        fmt::format("its roi has {} numbers for {} axes; it needs two for each", region.size(), axes.size()));
  for (size_t k = 0; k < axes.size(); ++k) {
    axes[k].start = region[k];
    axes[k].end = region[axes.size() + k];
  }
}

// The axes that scales, sizes and roi are about, in their order.
std::vector<ResizedAxis> resizedAxes(const LoweringContext& c, const ResizeWay& way) {
  const Shape in = c.shape(c.input(0));
  const Shape out = c.outputShape();
  std::vector<int64_t> listed = c.node().intsAttribute("axes");
  if (listed.empty()) {
    listed.resize(in.size());
    std::iota(listed.begin(), listed.end(), 0);
  }
  const std::vector<double> scales = resizeScales(c);
  std::vector<int64_t> sizes;
  if (!resizesAsBefore11(c.node())) sizes = c.constantIntegers(3).value_or(sizes);
  if (scales.empty() == sizes.empty()) c.refuse("it needs either scales or sizes");
  if (scales.size() + sizes.size() != listed.size())
    c.refuse(
        fmt::format("it has {} scales or sizes for {} axes", scales.size() + sizes.size(), listed.size()));
  std::vector<ResizedAxis> axes;
  for (size_t k = 0; k < listed.size(); ++k) {
    ResizedAxis axis;
    axis.axis = normalizeAxis(listed[k], in.size());
    axis.from = in[axis.axis];
    axis.to = out[axis.axis];
    if (axis.from != axis.to && std::min(axis.from, axis.to) == 0)
      c.refuse(fmt::format("it makes {} elements of {} along axis {}", axis.to, axis.from, axis.axis));
    if (!sizes.empty()) axis.multiply = static_cast<double>(axis.from);
    axis.divide = sizes.empty() ? scales[k] : static_cast<double>(sizes[k]);
    if (!(axis.divide > 0)) c.refuse(fmt::format("it scales axis {} by {}", axis.axis, axis.scale()));
    if (resizesAsBefore11(c.node()) && way.mode == "nearest" && axis.divide < 1)
      c.refuse("what the nearest element is when it shrinks an axis is not said before opset 11");
    axes.push_back(axis);
  }
  if (!sizes.empty()) keepAspectRatio(c, axes);
  if (way.crops()) takeCrops(c, axes);
  return axes;
}

// The place that output position i of an axis looks at; element k of the input is at k.
double resizePlace(const LoweringContext& c, const std::string& coordinates, const ResizedAxis& axis,
                   double i) {
  const double last = static_cast<double>(axis.from - 1);
  const double length = axis.length();
  const double of_centre = axis.inInput(i + 0.5) - 0.5;
  if (coordinates == "half_pixel") return of_centre;
  if (coordinates == "half_pixel_symmetric")
    return of_centre + static_cast<double>(axis.from) / 2 * (1 - static_cast<double>(axis.to) / length);
  if (coordinates == "pytorch_half_pixel") return axis.to > 1 ? of_centre : 0;
  if (coordinates == "tf_half_pixel_for_nn") return axis.inInput(i + 0.5);
  if (coordinates == "asymmetric") return axis.inInput(i);
  if (coordinates == "align_corners") return i == 0 || length == 1 ? 0 : i * last / (length - 1);
  if (coordinates != "tf_crop_and_resize")
    c.refuse(fmt::format("its coordinate_transformation_mode is '{}'", coordinates));
  if (axis.to == 1 || length == 1) return 0.5 * (axis.start + axis.end) * last;
  return axis.start * last + i * (axis.end - axis.start) * last / (length - 1);
}

ResizePlaces resizePlaces(const LoweringContext& c, const ResizeWay& way, const ResizedAxis& axis) {
  const double last = static_cast<double>(axis.from - 1);
  // A region is given in float32: what it misses an end by so little is meant to be at the end.
  const double rounding = 1e-6 * static_cast<double>(axis.from);
  c.requireTable({axis.to});
  ResizePlaces places;
  for (int64_t i = 0; i < axis.to; ++i) {
    const double place = resizePlace(c, way.coordinates, axis, static_cast<double>(i));
    const bool beyond = way.crops() && (place < -rounding || place > last + rounding);
    places.at.push_back(way.crops() ? std::clamp(place, 0.0, last) : place);
    places.beyond.push_back(beyond ? 1 : 0);
  }
  return places;
}

// Every position looks at itself, and at nothing else: the kernels are 1 at distance 0 and 0 at all other
// whole distances, unless antialiasing stretches them.
bool resizesNothing(const ResizeWay& way, const ResizedAxis& axis, const ResizePlaces& places) {
  if (axis.from != axis.to || (way.antialias && axis.scale() < 1)) return false;
  if (axis.scale() == 1 && !way.crops()) return true;  // in every mode, be its places between the elements
  for (int64_t i = 0; i < axis.to; ++i) {
    if (places.at[i] != static_cast<double>(i) || places.beyond[i] != 0) return false;
  }
  return true;
}

// Scales and regions are given in float32: a place that misses an element, or the middle of two, by what that
// rounds is meant to be there.
double snappedPlace(const ResizedAxis& axis, double place) {
  const double near = std::round(2 * place) / 2;
  return std::abs(place - near) < 1e-6 * static_cast<double>(std::max(axis.from, axis.to)) ? near : place;
}

std::vector<int64_t> nearestElements(const LoweringContext& c, const ResizeWay& way, const ResizedAxis& axis,
                                     const std::vector<double>& places) {
  std::vector<int64_t> elements;
  for (double exact : places) {
    const double place = snappedPlace(axis, exact);
    const double below = std::floor(place);
    const double rest = place - below;
    bool up = false;
    if (way.rounding == "ceil") {
      up = rest > 0;
    } else if (way.rounding == "round_prefer_floor") {
      up = rest > 0.5;
    } else if (way.rounding == "round_prefer_ceil") {
      up = rest >= 0.5;
    } else if (way.rounding != "floor") {
      c.refuse(fmt::format("its nearest_mode is '{}'", way.rounding));
    }
    elements.push_back(std::clamp<int64_t>(static_cast<int64_t>(below) + (up ? 1 : 0), 0, axis.from - 1));
  }
  return elements;
}

// The weight of an element by its distance: a tent, or Keys' cubic convolution with slope a.
double resizeKernel(const ResizeWay& way, double distance) {
  const double d = std::abs(distance);
  if (way.mode == "linear") return std::max(0.0, 1 - d);
  const double a = way.cubic;
  if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
  return d < 2 ? ((d - 5) * d + 8) * a * d - 4 * a : 0;
}

// The weights of the elements for one place. Those beyond the ends fall to the elements at the ends, or away.
// Antialiasing stretches the kernel by 1 / scale, so that it covers all that an output position stands for.
std::map<int64_t, double> resizeWeights(const LoweringContext& c, const ResizeWay& way,
                                        const ResizedAxis& axis, double place) {
  const double shrink = way.antialias ? std::min(axis.scale(), 1.0) : 1.0;
  const double reach = (way.mode == "linear" ? 1 : 2) / shrink;
  std::map<int64_t, double> weights;
  double sum = 0;
  for (double k = std::floor(place - reach) + 1; k < place + reach; ++k) {
    if (way.inside_only && (k < 0 || k >= static_cast<double>(axis.from))) continue;
    const double weight = resizeKernel(way, shrink * (k - place));
    weights[std::clamp<int64_t>(static_cast<int64_t>(k), 0, axis.from - 1)] += weight;
    sum += weight;
  }
  if (sum == 0) c.refuse(fmt::format("exclude_outside leaves nothing of what axis {} looks at", axis.axis));
  for (auto& [element, weight] : weights) weight /= sum;  // 1 already, but for these two options
  return weights;
}

// The constant [output, input], or its transpose.
ValueId resizeMatrix(LoweringContext& c, const ResizeWay& way, const ResizedAxis& axis,
                     const std::vector<double>& places, DataType type, bool transposed) {
  c.requireTable({axis.to, axis.from});
  std::vector<double> matrix(axis.to * axis.from, 0);
  for (int64_t i = 0; i < axis.to; ++i) {
    for (const auto& [k, weight] : resizeWeights(c, way, axis, places[i]))
      matrix[transposed ? k * axis.to + i : i * axis.from + k] = weight;
  }
  return c.numbers(type, transposed ? Shape{axis.from, axis.to} : Shape{axis.to, axis.from}, matrix);
}

// The last axis is multiplied from the right, any other from the left, with all axes behind it as one: no
// axis changes its place, and none is merged with one before the resized axis.
ValueId resizeByMatrix(LoweringContext& c, const ResizeWay& way, const ResizedAxis& axis,
                       const std::vector<double>& places, ValueId x) {
  Shape shape = c.shape(x);
  const DataType type = c.type(x);
  const bool at_end = axis.axis + 1 == std::ssize(shape);
  const ValueId matrix = resizeMatrix(c, way, axis, places, type, at_end);
  Shape seen = shape;
  if (at_end && seen.size() == 1) seen.insert(seen.begin(), 1);
  if (!at_end) {
    seen.resize(axis.axis + 1);
    seen.push_back(elementCount(Shape(shape.begin() + axis.axis + 1, shape.end())));
  }
  x = c.reshape(x, seen);
  shape[axis.axis] = axis.to;
  return c.reshape(at_end ? c.matMul(x, matrix) : c.matMul(matrix, x), shape);
}

// x with the extrapolation value at the positions that look beyond the ends of the axis.
ValueId extrapolateBeyond(LoweringContext& c, const ResizeWay& way, const ResizedAxis& axis,
                          const ResizePlaces& places, ValueId x) {
  if (std::find(places.beyond.begin(), places.beyond.end(), 1) == places.beyond.end()) return x;
  const DataType type = c.type(x);
  if (!isFloatingPoint(type) && type != DataType::kInt32 && type != DataType::kInt64)
    c.refuse(fmt::format("it extrapolates {}", dataTypeName(type)));
  Shape column(c.rank(x) - axis.axis, 1);
  column[0] = axis.to;
  const ValueId beyond = c.numbers(DataType::kBool, column, places.beyond);
  return c.where(beyond, c.scalar(type, way.extrapolation), x);
}

void lowerResize(LoweringContext& c) {
  const DataType type = c.type(c.input(0));
  ValueId x = c.input(0);
  const ResizeWay way = resizeWay(c);
  if (way.mode != "nearest") {
    if (!isFloatingPoint(type)) c.refuse(fmt::format("mode '{}' of {}", way.mode, dataTypeName(type)));
    x = c.cast(x, computedType(type));
  }
  const std::vector<ResizedAxis> axes = resizedAxes(c, way);
  std::vector<ResizePlaces> places;
  for (const ResizedAxis& axis : axes) {
    places.push_back(resizePlaces(c, way, axis));
    const std::vector<double>& at = places.back().at;
    if (resizesNothing(way, axis, places.back())) continue;
    x = way.mode == "nearest" ? c.gather(x, axis.axis, nearestElements(c, way, axis, at))
                              : resizeByMatrix(c, way, axis, at, x);
  }
  for (size_t k = 0; k < axes.size(); ++k) x = extrapolateBeyond(c, way, axes[k], places[k], x);
  c.give(0, c.cast(x, type));
}

}  // namespace

void addResizeLowerings(LoweringRules& rules) {
  rules[{"", "Resize"}] = lowerResize;
  rules[{"", "Upsample"}] = lowerResize;
}

}  // namespace pipeshard
