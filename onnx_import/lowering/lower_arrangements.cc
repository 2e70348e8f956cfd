#include "onnx_import/lowering/lowering_rules.h"

namespace pipeshard {

void addArrangementLowerings(LoweringRules&) {}

}  // namespace pipeshard
