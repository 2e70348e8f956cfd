// Normalisations over rows, on any device. X is [rows, size]; mean and inverse standard deviation have `rows`
// elements.
#pragma once

#include <cstdint>

#include "runtime/kernels/base/axis_split.h"

namespace pipeshard {
class DeviceQueue;
}

namespace pipeshard::kernels {

// y = (x - mean) inverse scale + bias, inverse = 1 / sqrt(variance + epsilon). `bias`, `mean`, `inverse`:
// nullptr: none. T: elements; S: the statistics.
template <typename T, typename S>
void layerNorm(DeviceQueue* queue, int64_t rows, int64_t size, T epsilon, const T* x, const T* scale,
               const T* bias, T* y, S* mean, S* inverse);
// dx = inverse (g - mean(g) - x' mean(g x')), g = dy scale, x' = (x - mean) inverse, means over the row. `dx`
// may be `dy` or `x`.
template <typename T, typename S>
void layerNormInputGrad(DeviceQueue* queue, int64_t rows, int64_t size, const T* dy, const T* x,
                        const T* scale, const S* mean, const S* inverse, T* dx);
// dscale = sum over rows of dy x', dbias = sum over rows of dy; nullptr: not asked for.
template <typename T, typename S>
void layerNormWeightGrad(DeviceQueue* queue, int64_t rows, int64_t size, const T* dy, const T* x,
                         const S* mean, const S* inverse, T* dscale, T* dbias);
// The same three where the mean counts as 0 and there is no bias: y = x inverse scale, inverse = 1 /
// sqrt(mean(x^2) + epsilon); dx = inverse (g - x' mean(g x')), x' = x inverse.
template <typename T>
void rmsNorm(DeviceQueue* queue, int64_t rows, int64_t size, T epsilon, const T* x, const T* scale, T* y,
             T* inverse);
template <typename T>
void rmsNormInputGrad(DeviceQueue* queue, int64_t rows, int64_t size, const T* dy, const T* x, const T* scale,
                      const T* inverse, T* dx);
template <typename T>
void rmsNormWeightGrad(DeviceQueue* queue, int64_t rows, int64_t size, const T* dy, const T* x,
                       const T* inverse, T* dscale);
// x / norm along the middle axis, p 1 or 2; NaN where the norm is 0. `y` may be `x`.
template <typename T>
void lpNormalize(DeviceQueue* queue, const AxisSplit& split, int64_t p, const T* x, T* y);

// rmsNorm and its gradients, as each device's source instantiates them for a type of elements.
#define PIPESHARD_RMS_NORM_INSTANCE(T)                                                                   \
  template void rmsNorm(DeviceQueue*, int64_t, int64_t, T, const T*, const T*, T*, T*);                  \
  template void rmsNormInputGrad(DeviceQueue*, int64_t, int64_t, const T*, const T*, const T*, const T*, \
                                 T*);                                                                    \
  template void rmsNormWeightGrad(DeviceQueue*, int64_t, int64_t, const T*, const T*, const T*, T*);

}  // namespace pipeshard::kernels
