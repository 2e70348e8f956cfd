#include "onnx_import/autodiff/gradient_rules.h"

#include "ir/graph/stopped_gradient.h"

namespace pipeshard {
namespace {

// Outputs that do not vary with the inputs, or vary in steps: the derivative is zero or there is none to
// take.
void addOperatorsWithoutGradient(GradientRules& rules) {
  for (const char* op_type : {"And",
                              "ArgMax",
                              "ArgMin",
                              "BitShift",
                              "BitwiseAnd",
                              "BitwiseNot",
                              "BitwiseOr",
                              "BitwiseXor",
                              "Ceil",
                              "Constant",
                              "ConstantOfShape",
                              "Equal",
                              "EyeLike",
                              "Floor",
                              "Greater",
                              "GreaterOrEqual",
                              "IsInf",
                              "IsNaN",
                              "Less",
                              "LessOrEqual",
                              "NonZero",
                              "Not",
                              "OneHot",
                              "Or",
                              "RandomNormal",
                              "RandomNormalLike",
                              "RandomUniform",
                              "RandomUniformLike",
                              "Range",
                              "Round",
                              "Shape",
                              "Sign",
                              "Size",
                              "Xor"}) {
    rules[{"", op_type}] = {};
  }
}

GradientRules makeRules() {
  GradientRules rules;
  addOperatorsWithoutGradient(rules);
  addArithmeticRules(rules);
  addUnaryRules(rules);
  addSelectionRules(rules);
  addMatmulRules(rules);
  addReductionRules(rules);
  addShapeRules(rules);
  addMovementRules(rules);
  addScatterRules(rules);
  addNormalizationRules(rules);
  addConvolutionRules(rules);
  addLossRules(rules);
  return rules;
}

}  // namespace

const GradientRules& gradientRules() {
  static const GradientRules rules = makeRules();
  return rules;
}

const GradientRule* findGradientRule(const Node& node) {
  static const GradientRule stopped;
  if (stopsGradient(node)) return &stopped;
  const auto it = gradientRules().find({node.domain, node.op_type});
  return it == gradientRules().end() ? nullptr : &it->second;
}

bool passesGradient(const Node& node, size_t input) {
  const GradientRule* rule = findGradientRule(node);
  return rule == nullptr || rule->passesGradient(node, input);
}

}  // namespace pipeshard
