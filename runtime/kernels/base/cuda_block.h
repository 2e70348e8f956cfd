// Reductions over the threads of a block of kBlockThreads, in a fixed order: pairwise. All threads call them,
// and all get the result. For .cu files.
#pragma once

#include "runtime/kernels/base/cuda_launch.h"

namespace pipeshard::kernels {

// One block for each of `count`; a kernel's loop takes what is more. At least one.
inline dim3 aBlockEach(int64_t count) {
  return dim3(static_cast<unsigned>(std::clamp<int64_t>(count, 1, kMostBlocks)));
}

// `values`: shared memory of kBlockThreads.
template <typename T, typename Combine>
__device__ T combineBlock(T value, T* values, const Combine& combine) {
  __syncthreads();
  values[threadIdx.x] = value;
  __syncthreads();
  for (unsigned width = kBlockThreads / 2; width > 0; width /= 2) {
    if (threadIdx.x < width) values[threadIdx.x] = combine(values[threadIdx.x], values[threadIdx.x + width]);
    __syncthreads();
  }
  return values[0];
}

template <typename T>
__device__ T sumBlock(T value, T* values) {
  return combineBlock(value, values, [](T a, T b) { return a + b; });
}

// NaN where one is.
template <typename T>
__device__ T maxBlock(T value, T* values) {
  return combineBlock(value, values, [](T a, T b) { return a < b || b != b ? b : a; });
}

}  // namespace pipeshard::kernels
