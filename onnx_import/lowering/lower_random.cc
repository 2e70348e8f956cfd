// What a model draws at random becomes inputs that are drawn in every step (ir/base/random_numbers.h).
#include "onnx_import/lowering/lowering_rules.h"

namespace pipeshard {
namespace {

// A Dropout that drops: with training_mode given and true.
bool drops(const Graph& graph, const Node& node) {
  if (node.opset_version < 12 || node.inputs.size() < 3 || !node.inputs[2].valid()) return false;
  const Constant* training = graph.constant(node.inputs[2]);
  return training != nullptr && numericElements(*training) != std::vector<double>{0};
}

// Y = X / (1 - ratio) where the mask is true, else 0.
void lowerDropout(LoweringContext& c) {
  const ValueId x = c.input(0);
  const DataType type = c.type(x);
  const double ratio = c.hasInput(1) ? c.constantNumbers(1)->at(0) : 0.5;
  if (ratio < 0 || ratio >= 1) c.refuse(fmt::format("its ratio is {}; expected 0 <= ratio < 1", ratio));
  if (ratio == 0) {
    c.give(0, x);
    if (c.hasOutput(1)) c.give(1, c.cast(c.expand(c.scalar(type, 1), c.shape(x)), DataType::kBool));
    return;
  }
  const ValueId mask = c.drawn("mask", DataType::kBool, c.shape(x), {RandomNumbers::Kind::kTrue, 1 - ratio});
  const ValueId scaled = c.binary("Mul", x, c.scalar(type, 1 / (1 - ratio)));
  c.give(0, c.where(mask, scaled, c.scalar(type, 0)));
  if (c.hasOutput(1)) c.give(1, mask);
}

DataType computedType(DataType type) { return type == DataType::kFloat64 ? type : DataType::kFloat32; }

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

// 1 with the probability that the input says, element by element.
void lowerBernoulli(LoweringContext& c) {
  const ValueId p = c.input(0);
  const ValueId u = c.drawn("uniform", c.type(p), c.shape(p), {RandomNumbers::Kind::kUniform});
  c.give(0, c.cast(c.compare("Less", u, p), c.outputType()));
}

}  // namespace

void addRandomLowerings(LoweringRules& rules) {
  rules[{"", "Dropout"}] = {lowerDropout, drops};
  for (const char* op_type : {"RandomUniform", "RandomUniformLike"}) rules[{"", op_type}] = lowerUniform;
  for (const char* op_type : {"RandomNormal", "RandomNormalLike"}) rules[{"", op_type}] = lowerNormal;
  rules[{"", "Bernoulli"}] = lowerBernoulli;
}

}  // namespace pipeshard
