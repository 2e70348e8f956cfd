// Large tensors that the programs of a plan hold themselves: weights that a model's file writes as numbers,
// not as bytes (int32_data of a TensorProto: halves, codes), so that no reference into it means them. A
// folder of programs keeps them in one file beside its kinds, whole, for all its ranks.
#pragma once

#include <string>

#include "planning/directory/program_files.h"

namespace pipeshard {

// In a folder of programs.
inline constexpr const char* kStoredConstantsFile = "weights/constants.safetensors";

// Writes every tensor of more than kMostInlineBytes that a buffer starts from into the file, equal ones once,
// under the weight's name, and makes the buffers start from there (a location relative to the folder).
// Without such tensors there is no file. Errors as writeTensorFile.
void storeConstants(ProgramsBySize& programs, const std::string& folder);

}  // namespace pipeshard
