// Errors of NVIDIA's runtime as ours.
#pragma once

#include <cuda_runtime_api.h>

namespace pipeshard {

// Throws Error naming `what`, with the driver's text, when `code` is not cudaSuccess: kOutOfMemory;
// kPeerUnavailable where the GPU itself, or its link, has failed (Xid, ECC), from then on deviceIsLost();
// else kInternal.
void checkCuda(cudaError_t code, const char* what);
bool deviceIsLost();

}  // namespace pipeshard
