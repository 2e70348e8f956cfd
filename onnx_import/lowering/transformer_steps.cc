#include "onnx_import/lowering/transformer_steps.h"
#include "ir/base/error.h"

#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

constexpr int kGeluSince = 20;
constexpr int kLayerNormalizationSince = 17;

std::vector<int64_t> axesFrom(const LoweringContext& c, ValueId x, int64_t axis) {
  std::vector<int64_t> axes(c.rank(x) - axis);
  std::iota(axes.begin(), axes.end(), axis);
  return axes;
}

ValueId times(LoweringContext& c, ValueId x, double number) {
  return number == 1 ? x : c.binary("Mul", x, c.scalar(c.type(x), number));
}

// Small enough that its exponential is 0 beside any score's, and a number of the type.
double farBelow(DataType type) { return type == DataType::kFloat16 ? -65504 : -3.3e38; }

// 0, 1, ... `count` - 1
ValueId countUp(LoweringContext& c, int64_t count) {
  c.requireTable({count});
  std::vector<int64_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  return c.integers(numbers);
}

}  // namespace

ValueId gelu(LoweringContext& c, ValueId x, GeluForm form) {
  if (c.hasOperatorsOf(kGeluSince)) {
    const std::string approximate = form == GeluForm::kTanh ? "tanh" : "none";
    return c.op("Gelu", {x}, c.type(x), c.shape(x), {{"approximate", approximate}});
  }
  ValueId odd;
  if (form == GeluForm::kTanh) {
    const ValueId cube = c.binary("Mul", c.binary("Mul", x, x), x);
    const ValueId sum = c.binary("Add", x, times(c, cube, 0.044715));
    odd = c.unary("Tanh", times(c, sum, std::sqrt(2 * std::numbers::inv_pi)));
  } else {
    odd = c.unary("Erf", times(c, x, 1 / std::numbers::sqrt2));
  }
  return c.binary("Mul", times(c, x, 0.5), c.addNumber(odd, 1));
}

ValueId swish(LoweringContext& c, ValueId x, double alpha) {
  return c.binary("Mul", x, c.unary("Sigmoid", times(c, x, alpha)));
}

RowMoments rowMoments(LoweringContext& c, ValueId x, int64_t axis, double epsilon) {
  const ValueId mean = c.reduce("ReduceMean", x, axesFrom(c, x, axis));
  return {mean, inverseRootMeanSquare(c, c.binary("Sub", x, mean), axis, epsilon)};
}

ValueId inverseRootMeanSquare(LoweringContext& c, ValueId x, int64_t axis, double epsilon) {
  const ValueId square = c.reduce("ReduceMean", c.binary("Mul", x, x), axesFrom(c, x, axis));
  return c.unary("Reciprocal", c.unary("Sqrt", c.addNumber(square, epsilon)));
}

ValueId layerNormalization(LoweringContext& c, const LayerNormalization& of) {
  const DataType type = c.type(of.x);
  const Shape whole = c.shape(of.x);
  if (c.hasOperatorsOf(kLayerNormalizationSince)) {
    const Shape row(whole.begin() + of.axis, whole.end());
    std::vector<ValueId> inputs{of.x, of.scale};
    if (!of.scale.valid()) inputs[1] = c.numbers(type, row, std::vector<double>(elementCount(row), 1));
    if (of.bias.valid()) inputs.push_back(of.bias);
    return c.op("LayerNormalization", std::move(inputs), type, whole,
                {{"axis", of.axis}, {"epsilon", static_cast<float>(of.epsilon)}});
  }
  const RowMoments moments = rowMoments(c, of.x, of.axis, of.epsilon);
  ValueId y = c.binary("Mul", c.binary("Sub", of.x, moments.mean), moments.inverse_deviation);
  if (of.scale.valid()) y = c.binary("Mul", y, of.scale);
  return of.bias.valid() ? c.binary("Add", y, of.bias) : y;
}

ValueId splitHeads(LoweringContext& c, ValueId x, int64_t heads) {
  const Shape shape = c.shape(x);
  if (shape.size() != 3 || heads <= 0 || shape[2] % heads != 0)
    c.refuse(fmt::format("{} cannot be split into {} heads", shapeToString(shape), heads));
  return c.transpose(c.reshape(x, {shape[0], shape[1], heads, shape[2] / heads}), {0, 2, 1, 3});
}

ValueId joinHeads(LoweringContext& c, ValueId x) {
  const Shape shape = c.shape(x);
  return c.reshape(c.transpose(x, {0, 2, 1, 3}), {shape[0], shape[2], shape[1] * shape[3]});
}

ValueId attend(LoweringContext& c, const AttentionHeads& heads) {
  const DataType type = c.type(heads.query);
  const int64_t size = c.shape(heads.query)[3];
  const double scale = heads.scale == 0 ? 1 / std::sqrt(static_cast<double>(size)) : heads.scale;
  ValueId scores = c.matMul(times(c, heads.query, scale), c.transpose(heads.key, {0, 1, 3, 2}));
  if (heads.softcap != 0)
    scores = times(c, c.unary("Tanh", times(c, scores, 1 / heads.softcap)), heads.softcap);
  for (ValueId more : heads.added) {
    const ValueId sum = c.binary("Add", scores, more);
    if (c.shape(sum) != c.shape(scores))
      c.refuse(fmt::format("{} cannot be added to scores of {}", shapeToString(c.shape(more)),
                           shapeToString(c.shape(scores))));
    scores = sum;
  }
  if (heads.seen.valid()) scores = c.where(heads.seen, scores, c.scalar(type, farBelow(type)));
  const Shape shape = c.shape(scores);
  if (heads.sink.valid())
    scores = c.concat({scores, c.expand(heads.sink, {shape[0], shape[1], shape[2], 1})}, 3);
  const ValueId shares = c.op("Softmax", {scores}, type, c.shape(scores), {{"axis", int64_t{-1}}});
  return c.matMul(c.slice(shares, 3, 0, shape[3]), heads.value);
}

ValueId causalKeys(LoweringContext& c, int64_t positions, int64_t window) {
  const ValueId key = countUp(c, positions);
  const ValueId query = c.unsqueeze(key, {1});
  const ValueId past = c.compare("LessOrEqual", key, query);
  if (window <= 0) return past;
  const ValueId first = c.binary("Sub", query, c.scalar(DataType::kInt64, static_cast<double>(window)));
  return c.binary("And", past, c.compare("Greater", key, first));
}

ValueId keysBefore(LoweringContext& c, ValueId lengths, int64_t keys) {
  return c.compare("Less", countUp(c, keys), c.cast(lengths, DataType::kInt64));
}

ValueId rotated(LoweringContext& c, ValueId x, ValueId cos, ValueId sin, bool interleaved) {
  const int64_t last = c.rank(x) - 1;
  const int64_t pairs = c.shape(cos).back();
  if (c.shape(sin) != c.shape(cos) || 2 * pairs > c.shape(x)[last])
    c.refuse(fmt::format("cosines of {} and sines of {} cannot turn heads of {}", shapeToString(c.shape(cos)),
                         shapeToString(c.shape(sin)), c.shape(x)[last]));
  const ValueId turned = c.slice(x, last, 0, 2 * pairs);
  Shape paired = c.shape(turned);
  ValueId a, b;
  if (interleaved) {
    paired.back() = pairs;
    paired.push_back(2);
    const ValueId both = c.reshape(turned, paired);
    a = c.squeeze(c.slice(both, last + 1, 0, 1), last + 1);
    b = c.squeeze(c.slice(both, last + 1, 1, 2), last + 1);
  } else {
    a = c.slice(turned, last, 0, pairs);
    b = c.slice(turned, last, pairs, 2 * pairs);
  }
  const ValueId real = c.binary("Sub", c.binary("Mul", a, cos), c.binary("Mul", b, sin));
  const ValueId imaginary = c.binary("Add", c.binary("Mul", a, sin), c.binary("Mul", b, cos));
  ValueId result;
  if (interleaved) {
    const ValueId both =
        c.concat({c.unsqueeze(real, {last + 1}), c.unsqueeze(imaginary, {last + 1})}, last + 1);
    result = c.reshape(both, c.shape(turned));
  } else {
    result = c.concat({real, imaginary}, last);
  }
  if (c.shape(x).back() == 2 * pairs) return result;
  return c.concat({result, c.slice(x, last, 2 * pairs, c.shape(x).back())}, last);
}

}  // namespace pipeshard
