#include <cmath>

#include "runtime/kernels/base/cuda_block.h"
#include "runtime/kernels/reductions/normalization.h"

namespace pipeshard::kernels {

// Sums are formed in double by the threads of a block, a row each. Not kCentred: the mean counts as 0.
template <typename T, typename S, bool kCentred>
__global__ void layerNormKernel(int64_t rows, int64_t size, T epsilon, const T* x, const T* scale,
                                const T* bias, T* y, S* mean_out, S* inverse_out) {
  __shared__ double values[kBlockThreads];
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* from = x + row * size;
    T mean = 0;
    if constexpr (kCentred) {
      double sum = 0;
      for (int64_t i = threadIdx.x; i < size; i += blockDim.x) sum += from[i];
      mean = static_cast<T>(sumBlock(sum, values) / static_cast<double>(size));
    }
    double squares = 0;
    for (int64_t i = threadIdx.x; i < size; i += blockDim.x) {
      const T difference = from[i] - mean;
      squares += static_cast<double>(difference * difference);
    }
    const T variance = static_cast<T>(sumBlock(squares, values) / static_cast<double>(size));
    const T inverse = T(1) / std::sqrt(variance + epsilon);
    for (int64_t i = threadIdx.x; i < size; i += blockDim.x)
      y[row * size + i] = (from[i] - mean) * inverse * scale[i] + (bias != nullptr ? bias[i] : T(0));
    if (threadIdx.x != 0) continue;
    if (mean_out != nullptr) mean_out[row] = static_cast<S>(mean);
    if (inverse_out != nullptr) inverse_out[row] = static_cast<S>(inverse);
  }
}

template <typename T, typename S, bool kCentred>
__global__ void layerNormInputGradKernel(int64_t rows, int64_t size, const T* dy, const T* x, const T* scale,
                                         const S* mean_in, const S* inverse_in, T* dx) {
  __shared__ double values[kBlockThreads];
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T mean = kCentred ? static_cast<T>(mean_in[row]) : T(0);
    const T inverse = static_cast<T>(inverse_in[row]);
    const int64_t begin = row * size;
    double sum = 0, dot = 0;
    for (int64_t i = threadIdx.x; i < size; i += blockDim.x) {
      const T g = dy[begin + i] * scale[i];
      if constexpr (kCentred) sum += g;
      dot += g * ((x[begin + i] - mean) * inverse);
    }
    T shift = 0;
    if constexpr (kCentred) shift = static_cast<T>(sumBlock(sum, values) / static_cast<double>(size));
    const T slope = static_cast<T>(sumBlock(dot, values) / static_cast<double>(size));
    for (int64_t i = threadIdx.x; i < size; i += blockDim.x) {
      const T normal = (x[begin + i] - mean) * inverse;
      dx[begin + i] = inverse * (dy[begin + i] * scale[i] - shift - normal * slope);
    }
  }
}

// A block for each column.
template <typename T, typename S, bool kCentred>
__global__ void layerNormWeightGradKernel(int64_t rows, int64_t size, const T* dy, const T* x, const S* mean,
                                          const S* inverse, T* dscale, T* dbias) {
  __shared__ double values[kBlockThreads];
  for (int64_t column = blockIdx.x; column < size; column += gridDim.x) {
    double scale_sum = 0, bias_sum = 0;
    for (int64_t row = threadIdx.x; row < rows; row += blockDim.x) {
      const T g = dy[row * size + column];
      const T m = kCentred ? static_cast<T>(mean[row]) : T(0);
      const T normal = (x[row * size + column] - m) * static_cast<T>(inverse[row]);
      scale_sum += g * normal;
      bias_sum += g;
    }
    scale_sum = sumBlock(scale_sum, values);
    bias_sum = sumBlock(bias_sum, values);
    if (threadIdx.x != 0) continue;
    if (dscale != nullptr) dscale[column] = static_cast<T>(scale_sum);
    if (dbias != nullptr) dbias[column] = static_cast<T>(bias_sum);
  }
}

// A block for each place beside the axis.
template <typename T>
__global__ void lpNormalizeKernel(AxisSplit split, int64_t p, const T* x, T* y) {
  __shared__ double values[kBlockThreads];
  for (int64_t line = blockIdx.x; line < split.outer * split.inner; line += gridDim.x) {
    const int64_t start = line / split.inner * split.size * split.inner + line % split.inner;
    double sum = 0;
    for (int64_t i = threadIdx.x; i < split.size; i += blockDim.x) {
      const auto element = static_cast<double>(x[start + i * split.inner]);
      sum += p == 1 ? std::abs(element) : element * element;
    }
    sum = sumBlock(sum, values);
    const double norm = p == 2 ? std::sqrt(sum) : sum;
    for (int64_t i = threadIdx.x; i < split.size; i += blockDim.x) {
      const int64_t at = start + i * split.inner;
      y[at] = static_cast<T>(static_cast<double>(x[at]) / norm);
    }
  }
}

template <typename T, typename S>
void layerNorm(DeviceQueue* queue, int64_t rows, int64_t size, T epsilon, const T* x, const T* scale,
               const T* bias, T* y, S* mean, S* inverse) {
  launch<layerNormKernel<T, S, true>>(aBlockEach(rows), dim3(kBlockThreads), streamOf(queue), rows, size,
                                      epsilon, x, scale, bias, y, mean, inverse);
}

template <typename T, typename S>
void layerNormInputGrad(DeviceQueue* queue, int64_t rows, int64_t size, const T* dy, const T* x,
                        const T* scale, const S* mean, const S* inverse, T* dx) {
  launch<layerNormInputGradKernel<T, S, true>>(aBlockEach(rows), dim3(kBlockThreads), streamOf(queue), rows,
                                               size, dy, x, scale, mean, inverse, dx);
}

template <typename T, typename S>
void layerNormWeightGrad(DeviceQueue* queue, int64_t rows, int64_t size, const T* dy, const T* x,
                         const S* mean, const S* inverse, T* dscale, T* dbias) {
  launch<layerNormWeightGradKernel<T, S, true>>(aBlockEach(size), dim3(kBlockThreads), streamOf(queue), rows,
                                                size, dy, x, mean, inverse, dscale, dbias);
}

template <typename T>
void rmsNorm(DeviceQueue* queue, int64_t rows, int64_t size, T epsilon, const T* x, const T* scale, T* y,
             T* inverse) {
  launch<layerNormKernel<T, T, false>>(aBlockEach(rows), dim3(kBlockThreads), streamOf(queue), rows, size,
                                       epsilon, x, scale, static_cast<const T*>(nullptr), y,
                                       static_cast<T*>(nullptr), inverse);
}

template <typename T>
void rmsNormInputGrad(DeviceQueue* queue, int64_t rows, int64_t size, const T* dy, const T* x, const T* scale,
                      const T* inverse, T* dx) {
  launch<layerNormInputGradKernel<T, T, false>>(aBlockEach(rows), dim3(kBlockThreads), streamOf(queue), rows,
                                                size, dy, x, scale, static_cast<const T*>(nullptr), inverse,
                                                dx);
}

template <typename T>
void rmsNormWeightGrad(DeviceQueue* queue, int64_t rows, int64_t size, const T* dy, const T* x,
                       const T* inverse, T* dscale) {
  launch<layerNormWeightGradKernel<T, T, false>>(aBlockEach(size), dim3(kBlockThreads), streamOf(queue), rows,
                                                 size, dy, x, static_cast<const T*>(nullptr), inverse, dscale,
                                                 static_cast<T*>(nullptr));
}

template <typename T>
void lpNormalize(DeviceQueue* queue, const AxisSplit& split, int64_t p, const T* x, T* y) {
  launch<lpNormalizeKernel<T>>(aBlockEach(split.outer * split.inner), dim3(kBlockThreads), streamOf(queue),
                               split, p, x, y);
}

template void layerNorm(DeviceQueue*, int64_t, int64_t, float, const float*, const float*, const float*,
                        float*, float*, float*);
template void layerNormInputGrad(DeviceQueue*, int64_t, int64_t, const float*, const float*, const float*,
                                 const float*, const float*, float*);
template void layerNormWeightGrad(DeviceQueue*, int64_t, int64_t, const float*, const float*, const float*,
                                  const float*, float*, float*);
template void layerNorm(DeviceQueue*, int64_t, int64_t, double, const double*, const double*, const double*,
                        double*, double*, double*);
template void layerNormInputGrad(DeviceQueue*, int64_t, int64_t, const double*, const double*, const double*,
                                 const double*, const double*, double*);
template void layerNormWeightGrad(DeviceQueue*, int64_t, int64_t, const double*, const double*, const double*,
                                  const double*, double*, double*);
template void layerNorm(DeviceQueue*, int64_t, int64_t, double, const double*, const double*, const double*,
                        double*, float*, float*);
template void layerNormInputGrad(DeviceQueue*, int64_t, int64_t, const double*, const double*, const double*,
                                 const float*, const float*, double*);
template void layerNormWeightGrad(DeviceQueue*, int64_t, int64_t, const double*, const double*, const float*,
                                  const float*, double*, double*);
template void lpNormalize(DeviceQueue*, const AxisSplit&, int64_t, const float*, float*);
template void lpNormalize(DeviceQueue*, const AxisSplit&, int64_t, const double*, double*);

PIPESHARD_RMS_NORM_INSTANCE(float)
PIPESHARD_RMS_NORM_INSTANCE(double)

}  // namespace pipeshard::kernels
