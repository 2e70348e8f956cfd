// The exports of examples/, prepared for a number of rows.
#pragma once

#include <cstdint>
#include <string>

#include "onnx_import/autodiff/training.h"

namespace pipeshard::testing {

// "gpt2.onnx"; the loss is the model's first output.
ForwardGraph exampleForward(const std::string& name, int64_t rows);

}  // namespace pipeshard::testing
