// Pools by cuDNN, where it can do them: none of their gradients, for it does not say which of equal elements
// is the largest, and asks for tensors that the gradient of an average has not.
#pragma once

#include <cstdint>
#include <functional>

#include "runtime/kernels/products/pooling.h"

namespace pipeshard::kernels {

enum class CudnnPool : uint8_t { kLargest, kAverage, kAverageWithPadding };

template <typename T>
using CudnnPooling = std::function<void(DeviceQueue* queue, const T* x, T* y)>;

// Empty: cuDNN is not there, or cannot do it: dilations, pads that differ at the two ends, windows that reach
// beyond them (ceil_mode), pads as wide as the window, nothing to compute, more than 65535 images or 2^31 - 1
// elements. T: float, double.
template <typename T>
CudnnPooling<T> poolByCudnn(CudnnPool kind, const Pool& pool);

}  // namespace pipeshard::kernels
