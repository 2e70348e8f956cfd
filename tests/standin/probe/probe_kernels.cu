#include "tests/standin/probe/probe_kernels.h"

#include "runtime/kernels/base/cuda_launch.h"

namespace standin_probe {
namespace {

using pipeshard::kernels::launch;

constexpr unsigned kThreads = 64;

}  // namespace

__global__ void addKernel(const float* a, const float* b, float* y, int64_t count) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x)
    y[i] = a[i] + b[i];
}

template <bool WithoutBarrier>
__global__ void sumRowsKernel(const float* x, float* y, int size) {
  __shared__ float scratch[kThreads / 32];
  for (int round = 0; round < 2; ++round) {  // the second one finds the scratch of the first
    float sum = 0;
    for (int i = threadIdx.x; i < size; i += blockDim.x) sum += x[int64_t{blockIdx.x} * size + i];
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = sum;
    __syncthreads();
    float total = 0;
    for (unsigned w = 0; w < blockDim.x / 32; ++w) total += scratch[w];
    if (!WithoutBarrier) __syncthreads();
    if (threadIdx.x == 0) y[blockIdx.x] = total;
  }
}

__global__ void waitHalfKernel() {
  if (threadIdx.x < blockDim.x / 2) __syncthreads();
}

__global__ void oneTooManyKernel(float* y, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i <= count) y[i] = 1;
}

__global__ void misalignedKernel(float* y) { *reinterpret_cast<int64_t*>(y + 1) = 1; }

void add(cudaStream_t stream, const float* a, const float* b, float* y, int64_t count) {
  launch<addKernel>(dim3(4), dim3(kThreads), stream, a, b, y, count);
}
void sumRows(cudaStream_t stream, const float* x, float* y, int rows, int size, bool without_barrier) {
  if (without_barrier)
    launch<sumRowsKernel<true>>(dim3(rows), dim3(kThreads), stream, x, y, size);
  else
    launch<sumRowsKernel<false>>(dim3(rows), dim3(kThreads), stream, x, y, size);
}
void waitHalf(cudaStream_t stream) { launch<waitHalfKernel>(dim3(1), dim3(kThreads), stream); }
void oneTooMany(cudaStream_t stream, float* y, int count) {
  launch<oneTooManyKernel>(dim3((count + kThreads) / kThreads), dim3(kThreads), stream, y, count);
}
void misaligned(cudaStream_t stream, float* y) { launch<misalignedKernel>(dim3(1), dim3(1), stream, y); }
void tooManyThreads(cudaStream_t stream, float* y) {
  launch<oneTooManyKernel>(dim3(1), dim3(2048), stream, y, 0);
}

}  // namespace standin_probe
