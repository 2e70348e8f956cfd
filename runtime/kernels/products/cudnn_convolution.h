// Convolutions by cuDNN, where it can do them.
#pragma once

#include <cstddef>
#include <functional>

#include "runtime/kernels/products/convolution.h"

namespace pipeshard::kernels {

// first, second -> result as in PreparedConvolution, without the bias.
template <typename T>
using CudnnConvolution =
    std::function<void(DeviceQueue* queue, const T* first, const T* second, T* result, void* workspace)>;

// With at most so many bytes of workspace. Empty: cuDNN is not there, or cannot do it: pads that differ at
// the two ends in a way that matters, nothing to compute, more than 65535 images or 2^31 - 1 elements, no
// deterministic algorithm that fits into the workspace. T: float, double.
template <typename T>
CudnnConvolution<T> convolutionByCudnn(ConvolutionTask task, const Convolution& convolution,
                                       size_t workspace_bytes);

}  // namespace pipeshard::kernels
