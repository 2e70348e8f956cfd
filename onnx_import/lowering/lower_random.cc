// What a model draws at random becomes inputs that are drawn in every step (ir/base/random_numbers.h).
#include "ir/base/error.h"
#include "onnx_import/lowering/lowering_rules.h"

namespace pipeshard {
namespace {

// A Dropout that drops: with training_mode given and true.
bool drops(const Graph& graph, const Node& node) {
  if (node.opset_version < 12 || node.inputs.size() < 3 || !node.inputs[2].valid()) return false;
  const Constant* training = graph.constant(node.inputs[2]);
  return training != nullptr && numericElements(*training) != std::vector<double>{0};
}

// x / (1 - ratio) where the mask, output 1, is true, else 0.
ValueId dropped(LoweringContext& c, ValueId x, double ratio) {
  const DataType type = c.type(x);
  if (ratio < 0 || ratio >= 1) c.refuse(fmt::format("its ratio is {}; expected 0 <= ratio < 1", ratio));
  if (ratio == 0) {
    if (c.hasOutput(1)) c.give(1, c.cast(c.expand(c.scalar(type, 1), c.shape(x)), DataType::kBool));
    return x;
  }
  const ValueId mask = c.drawn("mask", DataType::kBool, c.shape(x), {RandomNumbers::Kind::kTrue, 1 - ratio});
  if (c.hasOutput(1)) c.give(1, mask);
  const ValueId scaled = c.binary("Mul", x, c.scalar(type, 1 / (1 - ratio)));
  return c.where(mask, scaled, c.scalar(type, 0));
}

double dropoutRatio(const LoweringContext& c, size_t position) {
  return c.hasInput(position) ? c.constantNumbers(position)->at(0) : 0.5;
}

void lowerDropout(LoweringContext& c) { c.give(0, dropped(c, c.input(0), dropoutRatio(c, 1))); }

// ONNX Runtime's Dropout(data + bias) + residual; inputs: data, bias, residual, ratio, training_mode.
void lowerBiasDropout(LoweringContext& c) {
  const bool training = c.hasInput(4) && c.constantNumbers(4)->at(0) != 0;
  const ValueId sum = c.binary("Add", c.input(0), c.input(1));
  const ValueId y = dropped(c, sum, training ? dropoutRatio(c, 3) : 0);
  c.give(0, c.hasInput(2) ? c.binary("Add", y, c.input(2)) : y);
}

// low + (high - low) u.
void lowerUniform(LoweringContext& c) {
  const DataType type = computedType(c.outputType());
  const double low = c.node().floatAttribute("low", 0);
  const double high = c.node().floatAttribute("high", 1);
  const ValueId u = c.drawn("uniform", type, c.outputShape(), {RandomNumbers::Kind::kUniform});
  c.give(0, c.cast(c.addNumber(c.binary("Mul", u, c.scalar(type, high - low)), low), c.outputType()));
}

// mean + scale n.
void lowerNormal(LoweringContext& c) {
  const DataType type = computedType(c.outputType());
  const ValueId n = c.drawn("normal", type, c.outputShape(), {RandomNumbers::Kind::kNormal});
  const ValueId scaled = c.binary("Mul", n, c.scalar(type, c.node().floatAttribute("scale", 1)));
  c.give(0, c.cast(c.addNumber(scaled, c.node().floatAttribute("mean", 0)), c.outputType()));
}

// 1 with the probability that the input says, element by element. Not in float16, where a number just below 1
// is 1, and not below the probability 1.
void lowerBernoulli(LoweringContext& c) {
  const ValueId p = c.cast(c.input(0), computedType(c.type(c.input(0))));
  const ValueId u = c.drawn("uniform", c.type(p), c.shape(p), {RandomNumbers::Kind::kUniform});
  c.give(0, c.cast(c.compare("Less", u, p), c.outputType()));
}

// Per row and sample a class: how many classes have a cumulated probability that is not above the number
// drawn. That number is scaled by the last of the sums, which rounding may leave below 1. So it stays below
// that sum, and no class of probability 0 is taken.
void lowerMultinomial(LoweringContext& c) {
  const Shape shape = c.shape(c.input(0));
  const int64_t samples = c.node().intAttribute("sample_size", 1);
  if (shape.size() != 2 || shape[1] < 1)
    c.refuse(fmt::format("its input is {}, not a batch of one or more classes", shapeToString(shape)));
  if (samples < 1) c.refuse(fmt::format("its sample_size is {}", samples));
  const DataType type = computedType(c.type(c.input(0)));
  // The input has logarithms, of numbers in proportion to the probabilities.
  const ValueId probabilities =
      c.op("Softmax", {c.cast(c.input(0), type)}, type, shape, {{"axis", int64_t{1}}});
  const ValueId sums = c.op("CumSum", {probabilities, c.scalar(DataType::kInt64, 1)}, type, shape);
  const ValueId u = c.drawn("uniform", type, {shape[0], samples}, {RandomNumbers::Kind::kUniform});
  const ValueId place = c.binary("Mul", u, c.slice(sums, 1, shape[1] - 1, shape[1]));
  const ValueId passed = c.compare("LessOrEqual", c.unsqueeze(sums, {1}), c.unsqueeze(place, {2}));
  c.give(0, c.reduce("ReduceSum", c.cast(passed, c.outputType()), {2}, false));
}

}  // namespace

void addRandomLowerings(LoweringRules& rules) {
  rules[{"", "Dropout"}] = {lowerDropout, drops};
  rules[{"com.microsoft", "BiasDropout"}] = {lowerBiasDropout, nullptr, true};
  for (const char* op_type : {"RandomUniform", "RandomUniformLike"}) rules[{"", op_type}] = lowerUniform;
  for (const char* op_type : {"RandomNormal", "RandomNormalLike"}) rules[{"", op_type}] = lowerNormal;
  rules[{"", "Bernoulli"}] = lowerBernoulli;
  rules[{"", "Multinomial"}] = lowerMultinomial;
}

}  // namespace pipeshard
