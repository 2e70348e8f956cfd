#include <limits>

#include "runtime/kernels/base/columns.h"
#include "runtime/kernels/base/lanes.h"
#include "runtime/kernels/base/parallel.h"
#include "runtime/kernels/base/simd.h"
#include "runtime/kernels/base/vector_math.h"
#include "runtime/kernels/reductions/loss.h"

namespace pipeshard::kernels {
namespace {

// The weight of label i: 0 where it is ignored.
template <typename T, typename I>
PIPESHARD_INLINE T labelWeight(const LossPlan& plan, const I* labels, const T* weights, int64_t i) {
  if (plan.ignored && labels[i] == *plan.ignored) return T(0);
  return weights == nullptr ? T(1) : weights[labels[i]];
}

template <typename T, typename I>
double totalWeight(const LossPlan& plan, const I* labels, const T* weights) {
  double total = 0;
  for (int64_t i = 0; i < plan.labels(); ++i) total += labelWeight(plan, labels, weights, i);
  return total;
}

// Where class `label` of label i is.
PIPESHARD_INLINE int64_t placeOf(const AxisSplit& split, int64_t i, int64_t label) {
  return (i / split.inner * split.size + label) * split.inner + i % split.inner;
}

template <typename T>
struct StatisticsRow {
  PIPESHARD_INLINE static void run(const T* x, int64_t size, T* most, T* sum) {
    const T largest = maxOf<T>(size, -std::numeric_limits<T>::infinity(),
                               [x](int64_t i) PIPESHARD_LAMBDA_INLINE { return x[i]; });
    *most = largest;
    *sum =
        sumOf<T>(size, [x, largest](int64_t i) PIPESHARD_LAMBDA_INLINE { return fastExp(x[i] - largest); });
  }
};

template <typename T>
struct StatisticsColumns {
  PIPESHARD_INLINE static void run(const T* x, int64_t size, int64_t stride, int64_t width, T* most, T* sum) {
    for (int64_t c = 0; c < width; ++c) most[c] = -std::numeric_limits<T>::infinity();
    for (int64_t i = 0; i < size; ++i) {
      for (int64_t c = 0; c < width; ++c) {
        const T score = x[i * stride + c];
        most[c] = most[c] < score || score != score ? score : most[c];
      }
    }
    for (int64_t c = 0; c < width; ++c) sum[c] = 0;
    for (int64_t i = 0; i < size; ++i)
      for (int64_t c = 0; c < width; ++c) sum[c] += fastExp(x[i * stride + c] - most[c]);
  }
};

template <typename T>
struct ScaledExp {
  PIPESHARD_INLINE static void run(const T* x, T* y, int64_t count, T most, T factor) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) y[i] = fastExp(x[i] - most) * factor;
  }
};

template <typename T>
struct ScaledExpColumns {
  PIPESHARD_INLINE static void run(const T* x, T* y, int64_t size, int64_t stride, int64_t width,
                                   const T* most, const T* factors) {
    for (int64_t i = 0; i < size; ++i)
      for (int64_t c = 0; c < width; ++c)
        y[i * stride + c] = fastExp(x[i * stride + c] - most[c]) * factors[c];
  }
};

}  // namespace

template <typename T>
void scoreStatistics(DeviceQueue*, const AxisSplit& split, const T* scores, T* most, T* sums) {
  const auto& [outer, size, inner] = split;
  if (inner == 1) {
    const int64_t classes = size;
    forRows(outer, classes, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i)
        runVectorised<StatisticsRow<T>>(scores + i * classes, classes, most + i, sums + i);
    });
    return;
  }
  forColumns(split, [&](int64_t n, int64_t column, int64_t width) {
    const int64_t first = n * split.inner + column;
    runVectorised<StatisticsColumns<T>>(scores + n * split.size * split.inner + column, split.size,
                                        split.inner, width, most + first, sums + first);
  });
}

template <typename T, typename I>
void negativeLogLikelihood(DeviceQueue*, const LossPlan& plan, const ClassScores<T>& of, const I* labels,
                           const T* weights, T* loss) {
  double sum = 0;
  for (int64_t i = 0; i < plan.labels(); ++i) {
    const T weight = labelWeight(plan, labels, weights, i);
    T at = 0;
    if (weight != T(0)) {
      const T score = of.scores[placeOf(plan.split, i, labels[i])];
      at = -weight * (of.most == nullptr ? score : (score - of.most[i]) - std::log(of.sums[i]));
    }
    if (plan.reduction == LossReduction::kNone) loss[i] = at;
    sum += at;
  }
  if (plan.reduction == LossReduction::kSum) *loss = static_cast<T>(sum);
  if (plan.reduction == LossReduction::kMean)
    *loss = static_cast<T>(sum / totalWeight(plan, labels, weights));
}

template <typename T, typename I>
void lossGrad(DeviceQueue*, const LossPlan& plan, const T* dloss, const ClassScores<T>& of, const I* labels,
              const T* weights, T* dscores) {
  const double scale =
      plan.reduction == LossReduction::kMean ? 1.0 / totalWeight(plan, labels, weights) : 1.0;
  const auto factor = [&](int64_t i) {
    const T upstream = dloss[plan.reduction == LossReduction::kNone ? i : 0];
    const T weight = labelWeight(plan, labels, weights, i);
    return weight == T(0)
               ? T(0)
               : static_cast<T>(static_cast<double>(weight) * static_cast<double>(upstream) * scale);
  };
  const auto& [outer, size, inner] = plan.split;
  if (inner == 1) {
    const int64_t classes = size;
    forRows(outer, classes, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const T f = factor(i);
        runVectorised<ScaledExp<T>>(of.scores + i * classes, dscores + i * classes, classes, of.most[i],
                                    f / of.sums[i]);
        if (f != T(0)) dscores[i * classes + labels[i]] -= f;
      }
    });
    return;
  }
  forColumns(plan.split, [&](int64_t n, int64_t column, int64_t width) {
    const int64_t at = n * plan.split.size * plan.split.inner + column;
    const int64_t first = n * plan.split.inner + column;
    T factors[kColumns] = {}, shares[kColumns] = {};
    for (int64_t c = 0; c < width; ++c) {
      factors[c] = factor(first + c);
      shares[c] = factors[c] / of.sums[first + c];
    }
    runVectorised<ScaledExpColumns<T>>(of.scores + at, dscores + at, plan.split.size, plan.split.inner, width,
                                       of.most + first, static_cast<const T*>(shares));
    for (int64_t c = 0; c < width; ++c) {
      if (factors[c] != T(0)) dscores[at + c + labels[first + c] * plan.split.inner] -= factors[c];
    }
  });
}

template void scoreStatistics(DeviceQueue*, const AxisSplit&, const float*, float*, float*);
template void scoreStatistics(DeviceQueue*, const AxisSplit&, const double*, double*, double*);
template void negativeLogLikelihood(DeviceQueue*, const LossPlan&, const ClassScores<float>&, const int32_t*,
                                    const float*, float*);
template void lossGrad(DeviceQueue*, const LossPlan&, const float*, const ClassScores<float>&, const int32_t*,
                       const float*, float*);
template void negativeLogLikelihood(DeviceQueue*, const LossPlan&, const ClassScores<float>&, const int64_t*,
                                    const float*, float*);
template void lossGrad(DeviceQueue*, const LossPlan&, const float*, const ClassScores<float>&, const int64_t*,
                       const float*, float*);
template void negativeLogLikelihood(DeviceQueue*, const LossPlan&, const ClassScores<double>&, const int32_t*,
                                    const double*, double*);
template void lossGrad(DeviceQueue*, const LossPlan&, const double*, const ClassScores<double>&,
                       const int32_t*, const double*, double*);
template void negativeLogLikelihood(DeviceQueue*, const LossPlan&, const ClassScores<double>&, const int64_t*,
                                    const double*, double*);
template void lossGrad(DeviceQueue*, const LossPlan&, const double*, const ClassScores<double>&,
                       const int64_t*, const double*, double*);

}  // namespace pipeshard::kernels
