// The bodies of functions that live outside functions.cc. Internal to autodiff.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "onnx_import/autodiff/function_builder.h"

namespace pipeshard {

using FunctionBodies =
    std::map<std::pair<std::string, std::string>, void (*)(FunctionBuilder&)>;  // by name and overload

void addConvolutionBodies(FunctionBodies& bodies);  // convolutions, pools, batch normalisation

}  // namespace pipeshard
