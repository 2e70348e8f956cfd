// Convolutions and pools: examples are independent, channels too where they do not meet; spatial axes stay
// whole, since windows overlap.
#include "sharding/rules/rule_builder.h"

namespace pipeshard {
namespace {

// Which tensor of a convolution's node is which: position of an input, or -1 for the output.
struct Roles {
  int image, weight, output, bias;
};

void place(RuleBuilder& builder, int position, const std::vector<int>& factors) {
  for (size_t axis = 0; axis < factors.size(); ++axis) {
    if (factors[axis] < 0) continue;
    if (position >= 0) builder.setInput(position, axis, {factors[axis]});
    if (position < 0) builder.setOutput(0, axis, {factors[axis]});
  }
}

// Image [n, c, ..], weight [f, c / group, ..], output [n, f, ..]. With several groups the channels of one
// group belong together, and a cut would change the attribute `group`: they are whole; so are those that the
// node sums over when it adds a bias, which the parts would count twice.
FactorRule convolution(const Graph& graph, const Node& node, const Roles& roles) {
  RuleBuilder builder(graph, node);
  const auto shape = [&](int position) {
    return position >= 0 ? builder.inputShape(position) : builder.outputShape(0);
  };
  const Shape image = shape(roles.image);
  const Shape weight = shape(roles.weight);
  const Shape output = shape(roles.output);
  const bool one_group = node.intAttribute("group", 1) == 1;
  const bool bias = roles.bias >= 0 && builder.hasInput(roles.bias);
  // The tensor that the node gives lacks one of the three; over that one it sums.
  const auto kind = [](int lacking) { return lacking < 0 ? FactorKind::kSum : FactorKind::kParallel; };
  const int n = builder.factor("n", image[0], kind(roles.weight));
  const auto channelKind = [&](int lacking) {
    return !one_group || (bias && lacking < 0) ? FactorKind::kWhole : kind(lacking);
  };
  const int c = builder.factor("c", weight[1], channelKind(roles.output));
  const int f = builder.factor("f", weight[0], channelKind(roles.image));
  if (bias && one_group && roles.output < 0) builder.setAddedOnce(c, roles.bias);
  if (bias && one_group && roles.image < 0) builder.setAddedOnce(f, roles.bias);
  place(builder, roles.image, {n, one_group ? c : -1});
  place(builder, roles.weight, {f, c});
  place(builder, roles.output, {n, f});
  if (bias && roles.output < 0) place(builder, roles.bias, {f});
  if (bias && roles.image < 0) place(builder, roles.bias, {one_group ? c : -1});
  double outputs = 1;
  for (int64_t size : output) outputs *= static_cast<double>(size);
  double per_output = 2;
  for (size_t axis = 1; axis < weight.size(); ++axis) per_output *= static_cast<double>(weight[axis]);
  return builder.build(outputs * per_output);
}

std::optional<FactorRule> convRule(const Graph& graph, const Node& node) {
  return convolution(graph, node, {0, 1, -1, 2});
}
// The input takes the place of a convolution's output, and the output that of its image.
std::optional<FactorRule> convTransposeRule(const Graph& graph, const Node& node) {
  return convolution(graph, node, {-1, 1, 0, 2});
}
std::optional<FactorRule> convInputGradRule(const Graph& graph, const Node& node) {
  return convolution(graph, node, {-1, 1, 0, -1});
}
std::optional<FactorRule> convWeightGradRule(const Graph& graph, const Node& node) {
  return convolution(graph, node, {1, -1, 0, -1});
}

// Inputs and outputs are all [n, c, ..]. Indices of a MaxPool count through the whole tensor: then nothing
// can be cut.
std::optional<FactorRule> poolRule(const Graph& graph, const Node& node) {
  RuleBuilder builder(graph, node);
  const Shape& shape = builder.inputShape(0);
  if (shape.size() < 2) return std::nullopt;
  const bool counts = node.is("MaxPool") && builder.hasOutput(1);
  const FactorKind kind = counts ? FactorKind::kWhole : FactorKind::kParallel;
  const int n = builder.factor("n", shape[0], kind);
  const int c = builder.factor("c", shape[1], kind);
  for (size_t input = 0; input < node.inputs.size(); ++input) {
    builder.setInput(input, 0, {n});
    builder.setInput(input, 1, {c});
  }
  for (size_t output = 0; output < node.outputs.size(); ++output) {
    builder.setOutput(output, 0, {n});
    builder.setOutput(output, 1, {c});
  }
  return builder.build(builder.inputElements(0) * 4);
}

}  // namespace

void registerConvolutionRules(RuleTable& table) {
  table.add("", "Conv", convRule);
  table.add("", "ConvTranspose", convTransposeRule);
  table.addAll("", {"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"}, poolRule);
  table.add(kPipeshardDomain, "ConvInputGrad", convInputGradRule);
  table.add(kPipeshardDomain, "ConvWeightGrad", convWeightGradRule);
  table.addAll(kPipeshardDomain, {"MaxPoolGrad", "AveragePoolGrad"}, poolRule);
}

}  // namespace pipeshard
