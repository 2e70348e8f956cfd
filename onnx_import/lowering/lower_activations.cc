#include "onnx_import/lowering/lowering_rules.h"

namespace pipeshard {

void addActivationLowerings(LoweringRules&) {}

}  // namespace pipeshard
