// Parameters of the module that the file does not have as they are: told, with what to do.
#pragma once

#include <string>
#include <vector>

#include "onnx_import/exporter/module_parameters.h"

namespace pipeshard {

// The line of Python that exports a module with all that it has: without the exporter's optimizer, or, of the
// exporter by TorchScript, without folding and in training mode.
std::string exportLine(bool torchscript = false);

// Error(kBadModel) that lists the lost parameters, why, and what to do; but for those whose names contain a
// match of one of the regular expressions `frozen`, and of `trained` (--freeze, --train) where the file has
// something to be trained in their place.
void refuseLostParameters(const ModuleParameters& parameters, const std::vector<std::string>& frozen,
                          const std::vector<std::string>& trained = {});

}  // namespace pipeshard
