// Files and folders that hold an array per input, under the input's name.
#pragma once

#include <memory>
#include <string>

#include "runtime/data/stored_array.h"

namespace pipeshard {

// A folder with a file NAME.npy per input: read by rows. Error(kConfiguration) for an array in Fortran order.
std::unique_ptr<ArrayStore> openNpyFolder(const std::string& path);

// A safetensors file: read by rows.
std::unique_ptr<ArrayStore> openSafetensorsArrays(const std::string& path);

}  // namespace pipeshard
