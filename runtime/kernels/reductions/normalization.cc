#include "runtime/kernels/reductions/normalization.h"
#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/support.h"

namespace pipeshard::kernels {
namespace {

// X seen as [rows, size]; the statistics have `rows` elements.
struct NormPlan {
  int64_t rows = 1;
  int64_t size = 1;
  Shape statistics;
};

NormPlan planNorm(const KernelSpec& spec, size_t x_input) {
  const Shape& shape = spec.inputs[x_input].shape;
  const size_t axis = axisAttribute(spec, -1, x_input);
  NormPlan plan;
  for (size_t i = 0; i < shape.size(); ++i) {
    (i < axis ? plan.rows : plan.size) *= shape[i];
    plan.statistics.push_back(i < axis ? shape[i] : 1);
  }
  return plan;
}

void checkElements(const KernelSpec& spec, size_t input, int64_t expected, std::string_view what) {
  if (!hasInput(spec, input) || elementCount(spec.inputs[input].shape) == expected) return;
  refuse(spec, "{} (input {}) has shape {}; the kernel needs {} elements, one per normalised position", what,
         input, shapeToString(spec.inputs[input].shape), expected);
}

// Calls body(T{}, S{}) for the elements' type and that of the statistics (float32 or the elements' type).
template <typename Body>
std::unique_ptr<Kernel> withNormTypes(const KernelSpec& spec, DataType elements, DataType statistics,
                                      const Body& body) {
  return withType<float, double>(spec, elements, "input 0", [&](auto zero) {
    using T = decltype(zero);
    if (statistics == DataType::kFloat32) return body(T{}, float{});
    if (statistics != elements)
      refuse(spec, "Mean has type {}; it must be float32 or {}", dataTypeName(statistics),
             dataTypeName(elements));
    return body(T{}, T{});
  });
}

template <typename T, typename S>
std::unique_ptr<Kernel> makeLayerNorm(const KernelSpec& spec, const NormPlan& plan) {
  const T epsilon = static_cast<T>(spec.node->floatAttribute("epsilon", 1e-5f));
  return makeKernel([plan, epsilon](const KernelArguments& arguments) {
    layerNorm<T, S>(arguments.queue, plan.rows, plan.size, epsilon, input<T>(arguments, 0),
                    input<T>(arguments, 1), input<T>(arguments, 2), output<T>(arguments, 0),
                    output<S>(arguments, 1), output<S>(arguments, 2));
  });
}

std::unique_ptr<Kernel> layerNormalization(const KernelSpec& spec) {
  checkArity(spec, 2, 3);
  const NormPlan plan = planNorm(spec, 0);
  const DataType type = spec.inputs[0].data_type;
  for (size_t i : {1, 2}) {
    checkInputType(spec, i, type);
    checkElements(spec, i, plan.size, i == 1 ? "Scale" : "B");
    checkOutputShape(spec, i, plan.statistics);
  }
  checkOutputType(spec, 0, type);
  checkOutputShape(spec, 0, spec.inputs[0].shape);
  DataType statistics = type;
  for (size_t i : {2, 1}) {
    if (hasOutput(spec, i)) statistics = spec.outputs[i].data_type;
  }
  checkOutputType(spec, 2, statistics);
  return withNormTypes(spec, type, statistics,
                       [&](auto t, auto s) { return makeLayerNorm<decltype(t), decltype(s)>(spec, plan); });
}

template <typename T, typename S>
std::unique_ptr<Kernel> makeInputGrad(const NormPlan& plan) {
  return makeKernel(
      [plan](const KernelArguments& arguments) {
        layerNormInputGrad<T, S>(arguments.queue, plan.rows, plan.size, input<T>(arguments, 0),
                                 input<T>(arguments, 1), input<T>(arguments, 2), input<S>(arguments, 3),
                                 input<S>(arguments, 4), output<T>(arguments, 0));
      },
      {.in_place = {{0, 0}, {1, 0}}, .workspace_bytes = 0});
}

std::unique_ptr<Kernel> makeLayerNormInputGrad(const KernelSpec& spec) {
  checkArity(spec, 5, 5);
  const NormPlan plan = planNorm(spec, 1);
  const DataType type = spec.inputs[0].data_type;
  checkInputType(spec, 1, type);
  checkInputType(spec, 2, type);
  checkInputShape(spec, 0, spec.inputs[1].shape);
  checkElements(spec, 2, plan.size, "Scale");
  checkInputShape(spec, 3, plan.statistics);
  checkInputShape(spec, 4, plan.statistics);
  checkInputType(spec, 4, spec.inputs[3].data_type);
  checkOutputType(spec, 0, type);
  checkOutputShape(spec, 0, spec.inputs[1].shape);
  return withNormTypes(spec, type, spec.inputs[3].data_type,
                       [&](auto t, auto s) { return makeInputGrad<decltype(t), decltype(s)>(plan); });
}

template <typename T, typename S>
std::unique_ptr<Kernel> makeWeightGrad(const NormPlan& plan) {
  return makeKernel([plan](const KernelArguments& arguments) {
    layerNormWeightGrad<T, S>(arguments.queue, plan.rows, plan.size, input<T>(arguments, 0),
                              input<T>(arguments, 1), input<S>(arguments, 2), input<S>(arguments, 3),
                              output<T>(arguments, 0), output<T>(arguments, 1));
  });
}

// The gradient of the bias alone may be wanted.
std::unique_ptr<Kernel> makeLayerNormWeightGrad(const KernelSpec& spec) {
  checkInputs(spec, 4, 4);
  const NormPlan plan = planNorm(spec, 1);
  const Shape& x = spec.inputs[1].shape;
  const DataType type = spec.inputs[0].data_type;
  checkInputType(spec, 1, type);
  checkInputShape(spec, 0, x);
  checkInputShape(spec, 2, plan.statistics);
  checkInputShape(spec, 3, plan.statistics);
  checkInputType(spec, 3, spec.inputs[2].data_type);
  const Shape weights(x.begin() + axisAttribute(spec, -1, 1), x.end());
  for (size_t i : {0, 1}) {
    checkOutputType(spec, i, type);
    checkOutputShape(spec, i, weights);
  }
  return withNormTypes(spec, type, spec.inputs[2].data_type,
                       [&](auto t, auto s) { return makeWeightGrad<decltype(t), decltype(s)>(plan); });
}

// X, Scale -> Y, InvRms (optional), over the last axis.
std::unique_ptr<Kernel> rmsNormalization(const KernelSpec& spec) {
  checkArity(spec, 2, 2);
  const NormPlan plan = planNorm(spec, 0);
  const DataType type = spec.inputs[0].data_type;
  checkInputType(spec, 1, type);
  checkElements(spec, 1, plan.size, "Scale");
  checkOutputType(spec, 0, type);
  checkOutputShape(spec, 0, spec.inputs[0].shape);
  checkOutputType(spec, 1, type);
  checkOutputShape(spec, 1, plan.statistics);
  return withType<float, double>(spec, type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    const T epsilon = static_cast<T>(spec.node->floatAttribute("epsilon", 1e-5f));
    return makeKernel([plan, epsilon](const KernelArguments& arguments) {
      rmsNorm<T>(arguments.queue, plan.rows, plan.size, epsilon, input<T>(arguments, 0),
                 input<T>(arguments, 1), output<T>(arguments, 0), output<T>(arguments, 1));
    });
  });
}

// dY, X, Scale, InvRms -> dX
std::unique_ptr<Kernel> rmsNormalizationInputGrad(const KernelSpec& spec) {
  checkArity(spec, 4, 4);
  const NormPlan plan = planNorm(spec, 1);
  const DataType type = spec.inputs[0].data_type;
  for (size_t i : {1, 2, 3}) checkInputType(spec, i, type);
  checkInputShape(spec, 0, spec.inputs[1].shape);
  checkElements(spec, 2, plan.size, "Scale");
  checkInputShape(spec, 3, plan.statistics);
  checkOutputType(spec, 0, type);
  checkOutputShape(spec, 0, spec.inputs[1].shape);
  return withType<float, double>(spec, type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel(
        [plan](const KernelArguments& arguments) {
          rmsNormInputGrad<T>(arguments.queue, plan.rows, plan.size, input<T>(arguments, 0),
                              input<T>(arguments, 1), input<T>(arguments, 2), input<T>(arguments, 3),
                              output<T>(arguments, 0));
        },
        {.in_place = {{0, 0}, {1, 0}}, .workspace_bytes = 0});
  });
}

// dY, X, InvRms -> dScale
std::unique_ptr<Kernel> rmsNormalizationWeightGrad(const KernelSpec& spec) {
  checkArity(spec, 3, 3);
  const NormPlan plan = planNorm(spec, 1);
  const DataType type = spec.inputs[0].data_type;
  for (size_t i : {1, 2}) checkInputType(spec, i, type);
  checkInputShape(spec, 0, spec.inputs[1].shape);
  checkInputShape(spec, 2, plan.statistics);
  checkOutputType(spec, 0, type);
  checkOutputShape(spec, 0, {plan.size});
  return withType<float, double>(spec, type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel([plan](const KernelArguments& arguments) {
      rmsNormWeightGrad<T>(arguments.queue, plan.rows, plan.size, input<T>(arguments, 0),
                           input<T>(arguments, 1), input<T>(arguments, 2), output<T>(arguments, 0));
    });
  });
}

std::unique_ptr<Kernel> lpNormalization(const KernelSpec& spec) {
  checkArity(spec, 1, 1);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  checkOutputShape(spec, 0, spec.inputs[0].shape);
  const int64_t p = spec.node->intAttribute("p", 2);
  if (p != 1 && p != 2) refuse(spec, "attribute p is {}; ONNX knows 1 and 2", p);
  const AxisSplit split = splitAtAxis(spec.inputs[0].shape, axisAttribute(spec, -1));
  return withType<float, double>(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel(
        [=](const KernelArguments& arguments) {
          lpNormalize<T>(arguments.queue, split, p, input<T>(arguments, 0), output<T>(arguments, 0));
        },
        inPlaceTraits(spec, {0}));
  });
}

}  // namespace

void addNormalizationKernels(KernelRegistry& registry) {
  const std::string ours(kPipeshardDomain);
  registry.add("", "LayerNormalization", layerNormalization);
  registry.add("", "LpNormalization", lpNormalization);
  registry.add(ours, "RMSNormalization", rmsNormalization);
  registry.add(ours, "RMSNormalizationInputGrad", rmsNormalizationInputGrad);
  registry.add(ours, "RMSNormalizationWeightGrad", rmsNormalizationWeightGrad);
  registry.add(ours, "LayerNormalizationInputGrad", makeLayerNormInputGrad);
  registry.add(ours, "LayerNormalizationWeightGrad", makeLayerNormWeightGrad);
}

}  // namespace pipeshard::kernels
