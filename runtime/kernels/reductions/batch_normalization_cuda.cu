// A block for each channel.
#include "runtime/kernels/base/cuda_block.h"
#include "runtime/kernels/reductions/batch_normalization.h"

namespace pipeshard::kernels {

// Place of element i of a channel.
__device__ inline int64_t placeInChannel(const BatchNorm& plan, int64_t channel, int64_t i) {
  return (i / plan.inner * plan.channels + channel) * plan.inner + i % plan.inner;
}

// The sum of term(place) over a channel, by the threads of a block.
template <typename Term>
__device__ double sumOfChannel(const BatchNorm& plan, int64_t channel, double* values, const Term& term) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < plan.count(); i += blockDim.x)
    sum += term(placeInChannel(plan, channel, i));
  return sumBlock(sum, values);
}

template <typename T>
__device__ Moments momentsOf(const BatchNorm& plan, int64_t channel, double* values, const T* x) {
  const auto count = static_cast<double>(plan.count());
  const double mean =
      sumOfChannel(plan, channel, values, [=](int64_t at) { return static_cast<double>(x[at]); }) / count;
  const double squares = sumOfChannel(plan, channel, values, [=](int64_t at) {
    const double d = static_cast<double>(x[at]) - mean;
    return d * d;
  });
  return {mean, squares / count};
}

template <typename T>
__device__ GradientSums gradientSumsOf(const BatchNorm& plan, int64_t channel, double* values, const T* dy,
                                       const T* x) {
  GradientSums sums;
  sums.moments = momentsOf(plan, channel, values, x);
  const double mean = sums.moments.mean;
  sums.dy = sumOfChannel(plan, channel, values, [=](int64_t at) { return static_cast<double>(dy[at]); });
  sums.dot = sumOfChannel(plan, channel, values, [=](int64_t at) {
    return static_cast<double>(dy[at]) * (static_cast<double>(x[at]) - mean);
  });
  return sums;
}

template <typename T>
__global__ void normalizeChannelsKernel(BatchNorm plan, bool training, double momentum, const T* x,
                                        BatchNormTensors<T> of, T* y) {
  __shared__ double values[kBlockThreads];
  for (int64_t c = blockIdx.x; c < plan.channels; c += gridDim.x) {
    Moments moments{static_cast<double>(of.mean[c]), static_cast<double>(of.variance[c])};
    if (training) {
      moments = momentsOf(plan, c, values, x);
      if (threadIdx.x == 0 && of.mean_out != nullptr)
        of.mean_out[c] = runningAverage(of.mean[c], moments.mean, momentum);
      if (threadIdx.x == 0 && of.variance_out != nullptr)
        of.variance_out[c] = runningAverage(of.variance[c], moments.variance, momentum);
    }
    const NormalizeTerms<T> terms(plan, moments, of.scale[c], of.bias[c]);
    for (int64_t i = threadIdx.x; i < plan.count(); i += blockDim.x) {
      const int64_t at = placeInChannel(plan, c, i);
      y[at] = terms.apply(x[at]);
    }
  }
}

template <typename T>
__global__ void channelsInputGradKernel(BatchNorm plan, const T* dy, const T* x, const T* scale, T* dx) {
  __shared__ double values[kBlockThreads];
  for (int64_t c = blockIdx.x; c < plan.channels; c += gridDim.x) {
    const InputGradTerms<T> terms(plan, gradientSumsOf(plan, c, values, dy, x), scale[c]);
    for (int64_t i = threadIdx.x; i < plan.count(); i += blockDim.x) {
      const int64_t at = placeInChannel(plan, c, i);
      dx[at] = terms.apply(dy[at], x[at]);
    }
  }
}

template <typename T>
__global__ void channelsWeightGradKernel(BatchNorm plan, const T* dy, const T* x, T* dscale, T* dbias) {
  __shared__ double values[kBlockThreads];
  for (int64_t c = blockIdx.x; c < plan.channels; c += gridDim.x) {
    const GradientSums sums = gradientSumsOf(plan, c, values, dy, x);
    if (threadIdx.x != 0) continue;
    if (dscale != nullptr) dscale[c] = scaleGrad<T>(plan, sums);
    if (dbias != nullptr) dbias[c] = static_cast<T>(sums.dy);
  }
}

template <typename T>
void normalizeChannels(DeviceQueue* queue, const BatchNorm& plan, bool training, double momentum, const T* x,
                       const BatchNormTensors<T>& of, T* y) {
  launch<normalizeChannelsKernel<T>>(aBlockEach(plan.channels), dim3(kBlockThreads), streamOf(queue), plan,
                                     training, momentum, x, of, y);
}

template <typename T>
void channelsInputGrad(DeviceQueue* queue, const BatchNorm& plan, const T* dy, const T* x, const T* scale,
                       T* dx) {
  launch<channelsInputGradKernel<T>>(aBlockEach(plan.channels), dim3(kBlockThreads), streamOf(queue), plan,
                                     dy, x, scale, dx);
}

template <typename T>
void channelsWeightGrad(DeviceQueue* queue, const BatchNorm& plan, const T* dy, const T* x, T* dscale,
                        T* dbias) {
  launch<channelsWeightGradKernel<T>>(aBlockEach(plan.channels), dim3(kBlockThreads), streamOf(queue), plan,
                                      dy, x, dscale, dbias);
}

PIPESHARD_BATCH_NORM_INSTANCES(float)
PIPESHARD_BATCH_NORM_INSTANCES(double)

}  // namespace pipeshard::kernels
