// The bodies of functions that live outside functions.cc. Internal to autodiff.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "onnx_import/autodiff/function_builder.h"

namespace pipeshard {

// by name and overload
using FunctionBodies = std::map<std::pair<std::string, std::string>, void (*)(FunctionBuilder&)>;

void addConvolutionBodies(FunctionBodies& bodies);  // convolutions, pools, batch normalisation
void addOptimizerBodies(FunctionBodies& bodies);

}  // namespace pipeshard
