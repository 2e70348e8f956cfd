#include "runtime/kernels/reductions/reduce.h"

#include "ir/operators/reduced_axes.h"
#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/support.h"

namespace pipeshard::kernels {
namespace {

// By axis.
std::vector<bool> isReduced(const KernelSpec& spec) {
  const size_t rank = spec.inputs[0].shape.size();
  std::vector<bool> reduced(rank, false);
  for (int64_t axis : reducedAxes(*spec.node, integersFromAttributeOrInput(spec, "axes", 1), rank))
    reduced[checkedAxis(spec, axis, rank)] = true;
  return reduced;
}

Shape reducedShape(const KernelSpec& spec, const std::vector<bool>& reduced) {
  const bool keep = spec.node->intAttribute("keepdims", 1) != 0;
  Shape shape;
  for (size_t axis = 0; axis < reduced.size(); ++axis) {
    if (!reduced[axis])
      shape.push_back(spec.inputs[0].shape[axis]);
    else if (keep)
      shape.push_back(1);
  }
  return shape;
}

template <typename... Ts>
std::unique_ptr<Kernel> reduce(const KernelSpec& spec, Reduction reduction) {
  checkArity(spec, 1, 2);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  const std::vector<bool> reduced = isReduced(spec);
  checkOutputShape(spec, 0, reducedShape(spec, reduced));
  const ReducePlan plan = planReduce(spec.inputs[0].shape, reduced);
  return withType<Ts...>(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel(
        [plan, reduction](const KernelArguments& arguments) {
          runReduce<T>(arguments.queue, plan, reduction, input<T>(arguments, 0), output<T>(arguments, 0),
                       static_cast<double*>(arguments.workspace));
        },
        {.in_place = {}, .workspace_bytes = plan.partials * sizeof(double)});
  });
}

// Bool tensors: the least is "all", the greatest is "any".
std::unique_ptr<Kernel> reduceExtreme(const KernelSpec& spec, Reduction reduction) {
  return reduce<float, double, int32_t, int64_t, int8_t, uint8_t, bool>(spec, reduction);
}

}  // namespace

ReducePlan planReduce(const Shape& shape, const std::vector<bool>& reduced) {
  Shape sizes;
  std::vector<bool> kinds;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] == 1) continue;
    if (!sizes.empty() && kinds.back() == reduced[axis]) {
      sizes.back() *= shape[axis];
    } else {
      sizes.push_back(shape[axis]);
      kinds.push_back(reduced[axis]);
    }
  }
  if (sizes.empty()) {
    sizes = {1};
    kinds = {true};
  }
  const Shape strides = rowMajorStrides(sizes);
  ReducePlan plan;
  plan.inner = sizes.back();
  plan.inner_reduced = kinds.back();
  for (size_t i = 0; i + 1 < sizes.size(); ++i) {
    ReduceAxes& axes = kinds[i] ? plan.row_axes : plan.kept_axes;
    axes.sizes.push_back(sizes[i]);
    axes.strides.push_back(strides[i]);
  }
  const int64_t rows = plan.row_axes.count();
  plan.kept = plan.kept_axes.count();
  plan.count = rows * (plan.inner_reduced ? plan.inner : 1);
  if (plan.inner_reduced && plan.inner > 2 * kReduceCut && plan.kept <= 64) {
    plan.partials = plan.kept * rows * ((plan.inner + kReduceCut - 1) / kReduceCut);
  }
  return plan;
}

void addReduceKernels(KernelRegistry& registry) {
  const auto arithmetic = [&](const char* name, Reduction reduction) {
    registry.add("", name, [reduction](const KernelSpec& spec) {
      return reduce<float, double, int32_t, int64_t>(spec, reduction);
    });
  };
  arithmetic("ReduceSum", Reduction::kSum);
  arithmetic("ReduceMean", Reduction::kMean);
  arithmetic("ReduceProd", Reduction::kProduct);
  arithmetic("ReduceL1", Reduction::kL1);
  arithmetic("ReduceL2", Reduction::kL2);
  arithmetic("ReduceSumSquare", Reduction::kSumSquare);
  registry.add("", "ReduceMax", [](const KernelSpec& spec) { return reduceExtreme(spec, Reduction::kMax); });
  registry.add("", "ReduceMin", [](const KernelSpec& spec) { return reduceExtreme(spec, Reduction::kMin); });
}

}  // namespace pipeshard::kernels
