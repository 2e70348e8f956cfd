// Losses of scores and labels, on any device.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/kernels/base/axis_split.h"

namespace pipeshard {
class DeviceQueue;
}

namespace pipeshard::kernels {

enum class LossReduction { kNone, kSum, kMean };

// Scores [N, C, d1, ...] seen as [outer, classes, inner]; labels [N, d1, ...], in [0, classes) or `ignored`.
struct LossPlan {
  AxisSplit split;
  LossReduction reduction = LossReduction::kMean;
  std::optional<int64_t> ignored;
  int64_t labels() const { return split.outer * split.inner; }
};

// The loss from log-probabilities. `weights`: by class; nullptr: 1. T: float, double; I: int32_t, int64_t.
template <typename T, typename I>
void negativeLogLikelihood(DeviceQueue* queue, const LossPlan& plan, const T* log_prob, const I* labels,
                           const T* weights, T* loss);
// dScores = (softmax - one_hot(label)) * factor(label), factor = weight * dLoss (/ total weight for the
// mean). `dscores` may be `log_prob`.
template <typename T, typename I>
void lossGrad(DeviceQueue* queue, const LossPlan& plan, const T* dloss, const T* log_prob, const I* labels,
              const T* weights, T* dscores);

}  // namespace pipeshard::kernels
