// The table of lowerings: operators that have no kernel, gradient or factor rule of their own, and what they
// are in operators that have. Keyed by (domain, operator), filled by explicit calls.
//
//   DepthToSpace(x)  ->  Reshape, Transpose, Reshape
//
// A rule reads the node's inputs and says context.give(i, ...) for every output i with context.hasOutput(i).
// Types and static shapes of all inputs and outputs are known. It is right for every attribute, type and
// shape of its operator in every version from opset 16 on, or refuses by name. What it emits are standard
// operators that can be run and differentiated, or are lowered in turn, in forms of the graph's opset.
//
// A lowering is preferred to the function body that ONNX gives the operator, and comes after a kernel with a
// gradient: an operator that has both stays as it is, unless the rule claims the node.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "onnx_import/lowering/lowering_context.h"

namespace pipeshard {

struct LoweringRule {
  using Apply = void (*)(LoweringContext&);
  using Claims = bool (*)(const Graph&, const Node&);

  LoweringRule() = default;
  LoweringRule(Apply apply, Claims claims = nullptr) : apply(apply), claims(claims) {}

  Apply apply = nullptr;
  Claims claims = nullptr;  // nodes that are lowered although their operator can be run
};
using LoweringRules = std::map<std::pair<std::string, std::string>, LoweringRule>;

// All rules.
const LoweringRules& loweringRules();
// The rule of a node's operator, or nullptr.
const LoweringRule* findLowering(const Node& node);

// One family each.
void addAffineGridLowerings(LoweringRules& rules);     // lower_affine_grid.cc
void addArrangementLowerings(LoweringRules& rules);    // lower_arrangements.cc
void addContractionLowerings(LoweringRules& rules);    // lower_contractions.cc
void addImageLowerings(LoweringRules& rules);          // lower_images.cc
void addNormalizationLowerings(LoweringRules& rules);  // lower_normalizations.cc
void addQuantizationLowerings(LoweringRules& rules);   // lower_quantization.cc
void addRecurrentLowerings(LoweringRules& rules);      // lower_recurrent.cc
void addRandomLowerings(LoweringRules& rules);         // lower_random.cc
void addResizeLowerings(LoweringRules& rules);         // lower_resize.cc
void addSamplingLowerings(LoweringRules& rules);       // lower_sampling.cc
void addSignalLowerings(LoweringRules& rules);         // lower_signals.cc

}  // namespace pipeshard
