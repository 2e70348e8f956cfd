#include "runtime/kernels/base/cuda_block.h"
#include "runtime/kernels/base/vector_math.h"
#include "runtime/kernels/reductions/loss.h"

namespace pipeshard::kernels {

struct Labels {
  AxisSplit split;
  LossReduction reduction;
  bool has_ignored;
  int64_t ignored;
  explicit Labels(const LossPlan& plan)
      : split(plan.split),
        reduction(plan.reduction),
        has_ignored(plan.ignored.has_value()),
        ignored(plan.ignored.value_or(0)) {}

  __device__ int64_t count() const { return split.outer * split.inner; }
  // A label that is outside has been recorded, and counts as ignored.
  __device__ bool counts(int64_t label) const {
    return !(has_ignored && label == ignored) && label >= 0 && label < split.size;
  }
  template <typename T>
  __device__ T weight(int64_t label, const T* weights) const {
    if (!counts(label)) return T(0);
    return weights == nullptr ? T(1) : weights[label];
  }
  // Of label i's score for a class.
  __device__ int64_t at(int64_t i, int64_t label) const {
    return (i / split.inner * split.size + label) * split.inner + i % split.inner;
  }
};

// Of all labels, by the threads of a block.
template <typename T, typename I>
__device__ double totalWeight(const Labels& of, const I* labels, const T* weights, double* values) {
  double total = 0;
  for (int64_t i = threadIdx.x; i < of.count(); i += blockDim.x) total += of.weight(labels[i], weights);
  return sumBlock(total, values);
}

// One block.
template <typename T, typename I>
__global__ void lossKernel(Labels of, const T* log_prob, const I* labels, const T* weights, T* loss) {
  __shared__ double values[kBlockThreads];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < of.count(); i += blockDim.x) {
    const T weight = of.weight(labels[i], weights);
    const T at = weight == T(0) ? T(0) : -weight * log_prob[of.at(i, labels[i])];
    if (of.reduction == LossReduction::kNone) loss[i] = at;
    sum += at;
  }
  sum = sumBlock(sum, values);
  const double total = of.reduction == LossReduction::kMean ? totalWeight(of, labels, weights, values) : 1;
  if (threadIdx.x == 0 && of.reduction != LossReduction::kNone) *loss = static_cast<T>(sum / total);
}

// A block for each label.
template <typename T, typename I>
__global__ void lossGradKernel(Labels of, const T* dloss, const T* log_prob, const I* labels,
                               const T* weights, T* dscores) {
  __shared__ double values[kBlockThreads];
  const double total = of.reduction == LossReduction::kMean ? totalWeight(of, labels, weights, values) : 1;
  for (int64_t i = blockIdx.x; i < of.count(); i += gridDim.x) {
    const T weight = of.weight(labels[i], weights);
    const auto upstream = static_cast<double>(dloss[of.reduction == LossReduction::kNone ? i : 0]);
    const T factor = weight == T(0) ? T(0) : static_cast<T>(static_cast<double>(weight) * upstream / total);
    for (int64_t c = threadIdx.x; c < of.split.size; c += blockDim.x) {
      const int64_t at = of.at(i, c);
      const T probability = fastExp(log_prob[at]) * factor;
      dscores[at] = factor != T(0) && c == labels[i] ? probability - factor : probability;
    }
  }
}

template <typename T, typename I>
void negativeLogLikelihood(DeviceQueue* queue, const LossPlan& plan, const T* log_prob, const I* labels,
                           const T* weights, T* loss) {
  launch<lossKernel<T, I>>(dim3(1), dim3(kBlockThreads), streamOf(queue), Labels(plan), log_prob, labels,
                           weights, loss);
}

template <typename T, typename I>
void lossGrad(DeviceQueue* queue, const LossPlan& plan, const T* dloss, const T* log_prob, const I* labels,
              const T* weights, T* dscores) {
  launch<lossGradKernel<T, I>>(aBlockEach(plan.labels()), dim3(kBlockThreads), streamOf(queue), Labels(plan),
                               dloss, log_prob, labels, weights, dscores);
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
