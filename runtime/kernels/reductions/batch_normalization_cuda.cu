// By cuDNN where it can do it; else, and gradients of scale and bias always, a block for each channel.
#include "runtime/kernels/base/cuda_block.h"
#include "runtime/kernels/base/cudnn_use.h"
#include "runtime/kernels/reductions/batch_normalization.h"
#include "runtime/kernels/reductions/cudnn_batch_normalization.h"

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

// The running moments after a batch, whose means are in `batch`; 1 / sqrt(variance + epsilon) from `second`
// on.
template <typename T>
__global__ void runningMomentsKernel(BatchNorm plan, double momentum, int64_t second, const T* batch,
                                     BatchNormTensors<T> of) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t c = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; c < plan.channels; c += step) {
    const auto inverse = static_cast<double>(batch[second + c]);
    const double variance = 1 / (inverse * inverse) - plan.epsilon;
    if (of.mean_out != nullptr)
      of.mean_out[c] = runningAverage(of.mean[c], static_cast<double>(batch[c]), momentum);
    if (of.variance_out != nullptr)
      of.variance_out[c] = runningAverage(of.variance[c], variance > 0 ? variance : 0, momentum);
  }
}

template <typename T>
PreparedBatchNorm<T> prepareBatchNorm(const BatchNorm& plan, bool training, double momentum) {
  const int64_t room = cudnnChannels(plan.channels);
  const size_t bytes = training ? 2 * room * sizeof(T) : 0;
  if (const CudnnBatchNorm<T> by_cudnn = noted(batchNormByCudnn<T>(plan, training))) {
    return {bytes, [=](DeviceQueue* queue, const T* x, const BatchNormTensors<T>& of, T* y, void* workspace) {
              T* batch = training ? static_cast<T*>(workspace) : nullptr;
              by_cudnn(queue, x, of, y, batch);
              if (of.mean_out == nullptr && of.variance_out == nullptr) return;
              launch<runningMomentsKernel<T>>(blocksFor(plan.channels), dim3(kBlockThreads), streamOf(queue),
                                              plan, momentum, room, static_cast<const T*>(batch), of);
            }};
  }
  return {bytes, [=](DeviceQueue* queue, const T* x, const BatchNormTensors<T>& of, T* y, void*) {
            launch<normalizeChannelsKernel<T>>(aBlockEach(plan.channels), dim3(kBlockThreads),
                                               streamOf(queue), plan, training, momentum, x, of, y);
          }};
}

template <typename T>
PreparedBatchNormGrad<T> prepareBatchNormInputGrad(const BatchNorm& plan) {
  const size_t bytes = 2 * cudnnChannels(plan.channels) * sizeof(T);
  if (const CudnnBatchNormGrad<T> by_cudnn = noted(batchNormGradByCudnn<T>(plan))) {
    return {bytes,
            [by_cudnn](DeviceQueue* queue, const T* dy, const T* x, const T* scale, T* dx, void* workspace) {
              by_cudnn(queue, dy, x, scale, dx, static_cast<T*>(workspace));
            }};
  }
  return {bytes, [plan](DeviceQueue* queue, const T* dy, const T* x, const T* scale, T* dx, void*) {
            launch<channelsInputGradKernel<T>>(aBlockEach(plan.channels), dim3(kBlockThreads),
                                               streamOf(queue), plan, dy, x, scale, dx);
          }};
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
