// Softmax and log-softmax over one axis of a tensor seen as [outer, size, inner], and their gradients, on any
// device.
#pragma once

#include "runtime/kernels/base/axis_split.h"

namespace pipeshard {
class DeviceQueue;
}

namespace pipeshard::kernels {

// y may be x.
template <typename T>
void softmax(DeviceQueue* queue, const AxisSplit& split, const T* x, T* y);
template <typename T>
void logSoftmax(DeviceQueue* queue, const AxisSplit& split, const T* x, T* y);

// dx = y * (dy - sum(dy * y)). dx may be dy or y.
template <typename T>
void softmaxGrad(DeviceQueue* queue, const AxisSplit& split, const T* dy, const T* y, T* dx);
// dx = dy - exp(y) * sum(dy). dx may be dy or y.
template <typename T>
void logSoftmaxGrad(DeviceQueue* queue, const AxisSplit& split, const T* dy, const T* y, T* dx);

}  // namespace pipeshard::kernels
