// Errors of NVIDIA's runtime as ours.
#pragma once

#include <cuda_runtime_api.h>

namespace pipeshard {

// Throws Error(kOutOfMemory, kInternal) naming `what` when `code` is not cudaSuccess.
void checkCuda(cudaError_t code, const char* what);

}  // namespace pipeshard
