// A thread for each line.
#include "runtime/kernels/base/cuda_launch.h"
#include "runtime/kernels/reductions/scan.h"

namespace pipeshard::kernels {

// Where a line begins in a tensor whose axis has `size` places.
__device__ inline int64_t beginOfLine(const AxisSplit& split, int64_t line, int64_t size) {
  return line / split.inner * size * split.inner + line % split.inner;
}

template <typename T>
__global__ void findExtremesKernel(AxisSplit split, int64_t lines, ExtremeRule rule, const T* x, int64_t* y) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t line = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; line < lines; line += step)
    y[line] = extremeOf(x + beginOfLine(split, line, split.size), split.size, split.inner, rule);
}

template <typename T>
__global__ void findTopKernel(AxisSplit split, int64_t lines, int64_t k, bool greatest, const T* x, T* values,
                              int64_t* places) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t line = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; line < lines; line += step) {
    const int64_t results = beginOfLine(split, line, k);
    topOf(x + beginOfLine(split, line, split.size), split.size, split.inner, k, greatest, values + results,
          places + results);
  }
}

template <typename T>
__global__ void sumAlongKernel(AxisSplit split, int64_t lines, bool exclusive, bool reverse, const T* x,
                               T* y) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t line = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; line < lines; line += step) {
    const int64_t begin = beginOfLine(split, line, split.size);
    T sum = 0;
    for (int64_t i = 0; i < split.size; ++i) {
      const int64_t at = begin + (reverse ? split.size - 1 - i : i) * split.inner;
      const T before = sum;
      sum += x[at];
      y[at] = exclusive ? before : sum;
    }
  }
}

template <typename T>
void findExtremes(DeviceQueue* queue, const AxisSplit& split, ExtremeRule rule, const T* x, int64_t* y) {
  if (const int64_t lines = split.outer * split.inner; lines > 0)
    launch<findExtremesKernel<T>>(blocksFor(lines), dim3(kBlockThreads), streamOf(queue), split, lines, rule,
                                  x, y);
}

template <typename T>
void findTop(DeviceQueue* queue, const AxisSplit& split, int64_t k, bool greatest, const T* x, T* values,
             int64_t* places) {
  if (const int64_t lines = split.outer * split.inner; lines > 0)
    launch<findTopKernel<T>>(blocksFor(lines), dim3(kBlockThreads), streamOf(queue), split, lines, k,
                             greatest, x, values, places);
}

template <typename T>
void sumAlong(DeviceQueue* queue, const AxisSplit& split, bool exclusive, bool reverse, const T* x, T* y) {
  if (const int64_t lines = split.outer * split.inner; lines > 0)
    launch<sumAlongKernel<T>>(blocksFor(lines), dim3(kBlockThreads), streamOf(queue), split, lines, exclusive,
                              reverse, x, y);
}

PIPESHARD_ALL_SCAN_INSTANCES

}  // namespace pipeshard::kernels
