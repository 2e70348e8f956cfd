// total[i] += part[i] on a stream: the accumulation over microbatches.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "ir/base/data_type.h"

namespace pipeshard {

// float32, float64, int32, int64; false for other types.
bool addOnDevice(cudaStream_t stream, DataType type, const void* part, void* total, size_t count);

}  // namespace pipeshard
