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

std::unique_ptr<Kernel> makeLoss(const KernelSpec& spec, bool from_scores) {
  checkArity(spec, 2, 3);
  LossPlan plan = planLoss(spec, 0, 1, 2);
  if (spec.node->hasAttribute("ignore_index")) plan.ignored = spec.node->intAttribute("ignore_index", 0);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  checkOutputShape(spec, 0, plan.reduction == LossReduction::kNone ? spec.inputs[1].shape : Shape{});
  checkOutputType(spec, 1, spec.inputs[0].data_type);
  checkOutputShape(spec, 1, spec.inputs[0].shape);
  KernelTraits traits;
  traits.throw_fault = aboutLabels(spec, plan);
  if (from_scores && hasOutput(spec, 1)) traits.in_place.emplace_back(0, 1);
  if (from_scores && !hasOutput(spec, 1))
    traits.workspace_bytes = byteCount(spec.inputs[0].data_type, spec.inputs[0].shape);
  return withType<float, double>(spec, spec.inputs[0].data_type, "input 0", [&](auto element) {
    using T = decltype(element);
    return withType<int32_t, int64_t>(spec, spec.inputs[1].data_type, "input 1", [&](auto index) {
      using I = decltype(index);
      return makeKernel(
          [plan, from_scores, throw_fault = traits.throw_fault](const KernelArguments& arguments) {
            const T* log_prob = input<T>(arguments, 0);
            if (from_scores) {
              T* out = output<T>(arguments, 1) != nullptr ? output<T>(arguments, 1)
                                                          : static_cast<T*>(arguments.workspace);
              logSoftmax<T>(arguments.queue, plan.split, log_prob, out);
              log_prob = out;
            }
            checkLabels<I>(plan, arguments, throw_fault, 1);
            negativeLogLikelihood<T, I>(arguments.queue, plan, log_prob, input<I>(arguments, 1),
                                        input<T>(arguments, 2), output<T>(arguments, 0));
          },
          traits);
    });
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
  KernelTraits traits = inPlaceTraits(spec, {1});
  traits.throw_fault = aboutLabels(spec, plan);
  return withType<float, double>(spec, spec.inputs[1].data_type, "input 1", [&](auto element) {
    using T = decltype(element);
    return withType<int32_t, int64_t>(spec, spec.inputs[2].data_type, "input 2", [&](auto index) {
      using I = decltype(index);
      return makeKernel(
          [plan, throw_fault = traits.throw_fault](const KernelArguments& arguments) {
            checkLabels<I>(plan, arguments, throw_fault, 2);
            lossGrad<T, I>(arguments.queue, plan, input<T>(arguments, 0), input<T>(arguments, 1),
                           input<I>(arguments, 2), input<T>(arguments, 3), output<T>(arguments, 0));
          },
          traits);
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
