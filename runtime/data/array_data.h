// Batches out of arrays of rows, whatever file has them.
#pragma once

#include <memory>
#include <vector>

#include "runtime/data/data.h"
#include "runtime/data/stored_array.h"

namespace pipeshard {

// As openData (data.h), of a store that is open.
std::unique_ptr<DataSource> makeArrayData(const DataDescription& description, ArrayStore& store,
                                          const std::vector<ProgramInput>& inputs,
                                          const std::vector<bool>& needed, const ShorterInputs& shorter);

}  // namespace pipeshard
