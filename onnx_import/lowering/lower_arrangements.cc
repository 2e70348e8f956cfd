// Operators that put elements in another place, and Hardmax, which only says where the greatest is.
#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "ir/base/error.h"
#include "onnx_import/lowering/lowering_rules.h"

namespace pipeshard {
namespace {

// [N, C, H, W], and the side of a block, which has to divide what is cut into blocks.
struct BlockArrangement {
  Shape shape;
  int64_t block = 1;
  bool column_first = false;  // mode CRD: the channel is the major part of what is arranged, else the minor
};

BlockArrangement blockArrangement(LoweringContext& c) {
  BlockArrangement result;
  result.shape = c.shape(c.input(0));
  if (result.shape.size() != 4) c.refuse(fmt::format("its input has rank {}, not 4", result.shape.size()));
  result.block = c.node().intAttribute("blocksize", 0);
  if (result.block < 1) c.refuse(fmt::format("blocksize is {}", result.block));
  const std::string mode = c.node().stringAttribute("mode", "DCR");
  if (mode != "DCR" && mode != "CRD") c.refuse(fmt::format("mode is '{}'", mode));
  result.column_first = mode == "CRD";
  return result;
}

void lowerDepthToSpace(LoweringContext& c) {
  const BlockArrangement x = blockArrangement(c);
  const int64_t b = x.block;
  if (x.shape[1] % (b * b) != 0) c.refuse(fmt::format("{} channels are no whole blocks", x.shape[1]));
  const int64_t channels = x.shape[1] / (b * b);
  Shape parts{x.shape[0], b, b, channels, x.shape[2], x.shape[3]};
  std::vector<int64_t> order{0, 3, 4, 1, 5, 2};
  if (x.column_first) {
    parts = {x.shape[0], channels, b, b, x.shape[2], x.shape[3]};
    order = {0, 1, 4, 2, 5, 3};
  }
  c.give(0, c.reshape(c.transpose(c.reshape(c.input(0), parts), order),
                      {x.shape[0], channels, x.shape[2] * b, x.shape[3] * b}));
}

void lowerSpaceToDepth(LoweringContext& c) {
  const BlockArrangement x = blockArrangement(c);
  const int64_t b = x.block;
  if (x.shape[2] % b != 0 || x.shape[3] % b != 0)
    c.refuse(fmt::format("an image of {} by {} is no whole blocks", x.shape[2], x.shape[3]));
  const int64_t rows = x.shape[2] / b;
  const int64_t columns = x.shape[3] / b;
  std::vector<int64_t> order{0, 3, 5, 1, 2, 4};
  if (x.column_first) order = {0, 1, 3, 5, 2, 4};
  const ValueId parts = c.reshape(c.input(0), {x.shape[0], x.shape[1], rows, b, columns, b});
  c.give(0, c.reshape(c.transpose(parts, order), {x.shape[0], x.shape[1] * b * b, rows, columns}));
}

// Shape [1, .., size, .., 1].
Shape shapeAlongAxis(int64_t rank, int64_t axis, int64_t size) {
  Shape result(rank, 1);
  result[axis] = size;
  return result;
}

// 0, 1, 2, ... along one axis.
ValueId positionsAlongAxis(LoweringContext& c, int64_t rank, int64_t axis, int64_t size) {
  c.requireTable({size});
  std::vector<double> positions(size);
  std::iota(positions.begin(), positions.end(), 0.0);
  return c.numbers(DataType::kInt64, shapeAlongAxis(rank, axis, size), positions);
}

// Step t comes from step length - 1 - t, and from itself behind the sequence's end.
void lowerReverseSequence(LoweringContext& c) {
  const ValueId x = c.input(0);
  const Shape shape = c.shape(x);
  const int64_t rank = c.rank(x);
  const int64_t batch = normalizeAxis(c.node().intAttribute("batch_axis", 1), rank);
  const int64_t time = normalizeAxis(c.node().intAttribute("time_axis", 0), rank);
  if (batch == time) c.refuse("batch_axis and time_axis are the same");
  if (c.isKnown(1)) {
    const std::vector<int64_t> lengths = c.constantIntegers(1).value();
    for (int64_t length : lengths) {
      if (length < 0 || length > shape[time])
        c.refuse(fmt::format("sequence_lens has {} where there are {} steps", length, shape[time]));
    }
    const int64_t length = lengths.empty() ? 0 : lengths[0];
    if (std::count(lengths.begin(), lengths.end(), length) == std::ssize(lengths)) {
      if (length < 2) return c.give(0, x);
      std::vector<ValueId> parts{c.reversed(c.slice(x, time, 0, length), time)};
      if (length < shape[time]) parts.push_back(c.slice(x, time, length, shape[time]));
      return c.give(0, c.concat(parts, time));
    }
  }
  const ValueId given = c.cast(c.input(1), DataType::kInt64);
  std::vector<int64_t> others;
  for (int64_t axis = 0; axis < rank; ++axis) {
    if (axis != batch) others.push_back(axis);
  }
  // By Unsqueeze: its axes say which one is the batch, even if that has size 1.
  const ValueId lengths = c.op("Unsqueeze", {given, c.integers(others)}, DataType::kInt64,
                               shapeAlongAxis(rank, batch, shape[batch]));
  const ValueId steps = positionsAlongAxis(c, rank, time, shape[time]);
  const ValueId mirrored = c.binary("Sub", c.addNumber(lengths, -1), steps);
  const ValueId from = c.where(c.compare("Less", steps, lengths), mirrored, steps);
  c.give(0, c.op("GatherElements", {x, c.expand(from, shape)}, c.type(x), shape, {{"axis", time}}));
}

// 1 where the first greatest element of an axis is, else 0.
void lowerHardmax(LoweringContext& c) {
  const ValueId x = c.input(0);
  const int opset = c.node().opset_version;
  if (opset != 0 && opset < 13) c.refuse("before opset 13 it is over several axes");
  const int64_t rank = c.rank(x);
  if (rank == 0) c.refuse("its input is a scalar");
  const int64_t axis = normalizeAxis(c.node().intAttribute("axis", -1), rank);
  Shape reduced = c.shape(x);
  reduced[axis] = 1;
  const ValueId greatest =
      c.op("ArgMax", {x}, DataType::kInt64, reduced, {{"axis", axis}, {"keepdims", int64_t{1}}});
  const ValueId positions = positionsAlongAxis(c, rank, axis, c.shape(x)[axis]);
  c.give(0, c.cast(c.compare("Equal", greatest, positions), c.type(x)));
}

// Where sizes differ by an odd number, the element too many is cut off, or the zero too many added, at the
// end. Output shapes are known, so that `shape` and `axes` need not be read.
void lowerCenterCropPad(LoweringContext& c) {
  ValueId x = c.input(0);
  const Shape wanted = c.outputShape();
  if (wanted.size() != c.shape(x).size())
    c.refuse(fmt::format("its output has rank {}, its input {}", wanted.size(), c.shape(x).size()));
  std::vector<int64_t> before(wanted.size(), 0);
  std::vector<int64_t> after(wanted.size(), 0);
  bool pads = false;
  for (int64_t axis = 0; axis < std::ssize(wanted); ++axis) {
    const int64_t size = c.shape(x)[axis];
    const int64_t missing = wanted[axis] - size;
    if (missing < 0) {
      const int64_t start = -missing / 2;
      x = c.slice(x, axis, start, start + wanted[axis]);
    } else if (missing > 0) {
      before[axis] = missing / 2;
      after[axis] = missing - missing / 2;
      pads = true;
    }
  }
  if (pads) {
    before.insert(before.end(), after.begin(), after.end());
    x = c.op("Pad", {x, c.integers(before)}, c.type(x), wanted);
  }
  c.give(0, x);
}

}  // namespace

void addArrangementLowerings(LoweringRules& rules) {
  rules[{"", "CenterCropPad"}] = lowerCenterCropPad;
  rules[{"", "DepthToSpace"}] = lowerDepthToSpace;
  rules[{"", "Hardmax"}] = lowerHardmax;
  rules[{"", "ReverseSequence"}] = lowerReverseSequence;
  rules[{"", "SpaceToDepth"}] = lowerSpaceToDepth;
}

}  // namespace pipeshard
