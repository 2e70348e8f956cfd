// total[i] += part[i]: the accumulation over microbatches.
#pragma once

#include <cstddef>

#include "ir/base/data_type.h"

namespace pipeshard {

// float32, float64, int32, int64; Error(kBadModel) for other types. Uses OpenMP threads; the result does not
// depend on them.
void addElements(DataType type, const void* part, void* total, size_t count);

}  // namespace pipeshard
