#include "onnx_import/lowering/lowering_rules.h"

namespace pipeshard {

void addRecurrentLowerings(LoweringRules&) {}

}  // namespace pipeshard
