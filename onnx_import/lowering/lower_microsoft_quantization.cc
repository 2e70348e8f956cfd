// ONNX Runtime's products with quantized weights (domain com.microsoft): the weight is made a matrix of
// floating-point numbers, and multiplied as such. Its scales are of the file, as its codes are: no
// parameters.
#include <string>
#include <vector>

#include "onnx_import/lowering/lowering_rules.h"

namespace pipeshard {
namespace {

constexpr DataType kWork = DataType::kFloat32;

// Codes of `bits` (4 or 8) in bytes [rows, bytes], the first of a byte in its lowest bits, as numbers
// [rows, bytes * 8 / bits].
ValueId unpacked(LoweringContext& c, ValueId bytes, int64_t bits) {
  const Shape shape = c.shape(bytes);
  const int64_t parts = 8 / bits;
  const double base = static_cast<double>(int64_t{1} << bits);
  ValueId rest = c.cast(bytes, kWork);
  std::vector<ValueId> codes;
  for (int64_t part = 0; part + 1 < parts; ++part) {
    const ValueId above = c.unary("Floor", c.binary("Mul", rest, c.scalar(kWork, 1 / base)));
    codes.push_back(c.unsqueeze(c.binary("Sub", rest, c.binary("Mul", above, c.scalar(kWork, base))), {2}));
    rest = above;
  }
  codes.push_back(c.unsqueeze(rest, {2}));
  return c.reshape(c.concat(codes, 2), {shape[0], shape[1] * parts});
}

int64_t sizeAttribute(LoweringContext& c, const char* name) {
  const int64_t size = c.node().intAttribute(name, 0);
  if (size <= 0 || size > int64_t{1} << 31) c.refuse(fmt::format("its {} is {}", name, size));
  return size;
}

// One for each block [columns, blocks, 1]: given, packed in bytes as the codes are, or in the middle.
ValueId zeroPoints(LoweringContext& c, int64_t columns, int64_t blocks, int64_t bits) {
  constexpr size_t kPosition = 3;
  if (!c.hasInput(kPosition)) return c.scalar(kWork, static_cast<double>(int64_t{1} << (bits - 1)));
  const ValueId given = c.input(kPosition);
  const int64_t elements = elementCount(c.shape(given));
  ValueId points = given;
  if (c.type(given) == DataType::kUint8) {
    const int64_t bytes = (blocks * bits + 7) / 8;
    if (elements != columns * bytes)
      c.refuse(
          fmt::format("its zero points are {} bytes for {} columns of {} blocks", elements, columns, blocks));
    points = c.slice(unpacked(c, c.reshape(given, {columns, bytes}), bits), 1, 0, blocks);
  } else if (elements != columns * blocks) {
    c.refuse(fmt::format("it has {} zero points for {} columns of {} blocks", elements, columns, blocks));
  }
  return c.reshape(c.cast(points, kWork), {columns, blocks, 1});
}

// x W^T + bias; W [N,K] in blocks along K, each with a scale and a zero point.
void lowerMatMulNBits(LoweringContext& c) {
  const int64_t bits = c.node().intAttribute("bits", 4);
  if (bits != 4 && bits != 8) c.refuse(fmt::format("its weights have {} bits, not 4 or 8", bits));
  if (c.hasInput(4)) c.refuse("its weights are reordered (g_idx); quantize the model again without");
  const int64_t k = sizeAttribute(c, "K"), n = sizeAttribute(c, "N"), block = sizeAttribute(c, "block_size");
  const int64_t blocks = (k + block - 1) / block;
  const ValueId codes = c.input(1), scales = c.input(2);
  if (c.type(codes) != DataType::kUint8 || block * bits % 8 != 0 ||
      elementCount(c.shape(codes)) != n * blocks * (block * bits / 8)) {
    c.refuse(fmt::format("its weight is {}{}, not {} columns of {} blocks of {} codes",
                         dataTypeName(c.type(codes)), shapeToString(c.shape(codes)), n, blocks, block));
  }
  if (elementCount(c.shape(scales)) != n * blocks)
    c.refuse(fmt::format("it has {} scales for {} columns of {} blocks", elementCount(c.shape(scales)), n,
                         blocks));
  c.neverTrain(2);
  const ValueId rows = c.reshape(codes, {n * blocks, block * bits / 8});
  const ValueId centred =
      c.binary("Sub", c.reshape(unpacked(c, rows, bits), {n, blocks, block}), zeroPoints(c, n, blocks, bits));
  const ValueId weight = c.binary("Mul", centred, c.cast(c.reshape(scales, {n, blocks, 1}), kWork));
  const ValueId matrix = c.slice(c.reshape(weight, {n, blocks * block}), 1, 0, k);
  const DataType type = c.type(c.input(0));
  ValueId y = c.matMul(c.input(0), c.transpose(c.cast(matrix, type), {1, 0}));
  if (c.hasInput(5)) y = c.binary("Add", y, c.input(5));
  c.give(0, y);
}

// Input `position` in float32, without its zero point; the zero points of b are one for each column.
ValueId meant(LoweringContext& c, size_t position, size_t zero_point) {
  const ValueId x = c.cast(c.input(position), kWork);
  return c.hasInput(zero_point) ? c.binary("Sub", x, c.cast(c.input(zero_point), kWork)) : x;
}

// (a - a_zero_point) (b - b_zero_point) a_scale b_scale + bias
void lowerMatMulIntegerToFloat(LoweringContext& c) {
  if (elementCount(c.shape(c.input(2))) != 1) c.refuse("it has a scale for each row of its first operand");
  for (size_t position : {2, 3}) c.neverTrain(position);
  const ValueId product = c.matMul(meant(c, 0, 4), meant(c, 1, 5));
  const ValueId scale = c.binary("Mul", c.cast(c.input(3), kWork), c.cast(c.reshape(c.input(2), {}), kWork));
  ValueId y = c.cast(c.binary("Mul", product, scale), c.type(c.input(2)));
  if (c.hasInput(6)) y = c.binary("Add", y, c.input(6));
  c.give(0, y);
}

// What an operand of floating-point numbers is rounded to: codes of 0 to 255, less their zero point. The
// scale is that of the whole tensor, with 0 in its range, as in ONNX's DynamicQuantizeLinear.
struct RoundedOperand {
  ValueId codes;
  ValueId scale;  // []
};

RoundedOperand rounded(LoweringContext& c, ValueId x) {
  constexpr double kLargest = 255;
  std::vector<int64_t> axes;
  for (int64_t axis = 0; axis < c.rank(x); ++axis) axes.push_back(axis);
  const ValueId zero = c.scalar(kWork, 0);
  const ValueId low = c.binary("Min", c.reduce("ReduceMin", x, axes, false), zero);
  const ValueId high = c.binary("Max", c.reduce("ReduceMax", x, axes, false), zero);
  const ValueId range = c.binary("Sub", high, low);
  const ValueId given = c.binary("Mul", range, c.scalar(kWork, 1 / kLargest));
  // a tensor of zeros has no range: any scale gives its codes
  const ValueId scale = c.where(c.compare("Equal", range, zero), c.scalar(kWork, 1), given);
  const ValueId zero_point = c.unary("Round", c.binary("Div", c.unary("Neg", low), scale));
  const ValueId codes = c.binary("Add", c.unary("Round", c.binary("Div", x, scale)), zero_point);
  return {c.binary("Sub", c.clip(codes, 0, kLargest), zero_point), scale};
}

// a, rounded, times (b - b_zero_point) b_scale, + bias; the scale and zero point of all of b or each column.
void lowerDynamicQuantizeMatMul(LoweringContext& c) {
  c.neverTrain(2);
  const DataType type = c.type(c.input(0));
  const RoundedOperand a = rounded(c, c.cast(c.input(0), kWork));
  const ValueId scale = c.binary("Mul", c.cast(c.input(2), kWork), a.scale);
  ValueId y = c.cast(c.binary("Mul", c.matMul(a.codes, meant(c, 1, 3)), scale), type);
  if (c.hasInput(4)) y = c.binary("Add", y, c.input(4));
  c.give(0, y);
}

}  // namespace

void addMicrosoftQuantizationLowerings(LoweringRules& rules) {
  rules[{"com.microsoft", "MatMulNBits"}] = {lowerMatMulNBits, nullptr, true};
  rules[{"com.microsoft", "MatMulIntegerToFloat"}] = {lowerMatMulIntegerToFloat, nullptr, true};
  rules[{"com.microsoft", "DynamicQuantizeMatMul"}] = {lowerDynamicQuantizeMatMul, nullptr, true};
}

}  // namespace pipeshard
