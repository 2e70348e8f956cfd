// Batch normalisation by cuDNN, where it can do it. Two of its habits are not ONNX's: running variances
// are divided by one less than the batch has, so running moments are formed elsewhere; gradients of scale and
// bias come with that of the input alone, so only the latter is taken from it.
#pragma once

#include <functional>

#include "runtime/kernels/reductions/batch_normalization.h"

namespace pipeshard::kernels {

// Two numbers a channel lie so far apart: both begin at a multiple of 256 bytes.
inline int64_t cudnnChannels(int64_t channels) { return (channels + 63) / 64 * 64; }

// `batch`: room for twice cudnnChannels() numbers, by channel the mean and 1 / sqrt(variance + epsilon) of
// the batch; nullptr unless training. Running moments are not written.
template <typename T>
using CudnnBatchNorm =
    std::function<void(DeviceQueue* queue, const T* x, const BatchNormTensors<T>& channels, T* y, T* batch)>;
// `unused`: as much room.
template <typename T>
using CudnnBatchNormGrad =
    std::function<void(DeviceQueue* queue, const T* dy, const T* x, const T* scale, T* dx, T* unused)>;

// Empty: cuDNN is not there, or cannot do it: more than 65535 images or 2^31 - 1 elements, epsilon below 0.
// T: float, double.
template <typename T>
CudnnBatchNorm<T> batchNormByCudnn(const BatchNorm& plan, bool training);
template <typename T>
CudnnBatchNormGrad<T> batchNormGradByCudnn(const BatchNorm& plan);

}  // namespace pipeshard::kernels
