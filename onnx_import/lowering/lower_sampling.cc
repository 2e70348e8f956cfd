// GridSample: elements of an image at places that are computed.
//
// The elements around all places ("taps": 2 or 4 along each axis) are read by one GatherElements from the
// image as a line, and summed up with weights that are polynomials of what the place has beyond the element
// below it. Batch and channels stay axes of their own. Within, tensors are [N, taps.., places], with an axis
// of taps for each axis of the image.
#include <string>
#include <vector>

#include "ir/base/error.h"
#include "onnx_import/lowering/bilinear_taps.h"
#include "onnx_import/lowering/lowering_rules.h"

namespace pipeshard {
namespace {

struct GridSampling {
  std::string mode;     // nearest, linear or cubic
  std::string padding;  // zeros, border or reflection
  bool align_corners = false;
  Shape image;         // its spatial axes
  int64_t places = 1;  // for each example

  size_t axes() const { return image.size(); }
  double last(size_t axis) const { return static_cast<double>(image[axis] - 1); }
  // Where the image ends: at the centres of its outermost elements, or at their edges.
  double low() const { return align_corners ? 0 : -0.5; }
  double high(size_t axis) const { return align_corners ? last(axis) : last(axis) + 0.5; }
};

GridSampling gridSampling(const LoweringContext& c) {
  GridSampling way;
  const Shape x = c.shape(c.input(0));
  const Shape grid = c.shape(c.input(1));
  if (x.size() < 3 || grid.size() != x.size() || grid.back() != std::ssize(x) - 2)
    c.refuse(fmt::format("an image {} and a grid {} do not fit", shapeToString(x), shapeToString(grid)));
  way.image.assign(x.begin() + 2, x.end());
  if (elementCount(way.image) == 0) c.refuse("its image is empty");
  way.places = elementCount(Shape(grid.begin() + 1, grid.end() - 1));
  way.mode = c.node().stringAttribute("mode", "linear");
  if (way.mode == "bilinear") way.mode = "linear";  // until opset 19
  if (way.mode == "bicubic") way.mode = "cubic";
  if (way.mode != "nearest" && way.mode != "linear" && way.mode != "cubic")
    c.refuse(fmt::format("its mode is '{}', not 'nearest', 'linear' or 'cubic'", way.mode));
  way.padding = c.node().stringAttribute("padding_mode", "zeros");
  if (way.padding != "zeros" && way.padding != "border" && way.padding != "reflection")
    c.refuse(fmt::format("its padding_mode is '{}', not 'zeros', 'border' or 'reflection'", way.padding));
  way.align_corners = c.node().intAttribute("align_corners", 0) != 0;
  return way;
}

ValueId timesInGrid(LoweringContext& c, ValueId x, double number) {
  return c.binary("Mul", x, c.scalar(c.type(x), number));
}

// x folded back at low and high until it is between them: a triangular wave.
ValueId foldedBack(LoweringContext& c, ValueId x, double low, double high) {
  const double span = high - low;
  if (span == 0) return c.addNumber(timesInGrid(c, x, 0), low);
  const ValueId away = c.unary("Abs", c.addNumber(x, -low));
  const ValueId turns = c.unary("Floor", c.binary("Div", away, c.scalar(c.type(x), 2 * span)));
  const ValueId phase = c.binary("Sub", away, timesInGrid(c, turns, 2 * span));
  return c.binary("Sub", c.scalar(c.type(x), high), c.unary("Abs", c.addNumber(phase, -span)));
}

// The places along one axis, [N, 1.., places]; element k of the image is at k. The grid has them from -1
// (low) to 1 (high), the last axis first.
ValueId placesAlong(LoweringContext& c, const GridSampling& way, size_t axis) {
  const ValueId grid = c.input(1);
  const Shape shape = c.shape(grid);
  const auto entry = static_cast<int64_t>(way.axes() - 1 - axis);
  Shape line(way.axes() + 2, 1);
  line.front() = shape[0];
  line.back() = way.places;
  const ValueId given = c.reshape(c.slice(grid, std::ssize(shape) - 1, entry, entry + 1), line);
  const ValueId from_low = c.addNumber(given, 1);
  if (way.align_corners) return timesInGrid(c, from_low, way.last(axis) / 2);
  const ValueId in_halves = c.addNumber(timesInGrid(c, from_low, way.last(axis) + 1), -1);
  return timesInGrid(c, in_halves, 0.5);
}

// Places outside of the image brought back to it. With zeros as padding, and of a cubic kernel at the border,
// only near to it: there the taps are what is brought back, each by itself, as PyTorch and ONNX Runtime have
// it. Further out all taps are padding anyway, and an infinite place has no fraction.
ValueId boundedPlaces(LoweringContext& c, const GridSampling& way, size_t axis, ValueId place) {
  constexpr double kReach = 4;
  if (way.padding == "zeros" || (way.padding == "border" && way.mode == "cubic"))
    return c.clip(place, -kReach, way.last(axis) + kReach);
  const DataType type = c.type(place);
  const double low = way.low();
  const double high = way.high(axis);
  const ValueId below = c.compare("Less", place, c.scalar(type, low));
  const ValueId outside = c.binary("Or", below, c.compare("Less", c.scalar(type, high), place));
  const ValueId inside =
      way.padding == "border" ? c.clip(place, 0, way.last(axis)) : foldedBack(c, place, low, high);
  return c.where(outside, inside, place);
}

// A place that is at an end of the image, or was brought back there, has no gradient in PyTorch: the slope
// between the outermost elements is none of an end's.
ValueId flatAtEnds(LoweringContext& c, const GridSampling& way, size_t axis, ValueId place) {
  const ValueId first = c.scalar(c.type(place), 0), last = c.scalar(c.type(place), way.last(axis));
  const ValueId not_below = c.where(c.compare("LessOrEqual", place, first), first, place);
  return c.where(c.compare("LessOrEqual", last, place), last, not_below);
}

// For each power of the fraction, from the highest, the coefficients of the taps' weights: Keys' kernel with
// slope -3/4 at the distances 1 + f, f, 1 - f and 2 - f.
const std::vector<std::vector<double>>& cubicPolynomials() {
  constexpr double a = -0.75;
  static const std::vector<std::vector<double>> polynomials{
      {a, a + 2, -a - 2, -a}, {-2 * a, -a - 3, 2 * a + 3, a}, {a, 0, -a, 0}, {0, 1, 0, 0}};
  return polynomials;
}

// Numbers for the taps along `axis`, as they broadcast.
ValueId tapNumbers(LoweringContext& c, const GridSampling& way, size_t axis, DataType type,
                   const std::vector<double>& numbers) {
  Shape shape(way.axes() + 2, 1);
  shape[axis + 1] = std::ssize(numbers);
  return c.numbers(type, shape, numbers);
}

AxisTaps cubicTaps(LoweringContext& c, const GridSampling& way, size_t axis, ValueId place) {
  const DataType type = c.type(place);
  const ValueId below = c.unary("Floor", place);
  const ValueId fraction = c.binary("Sub", place, below);
  AxisTaps taps;
  for (const std::vector<double>& coefficients : cubicPolynomials()) {
    const ValueId of_power = tapNumbers(c, way, axis, type, coefficients);
    taps.weight =
        taps.weight.valid() ? c.binary("Add", c.binary("Mul", fraction, taps.weight), of_power) : of_power;
  }
  taps.element = c.binary("Add", below, tapNumbers(c, way, axis, type, {-1, 0, 1, 2}));
  return taps;
}

AxisTaps tapsAlong(LoweringContext& c, const GridSampling& way, size_t axis) {
  const bool nearest = way.mode == "nearest";
  ValueId place = placesAlong(c, way, axis);
  if (nearest) place = c.unary("Round", place);
  place = boundedPlaces(c, way, axis, place);
  if (way.mode == "linear" && way.padding != "zeros") place = flatAtEnds(c, way, axis, place);
  AxisTaps taps;
  taps.element = place;
  if (way.mode == "linear") taps = linearTaps(c, place, static_cast<int64_t>(axis) + 1);
  if (way.mode == "cubic") taps = cubicTaps(c, way, axis, place);
  if (way.padding == "zeros") {
    taps.inside = placeIsBetween(c, taps.element, 0, way.last(axis));
    if (!nearest) taps.weight = c.binary("Mul", taps.weight, c.cast(taps.inside, c.type(place)));
  }
  // A linear tap is outside by 1 at most, where the element at the end has no weight or is its reflection.
  if (way.padding == "reflection" && way.mode == "cubic")
    taps.element = foldedBack(c, taps.element, way.low(), way.high(axis));
  taps.element = tapElement(c, taps.element, way.last(axis));
  return taps;
}

void lowerGridSample(LoweringContext& c) {
  const GridSampling way = gridSampling(c);
  const Shape shape = c.shape(c.input(0));
  const DataType type = c.type(c.input(0));
  if (way.mode != "nearest" && !isFloatingPoint(type))
    c.refuse(fmt::format("mode '{}' of {}", way.mode, dataTypeName(type)));
  std::vector<AxisTaps> taps;
  for (size_t axis = 0; axis < way.axes(); ++axis) taps.push_back(tapsAlong(c, way, axis));
  ValueId result = readImage(c, c.input(0), tapPositions(c, taps, way.image), 1);
  if (way.mode != "nearest") {
    const int64_t count = way.places == 0 ? 0 : c.shape(result)[2] / way.places;
    const ValueId weight = c.cast(foldTaps(c, "Mul", taps, &AxisTaps::weight), type);
    const ValueId read = c.reshape(result, {shape[0], shape[1], count, way.places});
    const ValueId weighted = c.binary("Mul", read, c.reshape(weight, {shape[0], 1, count, way.places}));
    result = c.reduce("ReduceSum", weighted, {2}, false);
  } else if (way.padding == "zeros") {
    if (!isFloatingPoint(type) && type != DataType::kInt32 && type != DataType::kInt64 &&
        type != DataType::kBool)
      c.refuse(fmt::format("padding {} with zeros", dataTypeName(type)));
    const ValueId inside = c.reshape(foldTaps(c, "And", taps, &AxisTaps::inside), {shape[0], 1, way.places});
    result = c.where(inside, result, c.scalar(type, 0));
  }
  c.give(0, c.reshape(result, c.outputShape()));
}

}  // namespace

void addSamplingLowerings(LoweringRules& rules) { rules[{"", "GridSample"}] = lowerGridSample; }

}  // namespace pipeshard
