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
// gradient: an operator that has both stays as it is.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "onnx_import/lowering/lowering_context.h"

namespace pipeshard {

using LoweringRule = void (*)(LoweringContext&);
using LoweringRules = std::map<std::pair<std::string, std::string>, LoweringRule>;

// All rules.
const LoweringRules& loweringRules();
// The rule of a node's operator, or nullptr.
LoweringRule findLowering(const Node& node);

// One family each.
void addActivationLowerings(LoweringRules& rules);     // lower_activations.cc
void addArrangementLowerings(LoweringRules& rules);    // lower_arrangements.cc
void addContractionLowerings(LoweringRules& rules);    // lower_contractions.cc
void addImageLowerings(LoweringRules& rules);          // lower_images.cc
void addNormalizationLowerings(LoweringRules& rules);  // lower_normalizations.cc
void addQuantizationLowerings(LoweringRules& rules);   // lower_quantization.cc
void addRecurrentLowerings(LoweringRules& rules);      // lower_recurrent.cc
void addSamplingLowerings(LoweringRules& rules);       // lower_sampling.cc

}  // namespace pipeshard
