#include "runtime/kernels/reductions/loss.h"
#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/support.h"
#include "runtime/kernels/reductions/softmax.h"

namespace pipeshard::kernels {
namespace {

LossPlan planLoss(const KernelSpec& spec, size_t scores, size_t labels, size_t weights) {
  const Shape& shape = spec.inputs[scores].shape;
  if (shape.size() < 2)
    refuse(spec, "input {} has shape {}; it must be [N, C, ...]", scores, shapeToString(shape));
  LossPlan plan;
  plan.split = splitAtAxis(shape, 1);
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

std::function<void(const DataFault&)> aboutLabels(const KernelSpec& spec, const LossPlan& plan) {
  return [node = describeNode(*spec.node), plan](const DataFault& fault) {
    fail(ErrorCode::kBadModel, "{}: label {} at position {} is outside of the classes [0, {}){}", node,
         fault.value, fault.position, plan.split.size,
         plan.ignored ? fmt::format(" and not the ignored {}", *plan.ignored) : "");
  };
}

template <typename I>
void checkLabels(const LossPlan& plan, const KernelArguments& arguments,
                 const std::function<void(const DataFault&)>& throw_fault, size_t labels) {
  checkData(arguments, throw_fault, [&](DataFault* fault) {
    findOutside(arguments.queue, plan.labels(), input<I>(arguments, labels), 0, plan.split.size, plan.ignored,
                fault);
  });
}

// Is the operator ours, which says apart whether a label may be ignored?
std::optional<int64_t> ignoredLabel(const Node& node) {
  const bool ignores = node.domain == kPipeshardDomain ? node.intAttribute("has_ignore_index", 0) != 0
                                                       : node.hasAttribute("ignore_index");
  return ignores ? std::optional<int64_t>(node.intAttribute("ignore_index", 0)) : std::nullopt;
}

LossPlan planForward(const KernelSpec& spec) {
  checkArity(spec, 2, 3);
  LossPlan plan = planLoss(spec, 0, 1, 2);
  plan.ignored = ignoredLabel(*spec.node);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  checkOutputShape(spec, 0, plan.reduction == LossReduction::kNone ? spec.inputs[1].shape : Shape{});
  return plan;
}

// Calls make(T{}, I{}) for the types of scores and labels.
template <typename Make>
std::unique_ptr<Kernel> withTypes(const KernelSpec& spec, size_t scores, size_t labels, const Make& make) {
  return withType<float, double>(
      spec, spec.inputs[scores].data_type, fmt::format("input {}", scores), [&](auto element) {
        return withType<int32_t, int64_t>(spec, spec.inputs[labels].data_type,
                                          fmt::format("input {}", labels),
                                          [&](auto index) { return make(element, index); });
      });
}

// From log-probabilities; with `from_scores` they are made first, and are output 1.
std::unique_ptr<Kernel> makeLikelihood(const KernelSpec& spec, bool from_scores) {
  const LossPlan plan = planForward(spec);
  checkOutputType(spec, 1, spec.inputs[0].data_type);
  checkOutputShape(spec, 1, spec.inputs[0].shape);
  KernelTraits traits;
  traits.throw_fault = aboutLabels(spec, plan);
  if (from_scores) traits.in_place.emplace_back(0, 1);
  return withTypes(spec, 0, 1, [&](auto element, auto index) {
    using T = decltype(element);
    using I = decltype(index);
    return makeKernel(
        [plan, from_scores, throw_fault = traits.throw_fault](const KernelArguments& arguments) {
          const T* log_prob = input<T>(arguments, 0);
          if (from_scores) {
            logSoftmax<T>(arguments.queue, plan.split, log_prob, output<T>(arguments, 1));
            log_prob = output<T>(arguments, 1);
          }
          checkLabels<I>(plan, arguments, throw_fault, 1);
          negativeLogLikelihood<T, I>(arguments.queue, plan, {log_prob}, input<I>(arguments, 1),
                                      input<T>(arguments, 2), output<T>(arguments, 0));
        },
        traits);
  });
}

// From scores and two numbers of each label, which are outputs 1 and 2 of ours if somebody wants them.
std::unique_ptr<Kernel> makeCrossEntropy(const KernelSpec& spec) {
  const LossPlan plan = planForward(spec);
  for (const size_t position : {1, 2}) {
    checkOutputType(spec, position, spec.inputs[0].data_type);
    checkOutputShape(spec, position, spec.inputs[1].shape);
  }
  KernelTraits traits;
  traits.throw_fault = aboutLabels(spec, plan);
  traits.workspace_bytes = 2 * byteCount(spec.inputs[0].data_type, spec.inputs[1].shape);
  return withTypes(spec, 0, 1, [&](auto element, auto index) {
    using T = decltype(element);
    using I = decltype(index);
    return makeKernel(
        [plan, throw_fault = traits.throw_fault](const KernelArguments& arguments) {
          const T* scores = input<T>(arguments, 0);
          T* room = static_cast<T*>(arguments.workspace);
          T* most = output<T>(arguments, 1) != nullptr ? output<T>(arguments, 1) : room;
          T* sums = output<T>(arguments, 2) != nullptr ? output<T>(arguments, 2) : room + plan.labels();
          checkLabels<I>(plan, arguments, throw_fault, 1);
          scoreStatistics<T>(arguments.queue, plan.split, scores, most, sums);
          negativeLogLikelihood<T, I>(arguments.queue, plan, {scores, most, sums}, input<I>(arguments, 1),
                                      input<T>(arguments, 2), output<T>(arguments, 0));
        },
        traits);
  });
}

std::unique_ptr<Kernel> makeSoftmaxCrossEntropy(const KernelSpec& spec) {
  return hasOutput(spec, 1) ? makeLikelihood(spec, true) : makeCrossEntropy(spec);
}

std::unique_ptr<Kernel> makeLossGrad(const KernelSpec& spec) {
  checkArity(spec, 5, 6);
  LossPlan plan = planLoss(spec, 1, 4, 5);
  plan.ignored = ignoredLabel(*spec.node);
  checkInputShape(spec, 0, plan.reduction == LossReduction::kNone ? spec.inputs[4].shape : Shape{});
  for (const size_t position : {2, 3}) checkInputShape(spec, position, spec.inputs[4].shape);
  for (const size_t position : {0, 2, 3}) checkInputType(spec, position, spec.inputs[1].data_type);
  checkOutputType(spec, 0, spec.inputs[1].data_type);
  checkOutputShape(spec, 0, spec.inputs[1].shape);
  KernelTraits traits = inPlaceTraits(spec, {1});
  traits.throw_fault = aboutLabels(spec, plan);
  return withTypes(spec, 1, 4, [&](auto element, auto index) {
    using T = decltype(element);
    using I = decltype(index);
    return makeKernel(
        [plan, throw_fault = traits.throw_fault](const KernelArguments& arguments) {
          checkLabels<I>(plan, arguments, throw_fault, 4);
          const ClassScores<T> of{input<T>(arguments, 1), input<T>(arguments, 2), input<T>(arguments, 3)};
          lossGrad<T, I>(arguments.queue, plan, input<T>(arguments, 0), of, input<I>(arguments, 4),
                         input<T>(arguments, 5), output<T>(arguments, 0));
        },
        traits);
  });
}

}  // namespace

void addLossKernels(KernelRegistry& registry) {
  const std::string ours(kPipeshardDomain);
  registry.add("", "SoftmaxCrossEntropyLoss", makeSoftmaxCrossEntropy);
  registry.add("", "NegativeLogLikelihoodLoss",
               [](const KernelSpec& spec) { return makeLikelihood(spec, false); });
  registry.add(ours, "CrossEntropyLoss", makeCrossEntropy);
  registry.add(ours, "CrossEntropyLossGrad", makeLossGrad);
}

}  // namespace pipeshard::kernels
