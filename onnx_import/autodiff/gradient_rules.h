// The table of gradient rules: one small function per operator, keyed by (domain, operator), filled by
// explicit calls.
//
// A rule reads context.outputGradient() and says context.give(i, ...) for every input i with
// context.needs(i). It must be right for every shape, type and attribute of its operator, or refuse by name.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "ir/graph/graph.h"
#include "onnx_import/autodiff/gradient_context.h"

namespace pipeshard {

// GradientRule::stopped_inputs of operators that are differentiated in their first input alone.
inline constexpr uint32_t kAllButFirst = ~uint32_t{1};

struct GradientRule {
  // nullptr: the outputs do not depend on any input in a differentiable way
  void (*apply)(GradientContext&) = nullptr;
  // bit i: no gradient passes to input i (an index, a shape, a flag, a limit)
  uint32_t stopped_inputs = 0;
  // where they depend on an attribute: more of them
  uint32_t (*stopped_of)(const Node&) = nullptr;

  bool passesGradient(const Node& node, size_t input) const {
    const uint32_t stopped = stopped_inputs | (stopped_of != nullptr ? stopped_of(node) : 0);
    return apply != nullptr && (input >= 32 || (stopped >> input & 1) == 0);
  }
};

using GradientRules = std::map<std::pair<std::string, std::string>, GradientRule>;

// All rules.
const GradientRules& gradientRules();
// The rule of a node's operator, or nullptr.
const GradientRule* findGradientRule(const Node& node);

// Whether a gradient of the node's outputs goes on to the input. Without a rule: yes, which is an error where
// it matters.
bool passesGradient(const Node& node, size_t input);

// One family each.
void addArithmeticRules(GradientRules& rules);     // rules_arithmetic.cc
void addUnaryRules(GradientRules& rules);          // rules_unary.cc
void addSelectionRules(GradientRules& rules);      // rules_selection.cc
void addMatmulRules(GradientRules& rules);         // rules_matmul.cc
void addReductionRules(GradientRules& rules);      // rules_reduction.cc
void addShapeRules(GradientRules& rules);          // rules_shape.cc
void addMovementRules(GradientRules& rules);       // rules_movement.cc
void addScatterRules(GradientRules& rules);        // rules_scatter.cc
void addNormalizationRules(GradientRules& rules);  // rules_normalization.cc
void addConvolutionRules(GradientRules& rules);    // rules_convolution.cc
void addLossRules(GradientRules& rules);           // rules_loss.cc

}  // namespace pipeshard
