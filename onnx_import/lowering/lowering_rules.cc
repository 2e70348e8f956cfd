#include "onnx_import/lowering/lowering_rules.h"

namespace pipeshard {

const LoweringRules& loweringRules() {
  static const LoweringRules rules = [] {
    LoweringRules made;
    addActivationLowerings(made);
    addArrangementLowerings(made);
    addContractionLowerings(made);
    addImageLowerings(made);
    addNormalizationLowerings(made);
    addRecurrentLowerings(made);
    return made;
  }();
  return rules;
}

LoweringRule findLowering(const Node& node) {
  const auto found = loweringRules().find({node.domain, node.op_type});
  return found == loweringRules().end() ? nullptr : found->second;
}

}  // namespace pipeshard
