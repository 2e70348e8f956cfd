#include "onnx_import/lowering/lowering_rules.h"

namespace pipeshard {

void addContractionLowerings(LoweringRules&) {}

}  // namespace pipeshard
