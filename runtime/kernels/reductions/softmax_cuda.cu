#include <limits>

#include "runtime/kernels/base/cuda_block.h"
#include "runtime/kernels/base/vector_math.h"
#include "runtime/kernels/reductions/softmax.h"

namespace pipeshard::kernels {

// A block for each place beside the axis, which its threads share out.
struct AxisLine {
  int64_t start = 0;
  int64_t stride = 0;
  int64_t size = 0;
  __device__ AxisLine(const AxisSplit& split, int64_t line)
      : start(line / split.inner * split.size * split.inner + line % split.inner),
        stride(split.inner),
        size(split.size) {}
  __device__ int64_t at(int64_t i) const { return start + i * stride; }
};

template <typename T, bool log>
__global__ void softmaxKernel(AxisSplit split, const T* x, T* y) {
  __shared__ T values[kBlockThreads];
  for (int64_t line = blockIdx.x; line < split.outer * split.inner; line += gridDim.x) {
    const AxisLine on(split, line);
    T most = -std::numeric_limits<T>::infinity();
    for (int64_t i = threadIdx.x; i < on.size; i += blockDim.x) {
      const T value = x[on.at(i)];
      most = most < value || value != value ? value : most;
    }
    most = maxBlock(most, values);
    T sum = 0;
    for (int64_t i = threadIdx.x; i < on.size; i += blockDim.x) sum += fastExp(x[on.at(i)] - most);
    sum = sumBlock(sum, values);
    const T scale = log ? std::log(sum) : T(1) / sum;
    for (int64_t i = threadIdx.x; i < on.size; i += blockDim.x) {
      const T shifted = x[on.at(i)] - most;
      y[on.at(i)] = log ? shifted - scale : fastExp(shifted) * scale;
    }
  }
}

template <typename T, bool log>
__global__ void softmaxGradKernel(AxisSplit split, const T* dy, const T* y, T* dx) {
  __shared__ T values[kBlockThreads];
  for (int64_t line = blockIdx.x; line < split.outer * split.inner; line += gridDim.x) {
    const AxisLine on(split, line);
    T sum = 0;
    for (int64_t i = threadIdx.x; i < on.size; i += blockDim.x) {
      const int64_t at = on.at(i);
      sum += log ? dy[at] : dy[at] * y[at];
    }
    sum = sumBlock(sum, values);
    for (int64_t i = threadIdx.x; i < on.size; i += blockDim.x) {
      const int64_t at = on.at(i);
      dx[at] = log ? dy[at] - fastExp(y[at]) * sum : y[at] * (dy[at] - sum);
    }
  }
}

inline dim3 linesOf(const AxisSplit& split) { return aBlockEach(split.outer * split.inner); }

template <typename T>
void softmax(DeviceQueue* queue, const AxisSplit& split, const T* x, T* y) {
  launch<softmaxKernel<T, false>>(linesOf(split), dim3(kBlockThreads), streamOf(queue), split, x, y);
}

template <typename T>
void logSoftmax(DeviceQueue* queue, const AxisSplit& split, const T* x, T* y) {
  launch<softmaxKernel<T, true>>(linesOf(split), dim3(kBlockThreads), streamOf(queue), split, x, y);
}

template <typename T>
void softmaxGrad(DeviceQueue* queue, const AxisSplit& split, const T* dy, const T* y, T* dx) {
  launch<softmaxGradKernel<T, false>>(linesOf(split), dim3(kBlockThreads), streamOf(queue), split, dy, y, dx);
}

template <typename T>
void logSoftmaxGrad(DeviceQueue* queue, const AxisSplit& split, const T* dy, const T* y, T* dx) {
  launch<softmaxGradKernel<T, true>>(linesOf(split), dim3(kBlockThreads), streamOf(queue), split, dy, y, dx);
}

template void softmax(DeviceQueue*, const AxisSplit&, const float*, float*);
template void softmax(DeviceQueue*, const AxisSplit&, const double*, double*);
template void logSoftmax(DeviceQueue*, const AxisSplit&, const float*, float*);
template void logSoftmax(DeviceQueue*, const AxisSplit&, const double*, double*);
template void softmaxGrad(DeviceQueue*, const AxisSplit&, const float*, const float*, float*);
template void softmaxGrad(DeviceQueue*, const AxisSplit&, const double*, const double*, double*);
template void logSoftmaxGrad(DeviceQueue*, const AxisSplit&, const float*, const float*, float*);
template void logSoftmaxGrad(DeviceQueue*, const AxisSplit&, const double*, const double*, double*);

}  // namespace pipeshard::kernels
