// Numbers that stand for others by a scale and a zero point: real = (quantized - zero_point) * scale.
//
// What is narrow is cast to floats that hold it exactly, and cast back once it is rounded and brought into
// the range of the type.
#include <algorithm>
#include <optional>
#include <vector>

#include "ir/base/error.h"
#include "onnx_import/lowering/lowering_rules.h"

namespace pipeshard {
namespace {

struct QuantizedRange {
  double low = 0;
  double high = 0;
  bool whole = true;  // integers
};

// nullopt for float8: how a Cast to it saturates is an attribute of its own.
std::optional<QuantizedRange> quantizedRange(const LoweringContext& c, DataType type) {
  switch (type) {
    case DataType::kUint4: return QuantizedRange{0, 15};
    case DataType::kInt4: return QuantizedRange{-8, 7};
    case DataType::kUint8: return QuantizedRange{0, 255};
    case DataType::kInt8: return QuantizedRange{-128, 127};
    case DataType::kUint16: return QuantizedRange{0, 65535};
    case DataType::kInt16: return QuantizedRange{-32768, 32767};
    case DataType::kFloat4E2M1: return QuantizedRange{-6, 6, false};
    case DataType::kFloat8E4M3FN:
    case DataType::kFloat8E4M3FNUZ:
    case DataType::kFloat8E5M2:
    case DataType::kFloat8E5M2FNUZ: return std::nullopt;
    default: c.refuse(fmt::format("it quantizes to {}", dataTypeName(type)));
  }
}

// The type of output 0; where it is not known, as of ONNX Runtime's operators, `otherwise`.
DataType resultType(const LoweringContext& c, DataType otherwise) {
  return c.outputType() == DataType::kUndefined ? otherwise : c.outputType();
}

// saturate(quotient + zero point) in the type of output 0; the zero point may be missing.
void giveQuantized(LoweringContext& c, ValueId quotient, ValueId zero_point, DataType type) {
  const std::optional<QuantizedRange> range = quantizedRange(c, type);
  ValueId result = range && range->whole ? c.unary("Round", quotient) : quotient;
  if (zero_point.valid()) result = c.binary("Add", result, c.cast(zero_point, c.type(result)));
  LoweringContext::Attributes attributes{{"to", static_cast<int64_t>(type)}};
  if (range) {
    result = c.clip(result, range->low, range->high);
  } else {
    attributes["saturate"] = c.node().intAttribute("saturate", 1);
  }
  c.give(0, c.op("Cast", {result}, type, c.shape(result), std::move(attributes)));
}

// A scale or zero point of every block of `size` elements along the axis, as one of every element of x.
ValueId ofBlockElements(LoweringContext& c, ValueId value, const Shape& x, int64_t axis, int64_t size) {
  Shape shape = c.shape(value);
  if (shape.size() != x.size()) c.refuse("its blocks and its input differ in rank");
  shape.insert(shape.begin() + axis + 1, 1);
  const ValueId blocks = c.reshape(value, shape);
  shape[axis + 1] = size;
  const ValueId repeated = c.expand(blocks, shape);
  shape.erase(shape.begin() + axis + 1);
  shape[axis] *= size;
  if (shape[axis] < x[axis])
    c.refuse(fmt::format("blocks of {} do not cover the {} elements of axis {}", size, x[axis], axis));
  return c.slice(c.reshape(repeated, shape), axis, 0, x[axis]);
}

// Input `position`, a scale or zero point, in this type, as it broadcasts with input 0: one for all, one for
// each index of an axis, or one for each block.
ValueId ofElements(LoweringContext& c, size_t position, DataType type) {
  const ValueId value = c.cast(c.input(position), type);
  const Shape shape = c.shape(value);
  const Shape x = c.shape(c.input(0));
  if (elementCount(shape) == 1) return c.reshape(value, {});
  const int64_t axis = normalizeAxis(c.node().intAttribute("axis", 1), x.size());
  const int64_t block = c.node().intAttribute("block_size", 0);
  if (block < 0) c.refuse(fmt::format("its block_size is {}", block));
  if (block > 0) return ofBlockElements(c, value, x, axis, block);
  if (shape.size() != 1 || shape[0] != x[axis])
    c.refuse(fmt::format("its input {} is {} for axis {} of {}", position, shapeToString(shape), axis,
                         shapeToString(x)));
  Shape line(x.size(), 1);
  line[axis] = shape[0];
  return c.reshape(value, line);
}

// Scales are of the file, as the codes are: trained only where the exporter marks them, or the user says so.
// The division is in the precision that is asked for, or that of the scale.
void lowerQuantizeLinear(LoweringContext& c) {
  c.neverTrain(1);
  DataType precision = c.type(c.input(1));
  if (isInteger(precision)) precision = DataType::kFloat64;
  const auto wanted = static_cast<DataType>(c.node().intAttribute("precision", 0));
  if (wanted != DataType::kUndefined) precision = wanted;
  if (!isFloatingPoint(precision)) c.refuse(fmt::format("it divides in {}", dataTypeName(precision)));
  const ValueId quotient = c.binary("Div", c.cast(c.input(0), precision), ofElements(c, 1, precision));
  const DataType work = precision == DataType::kFloat64 ? precision : DataType::kFloat32;
  const DataType type = resultType(c, c.hasInput(2) ? c.type(c.input(2)) : DataType::kUint8);
  giveQuantized(c, c.cast(quotient, work), c.hasInput(2) ? ofElements(c, 2, work) : ValueId(), type);
}

void lowerDequantizeLinear(LoweringContext& c) {
  c.neverTrain(1);
  constexpr DataType kWork = DataType::kFloat32;
  ValueId x = c.cast(c.input(0), kWork);
  if (c.hasInput(2)) x = c.binary("Sub", x, ofElements(c, 2, kWork));
  const ValueId real = c.binary("Mul", x, ofElements(c, 1, kWork));
  c.give(0, c.cast(real, resultType(c, c.type(c.input(1)))));
}

// A scale or zero point for all of a tensor of this rank, or for each index of one axis.
ValueId alongAxis(LoweringContext& c, size_t position, int64_t rank, int64_t axis) {
  const ValueId value = c.input(position);
  const Shape shape = c.shape(value);
  if (elementCount(shape) == 1) return c.reshape(value, {});
  if (shape.size() != 1) return value;
  Shape line(rank, 1);
  line.at(axis) = shape[0];
  return c.reshape(value, line);
}

// Input `position` without its zero point, the input two behind it. float64 holds all products and their
// sums exactly.
ValueId withoutZeroPoint(LoweringContext& c, size_t position, ValueId zero_point) {
  constexpr DataType kExact = DataType::kFloat64;
  return c.binary("Sub", c.cast(c.input(position), kExact), c.cast(zero_point, kExact));
}

// a_scale * b_scale / y_scale, in float32 as runtimes have it.
ValueId rescaled(LoweringContext& c, ValueId exact, ValueId a_scale, ValueId b_scale, ValueId y_scale) {
  constexpr DataType kWork = DataType::kFloat32;
  const ValueId product = c.binary("Mul", c.cast(a_scale, kWork), c.cast(b_scale, kWork));
  const ValueId factor = c.binary("Div", product, c.cast(y_scale, kWork));
  return c.binary("Mul", c.cast(exact, kWork), factor);
}

// A scale for each row of a, for each column of b; that of the output is one for all, or has its rank.
void lowerQLinearMatMul(LoweringContext& c) {
  const int64_t a_rank = c.rank(c.input(0));
  const int64_t b_rank = c.rank(c.input(3));
  if (a_rank == 0 || b_rank == 0) c.refuse("an operand is a scalar");
  for (size_t position : {6, 7}) {
    const Shape shape = c.shape(c.input(position));
    if (shape.size() == 1 && shape[0] != 1)
      c.refuse(fmt::format("whether its input {}, {}, is of rows or of columns is not said", position,
                           shapeToString(shape)));
  }
  if (a_rank == 1 && elementCount(c.shape(c.input(1))) != 1) c.refuse("a vector has no scales of rows");
  if (b_rank == 1 && elementCount(c.shape(c.input(4))) != 1) c.refuse("a vector has no scales of columns");
  const int64_t row = std::max<int64_t>(a_rank - 2, 0);
  ValueId a = withoutZeroPoint(c, 0, alongAxis(c, 2, a_rank, row));
  ValueId b = withoutZeroPoint(c, 3, alongAxis(c, 5, b_rank, b_rank - 1));
  if (a_rank == 1) a = c.reshape(a, {1, c.shape(a)[0]});
  if (b_rank == 1) b = c.reshape(b, {c.shape(b)[0], 1});
  const ValueId result = rescaled(c, c.matMul(a, b), alongAxis(c, 1, a_rank, row),
                                  alongAxis(c, 4, b_rank, b_rank - 1), alongAxis(c, 6, 1, 0));
  giveQuantized(c, c.reshape(result, c.outputShape()), alongAxis(c, 7, 1, 0), c.outputType());
}

void lowerQLinearConv(LoweringContext& c) {
  const int64_t rank = c.rank(c.input(0));
  if (rank < 3) c.refuse("its input has no image axes");
  for (size_t position : {1, 2, 6, 7}) {
    if (elementCount(c.shape(c.input(position))) != 1)
      c.refuse(fmt::format("its input {} is {}, not one number", position,
                           shapeToString(c.shape(c.input(position)))));
  }
  // Padding is with zeros of what is meant, which are the zero point in x.
  std::vector<ValueId> inputs{withoutZeroPoint(c, 0, alongAxis(c, 2, rank, 1)),
                              withoutZeroPoint(c, 3, alongAxis(c, 5, rank, 0))};
  if (c.hasInput(8)) inputs.push_back(c.cast(c.input(8), DataType::kFloat64));
  const ValueId sum =
      c.op("Conv", std::move(inputs), DataType::kFloat64, c.outputShape(), c.node().attributes);
  const ValueId result =
      rescaled(c, sum, alongAxis(c, 1, rank, 1), alongAxis(c, 4, rank, 1), alongAxis(c, 6, rank, 1));
  giveQuantized(c, result, alongAxis(c, 7, rank, 1), c.outputType());
}

}  // namespace

void addQuantizationLowerings(LoweringRules& rules) {
  rules[{"", "DequantizeLinear"}] = lowerDequantizeLinear;
  rules[{"", "QLinearConv"}] = lowerQLinearConv;
  rules[{"", "QLinearMatMul"}] = lowerQLinearMatMul;
  rules[{"", "QuantizeLinear"}] = lowerQuantizeLinear;
  rules[{"com.microsoft", "DequantizeLinear"}] = {lowerDequantizeLinear, nullptr, true};
  rules[{"com.microsoft", "QuantizeLinear"}] = {lowerQuantizeLinear, nullptr, true};
}

}  // namespace pipeshard
