// Reading an image between its elements, at places that are computed: what GridSample, RoiAlign and
// DeformConv share. The elements around a place along one axis are its taps; element k is at place k.
#pragma once

#include <string_view>
#include <vector>

#include "onnx_import/lowering/lowering_context.h"

namespace pipeshard {

// Along one axis of the image.
struct AxisTaps {
  ValueId element;  // int64, always inside of the image
  ValueId weight;   // invalid if every tap counts alone
  ValueId inside;   // bool: not of the padding; only where that is zeros
};

// Whether from <= place <= to.
inline ValueId placeIsBetween(LoweringContext& c, ValueId place, double from, double to) {
  const ValueId from_first = c.compare("LessOrEqual", c.scalar(c.type(place), from), place);
  return c.binary("And", from_first, c.compare("LessOrEqual", place, c.scalar(c.type(place), to)));
}

// What stands at a whole place, or the element next to it in the image.
inline ValueId tapElement(LoweringContext& c, ValueId place, double last) {
  return c.clip(c.cast(place, DataType::kInt64), 0, last);
}

// The elements below and above a place, on its axis `axis`, which is 1; the elements are whole places yet.
inline AxisTaps linearTaps(LoweringContext& c, ValueId place, int64_t axis) {
  const DataType type = c.type(place);
  Shape pair(c.rank(place), 1);
  pair.at(axis) = 2;
  const ValueId below = c.unary("Floor", place);
  const ValueId fraction = c.binary("Sub", place, below);
  const ValueId signs = c.numbers(type, pair, {-1, 1});
  AxisTaps taps;
  taps.element = c.binary("Add", below, c.numbers(type, pair, {0, 1}));
  taps.weight = c.binary("Add", c.binary("Mul", fraction, signs), c.numbers(type, pair, {1, 0}));
  return taps;
}

// `combine` of all, in the order of axes; invalid if they are.
inline ValueId foldTaps(LoweringContext& c, std::string_view combine, const std::vector<AxisTaps>& taps,
                        ValueId AxisTaps::*member) {
  ValueId result = taps.at(0).*member;
  for (size_t axis = 1; axis < taps.size() && result.valid(); ++axis)
    result = c.binary(combine, result, taps[axis].*member);
  return result;
}

// Where the elements are in the image as a line.
inline ValueId tapPositions(LoweringContext& c, const std::vector<AxisTaps>& taps, const Shape& image) {
  ValueId position = taps.at(0).element;
  for (size_t axis = 1; axis < taps.size(); ++axis) {
    const ValueId size = c.scalar(DataType::kInt64, static_cast<double>(image.at(axis)));
    position = c.binary("Add", c.binary("Mul", position, size), taps[axis].element);
  }
  return position;
}

// x [N, C, image..] at `positions` of its line for each example and group of channels, [N, groups, ..]: as
// [N, C, count].
inline ValueId readImage(LoweringContext& c, ValueId x, ValueId positions, int64_t groups) {
  const Shape shape = c.shape(x);
  const int64_t examples = shape.at(0);
  const int64_t channels = shape.at(1);
  const int64_t rows = examples * groups;
  const int64_t count = rows == 0 ? 0 : elementCount(c.shape(positions)) / rows;
  const ValueId of_group = c.reshape(positions, {examples, groups, 1, count});
  const ValueId of_channel = c.expand(of_group, {examples, groups, channels / groups, count});
  const ValueId line =
      c.reshape(x, {examples, channels, elementCount(Shape(shape.begin() + 2, shape.end()))});
  return c.op("GatherElements", {line, c.reshape(of_channel, {examples, channels, count})}, c.type(x),
              {examples, channels, count}, {{"axis", int64_t{2}}});
}

}  // namespace pipeshard
