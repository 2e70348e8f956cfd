// Batch normalisation: checks and plan; batch_normalization.h has what computes it.
#include "runtime/kernels/reductions/batch_normalization.h"

#include <utility>

#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/support.h"

namespace pipeshard::kernels {
namespace {

BatchNorm planBatchNorm(const KernelSpec& spec, const Shape& x) {
  if (x.empty()) refuse(spec, "X is a scalar; it needs a batch axis");
  BatchNorm plan;
  plan.batch = x[0];
  plan.channels = x.size() > 1 ? x[1] : 1;
  for (size_t a = 2; a < x.size(); ++a) plan.inner *= x[a];
  plan.epsilon = static_cast<double>(spec.node->floatAttribute("epsilon", 1e-5f));
  if (elementCount(x) == 0) refuse(spec, "X has shape {} without elements", shapeToString(x));
  return plan;
}

std::unique_ptr<Kernel> batchNormalization(const KernelSpec& spec) {
  checkArity(spec, 5, 5);
  if (spec.node->opset_version > 0 && spec.node->opset_version < 14)
    refuse(spec, "opset {} means something else by its outputs; export the model with opset 14 or later",
           spec.node->opset_version);
  const BatchNorm plan = planBatchNorm(spec, spec.inputs[0].shape);
  const DataType type = spec.inputs[0].data_type;
  const bool training = spec.node->intAttribute("training_mode", 0) != 0;
  for (size_t i = 1; i < 5; ++i) {
    checkInputType(spec, i, type);
    checkInputShape(spec, i, {plan.channels});
  }
  checkOutputShape(spec, 0, spec.inputs[0].shape);
  checkOutputType(spec, 0, type);
  for (size_t o : {1, 2}) {
    if (hasOutput(spec, o) && !training) refuse(spec, "running statistics are outputs in training mode only");
    checkOutputType(spec, o, type);
    checkOutputShape(spec, o, {plan.channels});
  }
  const auto momentum = static_cast<double>(spec.node->floatAttribute("momentum", 0.9f));
  return withType<float, double>(spec, type, "X", [&](auto zero) {
    using T = decltype(zero);
    PreparedBatchNorm<T> prepared = prepareBatchNorm<T>(plan, training, momentum);
    return makeKernel(
        [run = std::move(prepared.run)](const KernelArguments& a) {
          const BatchNormTensors<T> tensors = {input<T>(a, 1), input<T>(a, 2),  input<T>(a, 3),
                                               input<T>(a, 4), output<T>(a, 1), output<T>(a, 2)};
          run(a.queue, input<T>(a, 0), tensors, output<T>(a, 0), a.workspace);
        },
        {.in_place = {}, .workspace_bytes = prepared.workspace_bytes});
  });
}

// dY, X, Scale -> dX; dY, X -> dScale, dBias
BatchNorm planGradient(const KernelSpec& spec) {
  const BatchNorm plan = planBatchNorm(spec, spec.inputs[1].shape);
  checkInputShape(spec, 0, spec.inputs[1].shape);
  checkInputType(spec, 1, spec.inputs[0].data_type);
  return plan;
}

std::unique_ptr<Kernel> inputGrad(const KernelSpec& spec) {
  checkArity(spec, 3, 3);
  const BatchNorm plan = planGradient(spec);
  const DataType type = spec.inputs[0].data_type;
  checkInputType(spec, 2, type);
  checkInputShape(spec, 2, {plan.channels});
  checkOutputType(spec, 0, type);
  checkOutputShape(spec, 0, spec.inputs[1].shape);
  return withType<float, double>(spec, type, "dY", [&](auto zero) {
    using T = decltype(zero);
    PreparedBatchNormGrad<T> prepared = prepareBatchNormInputGrad<T>(plan);
    return makeKernel(
        [run = std::move(prepared.run)](const KernelArguments& a) {
          run(a.queue, input<T>(a, 0), input<T>(a, 1), input<T>(a, 2), output<T>(a, 0), a.workspace);
        },
        {.in_place = {}, .workspace_bytes = prepared.workspace_bytes});
  });
}

// The gradient of the bias alone may be wanted.
std::unique_ptr<Kernel> weightGrad(const KernelSpec& spec) {
  checkInputs(spec, 2, 2);
  const BatchNorm plan = planGradient(spec);
  for (size_t o : {0, 1}) {
    checkOutputType(spec, o, spec.inputs[0].data_type);
    checkOutputShape(spec, o, {plan.channels});
  }
  return withType<float, double>(spec, spec.inputs[0].data_type, "dY", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel([plan](const KernelArguments& a) {
      channelsWeightGrad(a.queue, plan, input<T>(a, 0), input<T>(a, 1), output<T>(a, 0), output<T>(a, 1));
    });
  });
}

}  // namespace

void addBatchNormalizationKernels(KernelRegistry& registry) {
  const std::string ours(kPipeshardDomain);
  registry.add("", "BatchNormalization", batchNormalization);
  registry.add(ours, "BatchNormalizationInputGrad", inputGrad);
  registry.add(ours, "BatchNormalizationWeightGrad", weightGrad);
}

}  // namespace pipeshard::kernels
