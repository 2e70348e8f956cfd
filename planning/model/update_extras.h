// What updates do beside the optimizer, as options say it.
#pragma once

#include <string>
#include <vector>

#include "ir/plan/given_options.h"
#include "onnx_import/autodiff/training.h"

namespace pipeshard {

// Clipping, the moving average, and with --precision float16 the scale of the loss. Error(kUsage) for options
// that exclude each other or mean nothing.
UpdateExtras updateExtras(const GivenOptions& given);

// Says how the loss is scaled, where it is and something is trained.
void noteLossScaling(const LossScaling& scaling, const OptimizerSpec& optimizer,
                     std::vector<std::string>& notes);

}  // namespace pipeshard
