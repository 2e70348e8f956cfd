// Fourier transforms, determinants, writing into tensors, and pooling and convolution at computed places.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <string>
#include <vector>

#include "ir/base/error.h"
#include "onnx_import/lowering/bilinear_taps.h"
#include "onnx_import/lowering/lowering_rules.h"

namespace pipeshard {
namespace {

// ---- Fourier transforms: a product with a constant matrix

struct FourierWay {
  int64_t length = 0;   // of the transform; the signal is cut to it, or goes on with zeros
  int64_t results = 0;  // the first ones only, if it is one-sided
  bool inverse = false;
  bool mirrored = false;  // of the first numbers alone, which say the others; gives real numbers

  int64_t read() const { return mirrored ? length / 2 + 1 : length; }  // samples, at most
  int64_t resultParts() const { return mirrored ? 1 : 2; }
};

// How often a sample of a mirrored transform counts: once more for the conjugate that is left out.
double timesCounted(const FourierWay& way, int64_t sample) {
  return way.mirrored && sample > 0 && 2 * sample != way.length ? 2 : 1;
}

// [samples * parts, results * resultParts]: rows and columns are a real part, or real and imaginary parts by
// turns. What is zero beyond the signal's end needs no rows.
ValueId fourierMatrix(LoweringContext& c, const FourierWay& way, int64_t samples, int64_t parts,
                      DataType type) {
  const int64_t rows = samples * parts;
  const int64_t of_result = way.resultParts();
  const int64_t columns = way.results * of_result;
  c.requireTable({rows, columns});
  std::vector<double> matrix(rows * columns);
  const double sign = way.inverse ? 1 : -1;
  for (int64_t n = 0; n < samples; ++n) {
    const double size = timesCounted(way, n) / (way.inverse ? static_cast<double>(way.length) : 1);
    for (int64_t k = 0; k < way.results; ++k) {
      const double turns = static_cast<double>(n * k % way.length) / static_cast<double>(way.length);
      const double real = size * std::cos(2 * std::numbers::pi * turns);
      const double imaginary = size * sign * std::sin(2 * std::numbers::pi * turns);
      double* of_real = &matrix[n * parts * columns + of_result * k];
      of_real[0] = real;
      if (of_result == 2) of_real[1] = imaginary;
      if (parts == 1) continue;
      of_real[columns] = -imaginary;
      if (of_result == 2) of_real[columns + 1] = real;
    }
  }
  return c.numbers(type, {rows, columns}, matrix);
}

// x [.., samples, parts], transformed along the samples.
ValueId fourierTransform(LoweringContext& c, const FourierWay& way, ValueId x) {
  Shape shape = c.shape(x);
  const DataType type = c.type(x);
  const int64_t parts = shape.back();
  if (parts != 1 && parts != 2) c.refuse(fmt::format("its last axis has {} elements, not 1 or 2", parts));
  if (way.length < 1) c.refuse(fmt::format("its length is {}", way.length));
  const int64_t along = std::ssize(shape) - 2;
  const int64_t samples = std::min(shape[along], way.read());
  x = c.slice(c.cast(x, computedType(type)), along, 0, samples);
  Shape flat(shape.begin(), shape.end() - 2);
  if (flat.empty()) flat.push_back(1);
  flat.push_back(samples * parts);
  const ValueId matrix = fourierMatrix(c, way, samples, parts, computedType(type));
  shape[along] = way.results;
  shape.back() = way.resultParts();
  return c.cast(c.reshape(c.matMul(c.reshape(x, flat), matrix), shape), type);
}

int64_t constantNumber(const LoweringContext& c, size_t position, int64_t otherwise) {
  const std::optional<std::vector<int64_t>> numbers = c.constantIntegers(position);
  if (!numbers) return otherwise;
  if (numbers->size() != 1) c.refuse(fmt::format("its input {} is not one number", position));
  return numbers->at(0);
}

// A later form of DFT: one-sided and inverse, which PyTorch writes for torch.fft.irfft. Without a length it
// is that of an even number.
bool isMirrored(const Node& node) {
  return node.intAttribute("inverse", 0) != 0 && node.intAttribute("onesided", 0) != 0;
}

void lowerDft(LoweringContext& c) {
  const ValueId x = c.input(0);
  const int64_t rank = c.rank(x);
  if (rank < 2) c.refuse("its input has no signal axis");
  const int64_t given =
      c.node().opset_version < 20 ? c.node().intAttribute("axis", 1) : constantNumber(c, 2, -2);
  const int64_t axis = normalizeAxis(given, rank);
  if (axis == rank - 1) c.refuse("its axis is that of real and imaginary parts");
  FourierWay way;
  way.mirrored = isMirrored(c.node());
  const int64_t given_samples = c.shape(x)[axis];
  way.length = constantNumber(c, 1, way.mirrored ? 2 * (given_samples - 1) : given_samples);
  way.results = way.mirrored ? way.length : c.outputShape()[axis];
  way.inverse = c.node().intAttribute("inverse", 0) != 0;
  if (axis == rank - 2) return c.give(0, fourierTransform(c, way, x));
  // The axis takes the place before the last, and goes back.
  std::vector<int64_t> there(rank);
  std::iota(there.begin(), there.end(), 0);
  std::swap(there[axis], there[rank - 2]);
  c.give(0, c.transpose(fourierTransform(c, way, c.transpose(x, there)), there));
}

// Frames are gathered from the signal, weighted by the window and transformed.
void lowerStft(LoweringContext& c) {
  ValueId x = c.input(0);
  Shape signal = c.shape(x);
  if (signal.size() == 2) x = c.reshape(x, signal = {signal[0], signal[1], 1});
  if (signal.size() != 3) c.refuse(fmt::format("its signal is {}", shapeToString(signal)));
  const int64_t step = constantNumber(c, 1, 0);
  const Shape window = c.hasInput(2) ? c.shape(c.input(2)) : Shape{signal[1]};
  if (window.size() != 1) c.refuse("its window has more than one axis");
  FourierWay way;
  way.length = constantNumber(c, 3, window[0]);
  if (c.hasInput(2) && window[0] != way.length)
    c.refuse(fmt::format("a window of {} for frames of {}", window[0], way.length));
  if (step < 1 || way.length < 1 || way.length > signal[1])
    c.refuse(fmt::format("frames of {} each {} in a signal of {}", way.length, step, signal[1]));
  const Shape result = c.outputShape();
  const int64_t frames = (signal[1] - way.length) / step + 1;
  if (result.size() != 4 || result[1] != frames)
    c.refuse(fmt::format("its {} frames are not those of {}", frames, shapeToString(result)));
  way.results = result[2];
  c.requireTable({frames, way.length});
  std::vector<int64_t> samples;
  for (int64_t frame = 0; frame < frames; ++frame) {
    for (int64_t i = 0; i < way.length; ++i) samples.push_back(frame * step + i);
  }
  x = c.reshape(c.gather(x, 1, samples), {signal[0], frames, way.length, signal[2]});
  if (c.hasInput(2)) x = c.binary("Mul", x, c.reshape(c.input(2), {way.length, 1}));
  c.give(0, fourierTransform(c, way, x));
}

// ---- determinants

// a_i b_j - a_j b_i for the pairs i < j, in the order 01 02 03 12 13 23; [.., columns] -> [.., pairs].
ValueId minorsOfRows(LoweringContext& c, ValueId a, ValueId b) {
  const int64_t axis = c.rank(a) - 1;
  std::vector<int64_t> first;
  std::vector<int64_t> second;
  for (int64_t i = 0; i < c.shape(a)[axis]; ++i) {
    for (int64_t j = i + 1; j < c.shape(a)[axis]; ++j) {
      first.push_back(i);
      second.push_back(j);
    }
  }
  const ValueId along = c.binary("Mul", c.gather(a, axis, first), c.gather(b, axis, second));
  return c.binary("Sub", along, c.binary("Mul", c.gather(a, axis, second), c.gather(b, axis, first)));
}

// By Laplace's rule: minors of the last two rows with those of the rows above.
void lowerDet(LoweringContext& c) {
  const ValueId x = c.input(0);
  const Shape shape = c.shape(x);
  if (shape.size() < 2 || shape.back() != shape[shape.size() - 2])
    c.refuse(fmt::format("{} are no square matrices", shapeToString(shape)));
  const int64_t n = shape.back();
  if (n < 1 || n > 4) c.refuse(fmt::format("matrices of {0} x {0} rows and columns; up to 4 can be done", n));
  const int64_t axis = std::ssize(shape) - 2;
  const auto row = [&](int64_t i) { return c.squeeze(c.slice(x, axis, i, i + 1), axis); };
  if (n == 1) return c.give(0, c.reshape(x, c.outputShape()));
  const ValueId below = minorsOfRows(c, row(n - 2), row(n - 1));
  if (n == 2) return c.give(0, c.reshape(below, c.outputShape()));
  // What belongs to a minor is made of the other columns, which are those of the minor as far from the end.
  const ValueId above = n == 3 ? row(0) : minorsOfRows(c, row(0), row(1));
  const ValueId signs =
      n == 3 ? c.numbers(c.type(x), {3}, {1, -1, 1}) : c.numbers(c.type(x), {6}, {1, -1, 1, 1, -1, 1});
  const ValueId products = c.binary("Mul", c.binary("Mul", above, signs), c.reversed(below, axis));
  c.give(0, c.reduce("ReduceSum", products, {axis}, false));
}

// ---- writing into tensors

void lowerScatter(LoweringContext& c) {
  const ValueId x = c.input(0);
  c.give(0, c.op("ScatterElements", {x, c.input(1), c.input(2)}, c.type(x), c.shape(x), c.node().attributes));
}

// Every example has its own place along the axis to write to.
void lowerTensorScatter(LoweringContext& c) {
  const ValueId cache = c.input(0);
  const ValueId update = c.input(1);
  const Shape shape = c.shape(update);
  const int64_t axis = normalizeAxis(c.node().intAttribute("axis", -2), shape.size());
  if (axis == 0) c.refuse("its axis is that of the examples");
  const std::string mode = c.node().stringAttribute("mode", "linear");
  if (mode != "linear" && mode != "circular") c.refuse(fmt::format("its mode is '{}'", mode));
  const int64_t size = c.shape(cache)[axis];
  if (!c.hasInput(2)) return c.give(0, c.concat({update, c.slice(cache, axis, shape[axis], size)}, axis));
  c.requireTable({shape[axis]});
  std::vector<int64_t> steps(shape[axis]);
  std::iota(steps.begin(), steps.end(), 0);
  Shape along(shape.size(), 1);
  along[axis] = shape[axis];
  Shape examples(shape.size(), 1);
  examples[0] = shape[0];
  ValueId place = c.binary("Add", c.reshape(c.input(2), examples), c.reshape(c.integers(steps), along));
  if (mode == "circular")
    place = c.binary("Mod", place, c.scalar(DataType::kInt64, static_cast<double>(size)));
  c.give(0, c.op("ScatterElements", {cache, c.expand(place, shape), update}, c.type(cache), c.shape(cache),
                 {{"axis", axis}}));
}

// ---- RoiAlign

struct RoiPooling {
  int64_t samples = 0;  // of each bin along each axis
  double scale = 1;     // from the regions' coordinates to those of the image
  bool half_pixel = false;
  std::string mode;  // avg or max
};

RoiPooling roiPooling(const LoweringContext& c) {
  RoiPooling way;
  way.samples = c.node().intAttribute("sampling_ratio", 0);
  if (way.samples < 1) {
    c.refuse(
        "its sampling_ratio is 0: how much it samples then depends on the regions; write it with a number "
        "(torchvision: roi_align(.., sampling_ratio=2), RoIAlign(.., sampling_ratio=2))");
  }
  way.scale = static_cast<double>(c.node().floatAttribute("spatial_scale", 1));
  const std::string coordinates = c.node().stringAttribute(
      "coordinate_transformation_mode", c.node().opset_version < 16 ? "output_half_pixel" : "half_pixel");
  way.half_pixel = coordinates == "half_pixel";
  if (!way.half_pixel && coordinates != "output_half_pixel")
    c.refuse(fmt::format("its coordinate_transformation_mode is '{}'", coordinates));
  way.mode = c.node().stringAttribute("mode", "avg");
  if (way.mode != "avg" && way.mode != "max") c.refuse(fmt::format("its mode is '{}'", way.mode));
  return way;
}

// The samples along one axis of the image, [regions, bins * samples, 1].
ValueId roiPlaces(LoweringContext& c, const RoiPooling& way, int64_t entry, int64_t bins) {
  const ValueId rois = c.cast(c.input(1), computedType(c.type(c.input(1))));
  const DataType type = c.type(rois);
  const auto edge = [&](int64_t column) {
    const ValueId scaled = c.binary("Mul", c.slice(rois, 1, column, column + 1), c.scalar(type, way.scale));
    return way.half_pixel ? c.addNumber(scaled, -0.5) : scaled;
  };
  const ValueId start = edge(entry);
  ValueId size = c.binary("Sub", edge(entry + 2), start);
  if (!way.half_pixel) size = c.binary("Max", size, c.scalar(type, 1));
  c.requireTable({bins, way.samples});
  std::vector<double> parts;
  for (int64_t i = 0; i < bins * way.samples; ++i)
    parts.push_back((static_cast<double>(i) + 0.5) / static_cast<double>(bins * way.samples));
  const ValueId part = c.numbers(type, {1, std::ssize(parts)}, parts);
  const ValueId place = c.binary("Add", start, c.binary("Mul", size, part));
  return c.reshape(place, {c.shape(rois)[0], std::ssize(parts), 1});
}

// A place beyond the image by at most 1 counts as its edge, one further out as zero. [regions, places, 2]
AxisTaps roiTaps(LoweringContext& c, ValueId place, int64_t size) {
  const auto last = static_cast<double>(size - 1);
  const ValueId inside = placeIsBetween(c, place, -1, last + 1);
  AxisTaps taps = linearTaps(c, c.clip(place, 0, last), 2);
  taps.element = tapElement(c, taps.element, last);
  taps.weight = c.binary("Mul", taps.weight, c.cast(inside, c.type(place)));
  return taps;
}

// Samples are read as rows of channels from all images one below the other, for a region may be of any.
void lowerRoiAlign(LoweringContext& c) {
  const ValueId x = c.input(0);
  const Shape shape = c.shape(x);
  if (shape.size() != 4) c.refuse(fmt::format("its input is {}", shapeToString(shape)));
  const RoiPooling way = roiPooling(c);
  const Shape result = c.outputShape();
  const int64_t regions = result[0];
  const int64_t s = way.samples;
  std::vector<AxisTaps> taps{roiTaps(c, roiPlaces(c, way, 1, result[2]), shape[2]),
                             roiTaps(c, roiPlaces(c, way, 0, result[3]), shape[3])};
  for (ValueId AxisTaps::*member : {&AxisTaps::element, &AxisTaps::weight}) {
    taps[0].*member = c.reshape(taps[0].*member, {regions, result[2] * s, 2, 1, 1});
    taps[1].*member = c.reshape(taps[1].*member, {regions, 1, 1, result[3] * s, 2});
  }
  const ValueId image_size = c.scalar(DataType::kInt64, static_cast<double>(shape[2] * shape[3]));
  const ValueId image = c.binary("Mul", c.reshape(c.input(2), {regions, 1, 1, 1, 1}), image_size);
  const ValueId position = c.binary("Add", image, tapPositions(c, taps, {shape[2], shape[3]}));
  const ValueId rows = c.reshape(c.transpose(x, {0, 2, 3, 1}), {shape[0] * shape[2] * shape[3], shape[1]});
  const int64_t count = elementCount(c.shape(position));
  const ValueId read = c.op("Gather", {rows, c.reshape(position, {count})}, c.type(x), {count, shape[1]},
                            {{"axis", int64_t{0}}});
  Shape sampled{regions, result[2], s, 2, result[3], s, 2, shape[1]};
  const ValueId values = c.reshape(read, sampled);
  sampled.back() = 1;
  const ValueId weight = c.cast(foldTaps(c, "Mul", taps, &AxisTaps::weight), c.type(x));
  const ValueId weighted = c.binary("Mul", values, c.reshape(weight, sampled));
  // The maximum is of what the elements give to the samples, as ONNX's data have it, not of the samples.
  const std::vector<int64_t> of_bin{2, 3, 5, 6};
  ValueId pooled = c.reduce(way.mode == "avg" ? "ReduceSum" : "ReduceMax", weighted, of_bin, false);
  if (way.mode == "avg")
    pooled = c.binary("Mul", pooled, c.scalar(c.type(x), 1 / static_cast<double>(s * s)));
  c.give(0, c.transpose(pooled, {0, 3, 1, 2}));
}

// ---- DeformConv

// A kernel of which every element has its own place in the image, for every output position.
struct DeformedKernel {
  Shape image;
  Shape kernel;
  Shape output;  // its image axes
  int64_t examples = 0;
  int64_t offset_groups = 1;

  int64_t axes() const { return std::ssize(image); }
  int64_t elements() const { return elementCount(kernel); }
  int64_t positions() const { return elementCount(output); }
};

// Where the elements of the kernel are without offsets along one axis: kernel elements, then output
// positions.
std::vector<double> kernelPlaces(const LoweringContext& c, const DeformedKernel& way, int64_t axis) {
  const std::vector<int64_t> ones(way.axes(), 1);
  const int64_t stride = c.node().intsAttribute("strides", ones).at(axis);
  const int64_t dilation = c.node().intsAttribute("dilations", ones).at(axis);
  const int64_t pad = c.node().intsAttribute("pads", Shape(2 * way.axes(), 0)).at(axis);
  const int64_t kernel_stride = rowMajorStrides(way.kernel)[axis];
  const int64_t output_stride = rowMajorStrides(way.output)[axis];
  c.requireTable({way.elements(), way.positions()});
  std::vector<double> places;
  for (int64_t k = 0; k < way.elements(); ++k) {
    for (int64_t o = 0; o < way.positions(); ++o) {
      const int64_t in_kernel = k / kernel_stride % way.kernel[axis];
      const int64_t in_output = o / output_stride % way.output[axis];
      places.push_back(static_cast<double>(stride * in_output + dilation * in_kernel - pad));
    }
  }
  return places;
}

// [examples, offset groups, taps.., kernel elements * positions], with one axis of taps for each of the
// image. Elements beyond the image weigh nothing. An infinite place has no fraction: it is brought near the
// image.
AxisTaps deformedTaps(LoweringContext& c, const DeformedKernel& way, int64_t axis) {
  constexpr double kReach = 4;
  const auto last = static_cast<double>(way.image[axis] - 1);
  const int64_t count = way.elements() * way.positions();
  const ValueId all =
      c.reshape(c.input(2), {way.examples, way.offset_groups, way.elements(), way.axes(), way.positions()});
  Shape line(way.axes() + 3, 1);
  line.back() = count;
  const DataType type = computedType(c.type(all));
  const ValueId regular = c.numbers(type, line, kernelPlaces(c, way, axis));
  line[0] = way.examples;
  line[1] = way.offset_groups;
  const ValueId offset = c.cast(c.reshape(c.slice(all, 3, axis, axis + 1), line), type);
  const ValueId place = c.clip(c.binary("Add", regular, offset), -kReach, last + kReach);
  AxisTaps taps = linearTaps(c, place, axis + 2);
  taps.inside = placeIsBetween(c, taps.element, 0, last);
  taps.weight = c.binary("Mul", taps.weight, c.cast(taps.inside, type));
  taps.element = tapElement(c, taps.element, last);
  return taps;
}

// What the kernel sees, [examples, channels, kernel elements, positions].
ValueId deformedColumns(LoweringContext& c, const DeformedKernel& way, int64_t channels) {
  const ValueId x = c.input(0);
  std::vector<AxisTaps> taps;
  for (int64_t axis = 0; axis < way.axes(); ++axis) taps.push_back(deformedTaps(c, way, axis));
  ValueId weight = foldTaps(c, "Mul", taps, &AxisTaps::weight);
  if (c.hasInput(4)) {
    Shape line(way.axes() + 3, 1);
    line[0] = way.examples;
    line[1] = way.offset_groups;
    line.back() = way.elements() * way.positions();
    weight = c.binary("Mul", weight, c.cast(c.reshape(c.input(4), line), c.type(weight)));
  }
  const ValueId read = readImage(c, x, tapPositions(c, taps, way.image), way.offset_groups);
  const int64_t of_place = int64_t{1} << way.axes();
  Shape sampled{way.examples, way.offset_groups, channels / way.offset_groups, of_place,
                way.elements() * way.positions()};
  const ValueId values = c.reshape(read, sampled);
  sampled[2] = 1;
  const ValueId weighted = c.binary("Mul", values, c.cast(c.reshape(weight, sampled), c.type(x)));
  return c.reshape(c.reduce("ReduceSum", weighted, {3}, false),
                   {way.examples, channels, way.elements(), way.positions()});
}

void lowerDeformConv(LoweringContext& c) {
  const Shape x = c.shape(c.input(0));
  const Shape w = c.shape(c.input(1));
  const Shape result = c.outputShape();
  if (x.size() < 3 || w.size() != x.size() || result.size() != x.size())
    c.refuse(fmt::format("{} with a kernel {}", shapeToString(x), shapeToString(w)));
  DeformedKernel way;
  way.image.assign(x.begin() + 2, x.end());
  way.kernel.assign(w.begin() + 2, w.end());
  way.output.assign(result.begin() + 2, result.end());
  way.examples = x[0];
  way.offset_groups = c.node().intAttribute("offset_group", 1);
  const int64_t groups = c.node().intAttribute("group", 1);
  if (groups < 1 || way.offset_groups < 1 || x[1] % way.offset_groups != 0 || x[1] != w[1] * groups ||
      w[0] % groups != 0)
    c.refuse(fmt::format("{} channels in {} groups and {} groups of offsets with a kernel {}", x[1], groups,
                         way.offset_groups, shapeToString(w)));
  if (elementCount(way.image) == 0) c.refuse("its image is empty");
  const int64_t rows = w[1] * way.elements();
  const ValueId columns =
      c.reshape(deformedColumns(c, way, x[1]), {way.examples, groups, rows, way.positions()});
  const ValueId kernel = c.reshape(c.input(1), {groups, w[0] / groups, rows});
  ValueId sum = c.reshape(c.matMul(kernel, columns), result);
  if (c.hasInput(3)) {
    Shape channel(way.axes() + 1, 1);
    channel[0] = w[0];
    sum = c.binary("Add", sum, c.reshape(c.input(3), channel));
  }
  c.give(0, sum);
}

}  // namespace

void addSignalLowerings(LoweringRules& rules) {
  rules[{"", "DFT"}] = lowerDft;
  rules[{"", "DFT"}].beyond_schema = isMirrored;
  rules[{"", "DeformConv"}] = lowerDeformConv;
  rules[{"", "Det"}] = lowerDet;
  rules[{"", "RoiAlign"}] = lowerRoiAlign;
  rules[{"", "STFT"}] = lowerStft;
  rules[{"", "Scatter"}] = lowerScatter;
  rules[{"", "TensorScatter"}] = lowerTensorScatter;
}

}  // namespace pipeshard
