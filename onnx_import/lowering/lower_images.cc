#include "onnx_import/lowering/lowering_rules.h"

namespace pipeshard {

void addImageLowerings(LoweringRules&) {}

}  // namespace pipeshard
