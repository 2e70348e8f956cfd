// Operators of ONNX Runtime (domain com.microsoft) that are several of ONNX's in one: activations, products,
// convolutions. Its graph optimizer writes them.
#include <algorithm>
#include <array>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "ir/base/error.h"
#include "onnx_import/lowering/lowering_rules.h"
#include "onnx_import/lowering/transformer_steps.h"

namespace pipeshard {
namespace {

// ---- activations, with what is added before

// Input 0 plus input 1, if there is one.
ValueId biasedInput(LoweringContext& c) {
  return c.hasInput(1) ? c.binary("Add", c.input(0), c.input(1)) : c.input(0);
}

void lowerGelu(LoweringContext& c) { c.give(0, gelu(c, biasedInput(c), GeluForm::kErf)); }
void lowerFastGelu(LoweringContext& c) { c.give(0, gelu(c, biasedInput(c), GeluForm::kTanh)); }

void lowerQuickGelu(LoweringContext& c) {
  c.give(0, swish(c, c.input(0), c.node().floatAttribute("alpha", 1.702F)));
}

// The first half of the last axis times the Gelu of the second.
void lowerBiasSplitGelu(LoweringContext& c) {
  const ValueId x = c.binary("Add", c.input(0), c.input(1));
  const int64_t last = c.rank(x) - 1;
  const int64_t size = last < 0 ? 1 : c.shape(x)[last];
  if (size % 2 != 0) c.refuse(fmt::format("its last axis has {} elements, which are no two halves", size));
  const ValueId gate = gelu(c, c.slice(x, last, size / 2, size), GeluForm::kErf);
  c.give(0, c.binary("Mul", c.slice(x, last, 0, size / 2), gate));
}

void lowerBiasAdd(LoweringContext& c) { c.give(0, c.binary("Add", biasedInput(c), c.input(2))); }

// Of all elements from `axis` on, as one axis. The bias has a 1 where it is the same for all.
void lowerBiasSoftmax(LoweringContext& c) {
  const ValueId sum = c.binary("Add", c.input(0), c.input(1));
  const Shape whole = c.shape(c.input(0));
  if (c.shape(sum) != whole)
    c.refuse(fmt::format("its bias {} does not broadcast to {}", shapeToString(c.shape(c.input(1))),
                         shapeToString(whole)));
  const int64_t axis = normalizeAxis(c.node().intAttribute("axis", 1), whole.size());
  Shape flat(whole.begin(), whole.begin() + axis);
  flat.push_back(elementCount(Shape(whole.begin() + axis, whole.end())));
  const ValueId scores = c.reshape(sum, flat);
  const ValueId shares = c.op("Softmax", {scores}, c.type(scores), flat, {{"axis", int64_t{-1}}});
  c.give(0, c.reshape(shares, whole));
}

// ---- products

// As numpy's matmul, of vectors too.
ValueId product(LoweringContext& c, ValueId a, ValueId b) {
  const bool row = c.rank(a) == 1;
  const bool column = c.rank(b) == 1;
  if (row) a = c.unsqueeze(a, {0});
  if (column) b = c.unsqueeze(b, {1});
  ValueId y = c.matMul(a, b);
  if (column) y = c.squeeze(y, c.rank(y) - 1);
  return row ? c.squeeze(y, c.rank(y) - (column ? 1 : 2)) : y;
}

// Operand `position` as MatMul takes it. `batches`: the axes are rows, batches, columns. Vectors stay.
ValueId operand(LoweringContext& c, size_t position, const char* transposed, const char* batches) {
  const ValueId x = c.input(position);
  const int64_t rank = c.rank(x);
  if (rank == 0) c.refuse(fmt::format("its input {} is a scalar", position));
  if (rank == 1) return x;
  std::vector<int64_t> order(rank);
  std::iota(order.begin(), order.end(), 0);
  if (c.node().intAttribute(batches, 0) != 0) std::rotate(order.begin(), order.begin() + 1, order.end() - 1);
  if (c.node().intAttribute(transposed, 0) != 0) std::swap(order[rank - 2], order[rank - 1]);
  return std::is_sorted(order.begin(), order.end()) ? x : c.transpose(x, order);
}

void lowerFusedMatMul(LoweringContext& c) {
  const ValueId a = operand(c, 0, "transA", "transBatchA");
  const ValueId b = operand(c, 1, "transB", "transBatchB");
  const ValueId y = product(c, a, b);
  const float alpha = c.node().floatAttribute("alpha", 1);
  c.give(0, alpha == 1 ? y : c.binary("Mul", y, c.scalar(c.type(y), alpha)));
}

// The attributes of the node but for those of the activation.
OpEmitter::Attributes withoutActivation(const LoweringContext& c) {
  OpEmitter::Attributes attributes = c.node().attributes;
  std::erase_if(attributes, [](const auto& entry) { return entry.first.starts_with("activation"); });
  return attributes;
}

// What Gemm's activation may be, as a node of its own: its parameters have the same names there.
constexpr std::array kGemmActivations = {"Celu",     "Elu",  "HardSigmoid",    "LeakyRelu",
                                         "Relu",     "Selu", "Sigmoid",        "Softplus",
                                         "Softsign", "Tanh", "ThresholdedRelu"};

void lowerFusedGemm(LoweringContext& c) {
  const std::string activation = c.node().stringAttribute("activation", "");
  if (std::find(kGemmActivations.begin(), kGemmActivations.end(), activation) == kGemmActivations.end())
    c.refuse(fmt::format("its activation is '{}'", activation));
  const Shape a = c.shape(c.input(0));
  const Shape b = c.shape(c.input(1));
  if (a.size() != 2 || b.size() != 2) c.refuse("its operands are no matrices");
  const int64_t rows = a[c.node().intAttribute("transA", 0) != 0 ? 1 : 0];
  const int64_t columns = b[c.node().intAttribute("transB", 0) != 0 ? 0 : 1];
  const DataType type = c.type(c.input(0));
  const ValueId sum = c.op("Gemm", c.node().inputs, type, {rows, columns}, withoutActivation(c));
  OpEmitter::Attributes parameters;
  for (const char* name : {"alpha", "beta", "gamma"}) {
    const auto given = c.node().attributes.find(std::string("activation_") + name);
    if (given != c.node().attributes.end()) parameters.emplace(name, given->second);
  }
  c.give(0, c.op(activation, {sum}, type, {rows, columns}, std::move(parameters)));
}

// ---- convolutions

// [batch, channels, image..] of a Conv with the node's attributes.
Shape convolved(const LoweringContext& c) {
  const Shape x = c.shape(c.input(0));
  const Shape w = c.shape(c.input(1));
  if (x.size() < 3 || w.size() != x.size())
    c.refuse("its input has no image axes, or not those of its kernel");
  const size_t axes = x.size() - 2;
  const std::vector<int64_t> ones(axes, 1);
  const std::vector<int64_t> strides = c.node().intsAttribute("strides", ones);
  const std::vector<int64_t> dilations = c.node().intsAttribute("dilations", ones);
  const std::vector<int64_t> pads = c.node().intsAttribute("pads", std::vector<int64_t>(2 * axes, 0));
  const std::string pad = c.node().stringAttribute("auto_pad", "NOTSET");
  if (strides.size() != axes || dilations.size() != axes || pads.size() != 2 * axes)
    c.refuse(fmt::format("its strides, dilations or pads are not for {} image axes", axes));
  Shape y{x[0], w[0]};
  for (size_t i = 0; i < axes; ++i) {
    if (strides[i] <= 0) c.refuse("a stride is not positive");
    const int64_t window = (w[i + 2] - 1) * dilations[i] + 1;
    const int64_t padded = x[i + 2] + (pad == "NOTSET" ? pads[i] + pads[i + axes] : 0);
    const bool same = pad.starts_with("SAME");
    const int64_t size = same ? (padded - 1) / strides[i] + 1 : (padded - window) / strides[i] + 1;
    if (!same && padded < window) c.refuse("its kernel is larger than its image");
    y.push_back(size);
  }
  return y;
}

ValueId convolutionActivation(LoweringContext& c, ValueId x) {
  const std::string activation = c.node().stringAttribute("activation", "");
  std::vector<float> parameters;
  const auto given = c.node().attributes.find("activation_params");
  if (given != c.node().attributes.end()) {
    if (const auto* numbers = std::get_if<std::vector<float>>(&given->second)) parameters = *numbers;
  }
  const auto expect = [&](size_t count) {
    if (parameters.size() != count)
      c.refuse(fmt::format("its activation '{}' has {} parameters; expected {}", activation,
                           parameters.size(), count));
  };
  if (activation.empty()) return x;
  if (activation == "Clip") {
    expect(2);
    return c.clip(x, parameters[0], parameters[1]);
  }
  if (activation == "HardSigmoid") {
    expect(2);
    return c.op(activation, {x}, c.type(x), c.shape(x), {{"alpha", parameters[0]}, {"beta", parameters[1]}});
  }
  if (activation == "HardSwish") return c.unary(activation, x);
  if (activation == "LeakyRelu") {
    expect(1);
    return c.op(activation, {x}, c.type(x), c.shape(x), {{"alpha", parameters[0]}});
  }
  if (activation != "Relu" && activation != "Sigmoid" && activation != "Tanh")
    c.refuse(fmt::format("its activation is '{}'", activation));
  return c.unary(activation, x);
}

// activation(Conv(x, w, bias) + input 3)
void lowerFusedConv(LoweringContext& c) {
  std::vector<ValueId> inputs{c.input(0), c.input(1)};
  if (c.hasInput(2)) inputs.push_back(c.input(2));
  ValueId y = c.op("Conv", std::move(inputs), c.type(c.input(0)), convolved(c), withoutActivation(c));
  if (c.hasInput(3)) y = c.binary("Add", y, c.input(3));
  c.give(0, convolutionActivation(c, y));
}

}  // namespace

void addMicrosoftFusionLowerings(LoweringRules& rules) {
  const auto add = [&](const char* op_type, LoweringRule::Apply apply) {
    rules[{"com.microsoft", op_type}] = {apply, nullptr, true};
  };
  add("BiasAdd", lowerBiasAdd);
  add("BiasGelu", lowerGelu);
  add("BiasSoftmax", lowerBiasSoftmax);
  add("BiasSplitGelu", lowerBiasSplitGelu);
  add("FastGelu", lowerFastGelu);
  add("FusedConv", lowerFusedConv);
  add("FusedGemm", lowerFusedGemm);
  add("FusedMatMul", lowerFusedMatMul);
  add("Gelu", lowerGelu);
  add("QuickGelu", lowerQuickGelu);
  add("TransposeMatMul", lowerFusedMatMul);
}

}  // namespace pipeshard
