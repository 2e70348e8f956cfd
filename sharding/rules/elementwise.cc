// Operators that compute every element of the output from the elements at the same place of the inputs, with
// broadcasting.
#include "sharding/rules/rule_builder.h"

namespace pipeshard {

namespace {

FactorRule elementwise(const Graph& graph, const Node& node, double flops_per_element) {
  RuleBuilder builder(graph, node);
  const std::vector<int> factors = builder.factorsOf(builder.outputShape(0));
  for (size_t input = 0; input < node.inputs.size(); ++input) builder.alignInput(input, factors);
  for (size_t output = 0; output < node.outputs.size(); ++output) builder.alignOutput(output, factors);
  return builder.build(builder.outputElements(0) * flops_per_element);
}

std::optional<FactorRule> arithmeticRule(const Graph& graph, const Node& node) {
  return elementwise(graph, node, kMoveFlops);
}
std::optional<FactorRule> transcendentalRule(const Graph& graph, const Node& node) {
  return elementwise(graph, node, kTranscendentalFlops);
}
std::optional<FactorRule> identityRule(const Graph& graph, const Node& node) {
  return elementwise(graph, node, kViewFlops);
}

// CastLike reads only the type of its second input, Dropout only scalars beside its first.
std::optional<FactorRule> firstInputOnlyRule(const Graph& graph, const Node& node) {
  RuleBuilder builder(graph, node);
  const std::vector<int> factors = builder.factorsOf(builder.outputShape(0));
  builder.alignInput(0, factors);
  for (size_t output = 0; output < node.outputs.size(); ++output) builder.alignOutput(output, factors);
  return builder.build(builder.outputElements(0) * kMoveFlops);
}

// Parameter, gradient and states have the parameter's shape; hyperparameters and the step are scalars.
std::optional<FactorRule> optimizerRule(const Graph& graph, const Node& node) {
  return elementwise(graph, node, kOptimizerFlops);
}

}  // namespace

void registerElementwiseRules(RuleTable& table) {
  table.addAll("", {"Add",        "Sub",
                    "Mul",        "Div",
                    "Neg",        "Abs",
                    "Relu",       "LeakyRelu",
                    "PRelu",      "ThresholdedRelu",
                    "Clip",       "Max",
                    "Min",        "Sum",
                    "Mean",       "Where",
                    "Cast",       "Equal",
                    "Less",       "LessOrEqual",
                    "Greater",    "GreaterOrEqual",
                    "And",        "Or",
                    "Xor",        "Not",
                    "IsNaN",      "IsInf",
                    "Sign",       "Floor",
                    "Ceil",       "Round",
                    "Mod",        "Reciprocal",
                    "BitShift",   "BitwiseAnd",
                    "BitwiseOr",  "BitwiseXor",
                    "BitwiseNot", "HardSigmoid",
                    "HardSwish",  "Shrink"},
               arithmeticRule);
  table.addAll("", {"Pow",   "Sqrt", "Exp",  "Log",  "Erf",  "Tanh",     "Sigmoid",  "Gelu",  "Sin",
                    "Cos",   "Tan",  "Asin", "Acos", "Atan", "Sinh",     "Cosh",     "Asinh", "Acosh",
                    "Atanh", "Elu",  "Selu", "Celu", "Mish", "Softplus", "Softsign", "Swish"},
               transcendentalRule);
  table.add("", "Identity", identityRule);
  table.addAll("", {"CastLike", "Dropout"}, firstInputOnlyRule);
  table.add(kPipeshardDomain, "ReluGrad", arithmeticRule);
  table.addAll(kPipeshardDomain, {"Gelu", "GeluGrad", "Swish", "SwishGrad", "MishGrad"}, transcendentalRule);
  table.addAll(kPipeshardDomain,
               {"SGD", "SGDMomentum", "Adam", "AdamW", "RMSProp", "RMSPropMomentum", "Adagrad", "Lion",
                "LAMBDirection", "MovingAverage", "ScheduledRate"},
               optimizerRule);
}

}  // namespace pipeshard
