// Kernels of the stand-in's own test.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace standin_probe {

void add(cudaStream_t stream, const float* a, const float* b, float* y, int64_t count);
// y[row] = sum of x[row]; without its second barrier a block's scratch is overwritten while others read it.
void sumRows(cudaStream_t stream, const float* x, float* y, int rows, int size, bool without_barrier);
// The first half of the threads wait for the others, who never come.
void waitHalf(cudaStream_t stream);
// One element more than there are.
void oneTooMany(cudaStream_t stream, float* y, int count);
// From one element behind the begin on, as one integer of 8 bytes.
void misaligned(cudaStream_t stream, float* y);
void tooManyThreads(cudaStream_t stream, float* y);

}  // namespace standin_probe
