#include "onnx_import/lowering/lowering_rules.h"

namespace pipeshard {

const LoweringRules& loweringRules() {
  static const LoweringRules rules = [] {
    LoweringRules made;
    addActivationLowerings(made);
    addAffineGridLowerings(made);
    addArrangementLowerings(made);
    addContractionLowerings(made);
    addGradientLowerings(made);
    addImageLowerings(made);
    addMicrosoftAttentionLowerings(made);
    addMicrosoftFusionLowerings(made);
    addMicrosoftNormalizationLowerings(made);
    addMicrosoftQuantizationLowerings(made);
    addNormalizationLowerings(made);
    addOptimizerLowerings(made);
    addQuantizationLowerings(made);
    addRandomLowerings(made);
    addRecurrentLowerings(made);
    addReductionLowerings(made);
    addResizeLowerings(made);
    addSamplingLowerings(made);
    addSignalLowerings(made);
    addTrainingLowerings(made);
    return made;
  }();
  return rules;
}

const LoweringRule* findLowering(const Graph& graph, const Node& node) {
  const auto found = loweringRules().find({node.domain, node.op_type});
  if (found == loweringRules().end()) return nullptr;
  const LoweringRule& rule = found->second;
  return rule.claims == nullptr || rule.claims(graph, node) ? &rule : nullptr;
}

}  // namespace pipeshard
