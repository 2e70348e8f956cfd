#include "onnx_import/lowering/lowering_rules.h"

namespace pipeshard {

const LoweringRules& loweringRules() {
  static const LoweringRules rules = [] {
    LoweringRules made;
    addAffineGridLowerings(made);
    addArrangementLowerings(made);
    addContractionLowerings(made);
    addImageLowerings(made);
    addNormalizationLowerings(made);
    addQuantizationLowerings(made);
    addRandomLowerings(made);
    addRecurrentLowerings(made);
    addResizeLowerings(made);
    addSamplingLowerings(made);
    addSignalLowerings(made);
    return made;
  }();
  return rules;
}

const LoweringRule* findLowering(const Node& node) {
  const auto found = loweringRules().find({node.domain, node.op_type});
  return found == loweringRules().end() ? nullptr : &found->second;
}

}  // namespace pipeshard
