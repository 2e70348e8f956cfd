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
// ONNX has no types for what is not its own, as ONNX Runtime's operators, and not for all of its own. Those
// rules do not ask for outputs: the types of what they give are those of the outputs, and shape inference
// applies them to find these.
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
  using IsForm = bool (*)(const Node&);

  LoweringRule() = default;
  LoweringRule(Apply apply, Claims claims = nullptr, bool types_outputs = false)
      : apply(apply), claims(claims), types_outputs(types_outputs) {}

  Apply apply = nullptr;
  Claims claims = nullptr;  // the nodes it is for, which it takes although their operator can be run; or all
  bool types_outputs = false;  // the rule needs only the types of inputs, and says those of outputs
  // Nodes of a form that came after our ONNX, whose inference refuses it: it is not asked, and the rule types
  // their outputs.
  IsForm beyond_schema = nullptr;

  bool isBeyondSchema(const Node& node) const { return beyond_schema != nullptr && beyond_schema(node); }
  bool typesOutputs(const Node& node) const { return types_outputs || isBeyondSchema(node); }
};
using LoweringRules = std::map<std::pair<std::string, std::string>, LoweringRule>;

// All rules.
const LoweringRules& loweringRules();
// The rule for a node of the graph, or nullptr.
const LoweringRule* findLowering(const Graph& graph, const Node& node);

// What rules compute in that need no more than float32: all but float64, which stays what it is.
inline DataType computedType(DataType type) { return type == DataType::kFloat64 ? type : DataType::kFloat32; }

// One family each.
void addActivationLowerings(LoweringRules& rules);              // lower_activations.cc
void addAffineGridLowerings(LoweringRules& rules);              // lower_affine_grid.cc
void addArrangementLowerings(LoweringRules& rules);             // lower_arrangements.cc
void addContractionLowerings(LoweringRules& rules);             // lower_contractions.cc
void addGradientLowerings(LoweringRules& rules);                // lower_gradients.cc
void addImageLowerings(LoweringRules& rules);                   // lower_images.cc
void addMicrosoftAttentionLowerings(LoweringRules& rules);      // lower_microsoft_attention.cc
void addMicrosoftFusionLowerings(LoweringRules& rules);         // lower_microsoft_fusions.cc
void addMicrosoftNormalizationLowerings(LoweringRules& rules);  // lower_microsoft_normalizations.cc
void addMicrosoftQuantizationLowerings(LoweringRules& rules);   // lower_microsoft_quantization.cc
void addNormalizationLowerings(LoweringRules& rules);           // lower_normalizations.cc
void addOptimizerLowerings(LoweringRules& rules);               // lower_optimizers.cc
void addQuantizationLowerings(LoweringRules& rules);            // lower_quantization.cc
void addRecurrentLowerings(LoweringRules& rules);               // lower_recurrent.cc
void addRandomLowerings(LoweringRules& rules);                  // lower_random.cc
void addReductionLowerings(LoweringRules& rules);               // lower_reductions.cc
void addResizeLowerings(LoweringRules& rules);                  // lower_resize.cc
void addSamplingLowerings(LoweringRules& rules);                // lower_sampling.cc
void addSignalLowerings(LoweringRules& rules);                  // lower_signals.cc
void addTrainingLowerings(LoweringRules& rules);                // lower_training.cc

}  // namespace pipeshard
