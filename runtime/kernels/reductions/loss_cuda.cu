#include <limits>

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

// A block for each label.
template <typename T>
__global__ void statisticsKernel(AxisSplit split, const T* scores, T* most, T* sums) {
  __shared__ T values[kBlockThreads];
  for (int64_t i = blockIdx.x; i < split.outer * split.inner; i += gridDim.x) {
    const T* of = scores + i / split.inner * split.size * split.inner + i % split.inner;
    T largest = -std::numeric_limits<T>::infinity();
    for (int64_t c = threadIdx.x; c < split.size; c += blockDim.x) {
      const T score = of[c * split.inner];
      largest = largest < score || score != score ? score : largest;
    }
    largest = maxBlock(largest, values);
    T sum = 0;
    for (int64_t c = threadIdx.x; c < split.size; c += blockDim.x)
      sum += fastExp(of[c * split.inner] - largest);
    sum = sumBlock(sum, values);
    if (threadIdx.x == 0) {
      most[i] = largest;
      sums[i] = sum;
    }
  }
}

// One block.
template <typename T, typename I>
__global__ void lossKernel(Labels of, ClassScores<T> classes, const I* labels, const T* weights, T* loss) {
  __shared__ double values[kBlockThreads];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < of.count(); i += blockDim.x) {
    const T weight = of.weight(labels[i], weights);
    T at = 0;
    if (weight != T(0)) {
      const T score = classes.scores[of.at(i, labels[i])];
      at =
          -weight * (classes.most == nullptr ? score : (score - classes.most[i]) - std::log(classes.sums[i]));
    }
    if (of.reduction == LossReduction::kNone) loss[i] = at;
    sum += at;
  }
  sum = sumBlock(sum, values);
  const double total = of.reduction == LossReduction::kMean ? totalWeight(of, labels, weights, values) : 1;
  if (threadIdx.x == 0 && of.reduction != LossReduction::kNone) *loss = static_cast<T>(sum / total);
}

// A block for each label.
template <typename T, typename I>
__global__ void lossGradKernel(Labels of, const T* dloss, ClassScores<T> classes, const I* labels,
                               const T* weights, T* dscores) {
  __shared__ double values[kBlockThreads];
  const double total = of.reduction == LossReduction::kMean ? totalWeight(of, labels, weights, values) : 1;
  for (int64_t i = blockIdx.x; i < of.count(); i += gridDim.x) {
    const T weight = of.weight(labels[i], weights);
    const auto upstream = static_cast<double>(dloss[of.reduction == LossReduction::kNone ? i : 0]);
    const T factor = weight == T(0) ? T(0) : static_cast<T>(static_cast<double>(weight) * upstream / total);
    const T share = factor / classes.sums[i];
    for (int64_t c = threadIdx.x; c < of.split.size; c += blockDim.x) {
      const int64_t at = of.at(i, c);
      const T probability = fastExp(classes.scores[at] - classes.most[i]) * share;
      dscores[at] = factor != T(0) && c == labels[i] ? probability - factor : probability;
    }
  }
}

template <typename T>
void scoreStatistics(DeviceQueue* queue, const AxisSplit& split, const T* scores, T* most, T* sums) {
  launch<statisticsKernel<T>>(aBlockEach(split.outer * split.inner), dim3(kBlockThreads), streamOf(queue),
                              split, scores, most, sums);
}

template <typename T, typename I>
void negativeLogLikelihood(DeviceQueue* queue, const LossPlan& plan, const ClassScores<T>& of,
                           const I* labels, const T* weights, T* loss) {
  launch<lossKernel<T, I>>(dim3(1), dim3(kBlockThreads), streamOf(queue), Labels(plan), of, labels, weights,
                           loss);
}

template <typename T, typename I>
void lossGrad(DeviceQueue* queue, const LossPlan& plan, const T* dloss, const ClassScores<T>& of,
              const I* labels, const T* weights, T* dscores) {
  launch<lossGradKernel<T, I>>(aBlockEach(plan.labels()), dim3(kBlockThreads), streamOf(queue), Labels(plan),
                               dloss, of, labels, weights, dscores);
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
