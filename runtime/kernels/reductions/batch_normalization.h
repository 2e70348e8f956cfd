// Batch normalisation over [batch, channels, inner] and its gradients, on any device. Sums are in float64
// whatever T is, but cuDNN's.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "runtime/kernels/base/simd.h"

namespace pipeshard {
class DeviceQueue;
}

namespace pipeshard::kernels {

struct BatchNorm {
  int64_t batch = 1;
  int64_t channels = 1;
  int64_t inner = 1;
  double epsilon = 1e-5;

  PIPESHARD_INLINE int64_t count() const { return batch * inner; }  // of a channel
};

// Of a channel.
struct Moments {
  double mean = 0;
  double variance = 0;
};

// What the gradients need of a channel: moments of x, the sum of dy, and the sum of dy * (x - mean).
struct GradientSums {
  Moments moments;
  double dy = 0;
  double dot = 0;
};

// What becomes of an element of a channel.
template <typename T>
struct NormalizeTerms {
  T mean, factor, bias;
  PIPESHARD_INLINE NormalizeTerms(const BatchNorm& plan, const Moments& moments, T scale, T bias_of)
      : mean(static_cast<T>(moments.mean)),
        factor(static_cast<T>(1 / std::sqrt(moments.variance + plan.epsilon)) * scale),
        bias(bias_of) {}
  PIPESHARD_INLINE T apply(T x) const { return (x - mean) * factor + bias; }
};

template <typename T>
struct InputGradTerms {
  T dy_mean, x_mean, slope, factor;
  PIPESHARD_INLINE InputGradTerms(const BatchNorm& plan, const GradientSums& sums, T scale) {
    const auto count = static_cast<double>(plan.count());
    const double inverse = 1 / std::sqrt(sums.moments.variance + plan.epsilon);
    dy_mean = static_cast<T>(sums.dy / count);
    x_mean = static_cast<T>(sums.moments.mean);
    slope = static_cast<T>(sums.dot * inverse * inverse / count);
    factor = static_cast<T>(inverse * static_cast<double>(scale));
  }
  PIPESHARD_INLINE T apply(T dy, T x) const { return factor * (dy - dy_mean - (x - x_mean) * slope); }
};

template <typename T>
PIPESHARD_INLINE T scaleGrad(const BatchNorm& plan, const GradientSums& sums) {
  return static_cast<T>(sums.dot / std::sqrt(sums.moments.variance + plan.epsilon));
}

// The running statistic after one more batch.
template <typename T>
PIPESHARD_INLINE T runningAverage(T before, double now, double momentum) {
  return static_cast<T>(static_cast<double>(before) * momentum + now * (1 - momentum));
}

// By channel.
template <typename T>
struct BatchNormTensors {
  const T* scale;
  const T* bias;
  const T* mean;  // what was running before
  const T* variance;
  T* mean_out;  // nullptr: nobody wants them
  T* variance_out;
};

// What a device has worked out before the first step.
template <typename T>
struct PreparedBatchNorm {
  size_t workspace_bytes = 0;
  std::function<void(DeviceQueue* queue, const T* x, const BatchNormTensors<T>& channels, T* y,
                     void* workspace)>
      run;
};
template <typename T>
struct PreparedBatchNormGrad {
  size_t workspace_bytes = 0;
  std::function<void(DeviceQueue* queue, const T* dy, const T* x, const T* scale, T* dx, void* workspace)>
      run;
};

// `training`: by the batch's moments, which go into the running ones. T: float, double, as below.
template <typename T>
PreparedBatchNorm<T> prepareBatchNorm(const BatchNorm& plan, bool training, double momentum);
template <typename T>
PreparedBatchNormGrad<T> prepareBatchNormInputGrad(const BatchNorm& plan);
// Either may be nullptr.
template <typename T>
void channelsWeightGrad(DeviceQueue* queue, const BatchNorm& plan, const T* dy, const T* x, T* dscale,
                        T* dbias);

// Of a source that defines them.
#define PIPESHARD_BATCH_NORM_INSTANCES(T)                                         \
  template PreparedBatchNorm<T> prepareBatchNorm(const BatchNorm&, bool, double); \
  template PreparedBatchNormGrad<T> prepareBatchNormInputGrad(const BatchNorm&);  \
  template void channelsWeightGrad(DeviceQueue*, const BatchNorm&, const T*, const T*, T*, T*);

}  // namespace pipeshard::kernels
