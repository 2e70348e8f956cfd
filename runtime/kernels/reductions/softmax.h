// Softmax and log-softmax over one axis of a tensor seen as [outer, size, inner], and their gradients.
#pragma once

#include "runtime/kernels/base/support.h"

namespace pipeshard::kernels {

// y may be x.
template <typename T>
void softmax(const AxisSplit& split, const T* x, T* y);
template <typename T>
void logSoftmax(const AxisSplit& split, const T* x, T* y);

// dx = y * (dy - sum(dy * y)). dx may be dy or y.
template <typename T>
void softmaxGrad(const AxisSplit& split, const T* dy, const T* y, T* dx);
// dx = dy - exp(y) * sum(dy). dx may be dy or y.
template <typename T>
void logSoftmaxGrad(const AxisSplit& split, const T* dy, const T* y, T* dx);

}  // namespace pipeshard::kernels
