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

// What a loss knows of each label's classes: their scores, and over them the largest and the sum of
// exp(score - largest), in the order of labels. Without these the scores are log-probabilities.
template <typename T>
struct ClassScores {
  const T* scores = nullptr;
  const T* most = nullptr;
  const T* sums = nullptr;
};

// The two numbers of each label, by blocks of scores: nothing as large as the scores is written.
template <typename T>
void scoreStatistics(DeviceQueue* queue, const AxisSplit& split, const T* scores, T* most, T* sums);
// The loss. `weights`: by class; nullptr: 1. T: float, double; I: int32_t, int64_t.
template <typename T, typename I>
void negativeLogLikelihood(DeviceQueue* queue, const LossPlan& plan, const ClassScores<T>& of,
                           const I* labels, const T* weights, T* loss);
// dScores = (softmax - one_hot(label)) * factor(label), factor = weight * dLoss (/ total weight for the
// mean). `of` has the two numbers. `dscores` may be the scores.
template <typename T, typename I>
void lossGrad(DeviceQueue* queue, const LossPlan& plan, const T* dloss, const ClassScores<T>& of,
              const I* labels, const T* weights, T* dscores);

}  // namespace pipeshard::kernels
