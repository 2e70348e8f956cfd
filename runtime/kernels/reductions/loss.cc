#include <cmath>
#include <optional>

#include "runtime/kernels/base/columns.h"
#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/simd.h"
#include "runtime/kernels/base/vector_math.h"
#include "runtime/kernels/reductions/softmax.h"

namespace pipeshard::kernels {
namespace {

enum class LossReduction { kNone, kSum, kMean };

// Scores [N, C, d1, ...] seen as [outer, classes, inner]; labels [N, d1, ...].
struct LossPlan {
  AxisSplit split;
  LossReduction reduction = LossReduction::kMean;
  std::optional<int64_t> ignored;
  std::string node;
  int64_t labels() const { return split.outer * split.inner; }
};

LossPlan planLoss(const KernelSpec& spec, size_t scores, size_t labels, size_t weights) {
  const Shape& shape = spec.inputs[scores].shape;
  if (shape.size() < 2)
    refuse(spec, "input {} has shape {}; it must be [N, C, ...]", scores, shapeToString(shape));
  LossPlan plan;
  plan.split = splitAtAxis(shape, 1);
  plan.node = describeNode(*spec.node);
  Shape label_shape = shape;
  label_shape.erase(label_shape.begin() + 1);
  checkInputShape(spec, labels, label_shape);
  if (hasInput(spec, weights)) {
    checkInputType(spec, weights, spec.inputs[scores].data_type);
    checkInputShape(spec, weights, {plan.split.size});
  }
  const std::string reduction = spec.node->stringAttribute("reduction", "mean");
  if (reduction == "none")
    plan.reduction = LossReduction::kNone;
  else if (reduction == "sum")
    plan.reduction = LossReduction::kSum;
  else if (reduction != "mean")
    refuse(spec, "attribute reduction is '{}'; it must be 'none', 'sum' or 'mean'", reduction);
  return plan;
}

template <typename I>
void checkLabels(const LossPlan& plan, const I* labels) {
  for (int64_t i = 0; i < plan.labels(); ++i) {
    if (plan.ignored && labels[i] == *plan.ignored) continue;
    if (labels[i] < 0 || labels[i] >= plan.split.size) {
      fail(ErrorCode::kBadModel, "{}: label {} at position {} is outside of the classes [0, {}){}", plan.node,
           labels[i], i, plan.split.size,
           plan.ignored ? fmt::format(" and not the ignored {}", *plan.ignored) : "");
    }
  }
}

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

// loss from log-probabilities. One pass in label order: it touches one element per label.
template <typename T, typename I>
void negativeLogLikelihood(const LossPlan& plan, const T* log_prob, const I* labels, const T* weights,
                           T* loss) {
  checkLabels(plan, labels);
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

std::unique_ptr<Kernel> makeLoss(const KernelSpec& spec, bool from_scores) {
  checkArity(spec, 2, 3);
  LossPlan plan = planLoss(spec, 0, 1, 2);
  if (spec.node->hasAttribute("ignore_index")) plan.ignored = spec.node->intAttribute("ignore_index", 0);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  checkOutputShape(spec, 0, plan.reduction == LossReduction::kNone ? spec.inputs[1].shape : Shape{});
  checkOutputType(spec, 1, spec.inputs[0].data_type);
  checkOutputShape(spec, 1, spec.inputs[0].shape);
  KernelTraits traits;
  if (from_scores && hasOutput(spec, 1)) traits.in_place.emplace_back(0, 1);
  if (from_scores && !hasOutput(spec, 1))
    traits.workspace_bytes = byteCount(spec.inputs[0].data_type, spec.inputs[0].shape);
  return withType<float, double>(spec, spec.inputs[0].data_type, "input 0", [&](auto element) {
    using T = decltype(element);
    return withType<int32_t, int64_t>(spec, spec.inputs[1].data_type, "input 1", [&](auto index) {
      using I = decltype(index);
      return makeKernel(
          [plan, from_scores](const KernelArguments& arguments) {
            const T* log_prob = input<T>(arguments, 0);
            if (from_scores) {
              T* out = output<T>(arguments, 1) != nullptr ? output<T>(arguments, 1)
                                                          : static_cast<T*>(arguments.workspace);
              logSoftmax<T>(plan.split, log_prob, out);
              log_prob = out;
            }
            negativeLogLikelihood<T, I>(plan, log_prob, input<I>(arguments, 1), input<T>(arguments, 2),
                                        output<T>(arguments, 0));
          },
          traits);
    });
  });
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

// dScores = (softmax - one_hot(label)) * factor(label), factor = weight * dLoss (/ total weight for the
// mean).
template <typename T, typename I>
void lossGrad(const LossPlan& plan, const T* dloss, const T* log_prob, const I* labels, const T* weights,
              T* dscores) {
  checkLabels(plan, labels);
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

std::unique_ptr<Kernel> makeLossGrad(const KernelSpec& spec) {
  checkArity(spec, 3, 4);
  LossPlan plan = planLoss(spec, 1, 2, 3);
  if (spec.node->intAttribute("has_ignore_index", 0) != 0)
    plan.ignored = spec.node->intAttribute("ignore_index", 0);
  checkInputType(spec, 0, spec.inputs[1].data_type);
  checkInputShape(spec, 0, plan.reduction == LossReduction::kNone ? spec.inputs[2].shape : Shape{});
  checkOutputType(spec, 0, spec.inputs[1].data_type);
  checkOutputShape(spec, 0, spec.inputs[1].shape);
  return withType<float, double>(spec, spec.inputs[1].data_type, "input 1", [&](auto element) {
    using T = decltype(element);
    return withType<int32_t, int64_t>(spec, spec.inputs[2].data_type, "input 2", [&](auto index) {
      using I = decltype(index);
      return makeKernel(
          [plan](const KernelArguments& arguments) {
            lossGrad<T, I>(plan, input<T>(arguments, 0), input<T>(arguments, 1), input<I>(arguments, 2),
                           input<T>(arguments, 3), output<T>(arguments, 0));
          },
          inPlaceTraits(spec, {1}));
    });
  });
}

}  // namespace

void addLossKernels(KernelRegistry& registry) {
  registry.add("", "SoftmaxCrossEntropyLoss", [](const KernelSpec& spec) { return makeLoss(spec, true); });
  registry.add("", "NegativeLogLikelihoodLoss", [](const KernelSpec& spec) { return makeLoss(spec, false); });
  registry.add(std::string(kPipeshardDomain), "SoftmaxCrossEntropyLossGrad", makeLossGrad);
}

}  // namespace pipeshard::kernels
