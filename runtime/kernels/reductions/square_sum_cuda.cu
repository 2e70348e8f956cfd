#include "runtime/kernels/base/cuda_block.h"
#include "runtime/kernels/reductions/square_sum.h"

namespace pipeshard::kernels {

// A block of threads for each block of elements.
template <typename T>
__global__ void squaresOfBlocksKernel(int64_t size, int64_t parts, const int64_t* part, const T* x,
                                      double* sums) {
  __shared__ double values[kBlockThreads];
  const SquareShare share(size, parts, *part);
  for (int64_t b = blockIdx.x; b < share.blocks; b += gridDim.x) {
    const int64_t first = b * kBlockElements;
    const int64_t last = std::min(share.count, first + kBlockElements);
    double sum = 0;
    for (int64_t i = first + threadIdx.x; i < last; i += blockDim.x) {
      const auto wide = static_cast<double>(x[share.begin + i]);
      sum += wide * wide;
    }
    sum = sumBlock(sum, values);
    if (threadIdx.x == 0) sums[b] = sum;
  }
}

// One block.
__global__ void sumOfBlocksKernel(int64_t size, int64_t parts, const int64_t* part, const double* sums,
                                  double* total) {
  __shared__ double values[kBlockThreads];
  const SquareShare share(size, parts, *part);
  double sum = 0;
  for (int64_t b = threadIdx.x; b < share.blocks; b += blockDim.x) sum += sums[b];
  sum = sumBlock(sum, values);
  if (threadIdx.x == 0) *total = sum;
}

template <typename T>
void sumSquares(DeviceQueue* queue, int64_t size, int64_t parts, const int64_t* part, const T* x,
                double* sums, double* total) {
  const cudaStream_t stream = streamOf(queue);
  const int64_t most_blocks = ((size + parts - 1) / parts + kBlockElements - 1) / kBlockElements;
  launch<squaresOfBlocksKernel<T>>(aBlockEach(most_blocks), dim3(kBlockThreads), stream, size, parts, part, x,
                                   sums);
  launch<sumOfBlocksKernel>(dim3(1), dim3(kBlockThreads), stream, size, parts, part,
                            static_cast<const double*>(sums), total);
}

template void sumSquares(DeviceQueue*, int64_t, int64_t, const int64_t*, const float*, double*, double*);
template void sumSquares(DeviceQueue*, int64_t, int64_t, const int64_t*, const double*, double*, double*);

}  // namespace pipeshard::kernels
