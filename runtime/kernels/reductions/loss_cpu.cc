#include "runtime/kernels/base/columns.h"
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

template <typename T>
struct ScaledExp {
  PIPESHARD_INLINE static void run(const T* x, T* y, int64_t count, T factor) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) y[i] = fastExp(x[i]) * factor;
  }
};

template <typename T>
struct ScaledExpColumns {
  PIPESHARD_INLINE static void run(const T* x, T* y, int64_t size, int64_t stride, int64_t width,
                                   const T* factors) {
    for (int64_t i = 0; i < size; ++i)
      for (int64_t c = 0; c < width; ++c) y[i * stride + c] = fastExp(x[i * stride + c]) * factors[c];
  }
};

}  // namespace

template <typename T, typename I>
void negativeLogLikelihood(DeviceQueue*, const LossPlan& plan, const T* log_prob, const I* labels,
                           const T* weights, T* loss) {
  double sum = 0;
  for (int64_t i = 0; i < plan.labels(); ++i) {
    const T weight = labelWeight(plan, labels, weights, i);
    const int64_t label = plan.ignored && labels[i] == *plan.ignored ? 0 : labels[i];
    const T at =
        weight == T(0)
            ? T(0)
            : -weight * log_prob[(i / plan.split.inner * plan.split.size + label) * plan.split.inner +
                                 i % plan.split.inner];
    if (plan.reduction == LossReduction::kNone) loss[i] = at;
    sum += at;
  }
  if (plan.reduction == LossReduction::kSum) *loss = static_cast<T>(sum);
  if (plan.reduction == LossReduction::kMean)
    *loss = static_cast<T>(sum / totalWeight(plan, labels, weights));
}

template <typename T, typename I>
void lossGrad(DeviceQueue*, const LossPlan& plan, const T* dloss, const T* log_prob, const I* labels,
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
        runVectorised<ScaledExp<T>>(log_prob + i * classes, dscores + i * classes, classes, f);
        if (f != T(0)) dscores[i * classes + labels[i]] -= f;
      }
    });
    return;
  }
  forColumns(plan.split, [&](int64_t n, int64_t column, int64_t width) {
    const int64_t at = n * plan.split.size * plan.split.inner + column;
    const int64_t first = n * plan.split.inner + column;
    T factors[kColumns] = {};
    for (int64_t c = 0; c < width; ++c) factors[c] = factor(first + c);
    runVectorised<ScaledExpColumns<T>>(log_prob + at, dscores + at, plan.split.size, plan.split.inner, width,
                                       static_cast<const T*>(factors));
    for (int64_t c = 0; c < width; ++c) {
      if (factors[c] != T(0)) dscores[at + c + labels[first + c] * plan.split.inner] -= factors[c];
    }
  });
}

template void negativeLogLikelihood(DeviceQueue*, const LossPlan&, const float*, const int32_t*, const float*,
                                    float*);
template void lossGrad(DeviceQueue*, const LossPlan&, const float*, const float*, const int32_t*,
                       const float*, float*);
template void negativeLogLikelihood(DeviceQueue*, const LossPlan&, const float*, const int64_t*, const float*,
                                    float*);
template void lossGrad(DeviceQueue*, const LossPlan&, const float*, const float*, const int64_t*,
                       const float*, float*);
template void negativeLogLikelihood(DeviceQueue*, const LossPlan&, const double*, const int32_t*,
                                    const double*, double*);
template void lossGrad(DeviceQueue*, const LossPlan&, const double*, const double*, const int32_t*,
                       const double*, double*);
template void negativeLogLikelihood(DeviceQueue*, const LossPlan&, const double*, const int64_t*,
                                    const double*, double*);
template void lossGrad(DeviceQueue*, const LossPlan&, const double*, const double*, const int64_t*,
                       const double*, double*);

}  // namespace pipeshard::kernels
