#include "runtime/kernels/movement/transpose.h"
#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/support.h"

namespace pipeshard::kernels {
namespace {

TransposePlan planTranspose(const Shape& input, const std::vector<int64_t>& permutation) {
  const Shape strides = rowMajorStrides(input);
  Shape sizes, in_strides;
  for (int64_t axis : permutation) {
    sizes.push_back(input[axis]);
    in_strides.push_back(strides[axis]);
  }
  TransposePlan plan;
  plan.copy = makeStridedCopy(copyAxes(sizes, in_strides, rowMajorStrides(sizes)));
  const std::vector<CopyAxis>& axes = plan.copy.axes;
  if (axes.size() < 2 || axes.back().in == 1) return plan;
  plan.rows = axes.back();
  for (size_t a = 0; a + 1 < axes.size(); ++a) {
    if (axes[a].in == 1) {
      plan.columns = axes[a];
      plan.matrices = true;
    } else {
      plan.batch.push_back(axes[a]);
      plan.matrices_count *= axes[a].size;
    }
  }
  return plan;
}

std::vector<int64_t> permutationOf(const KernelSpec& spec) {
  const size_t rank = spec.inputs[0].shape.size();
  std::vector<int64_t> permutation = spec.node->intsAttribute("perm");
  if (permutation.empty()) {
    for (size_t i = rank; i-- > 0;) permutation.push_back(i);
  }
  if (permutation.size() != rank)
    refuse(spec, "attribute perm has {} entries for an input of rank {}", permutation.size(), rank);
  std::vector<bool> seen(rank, false);
  for (int64_t& axis : permutation) {
    axis = checkedAxis(spec, axis, rank);
    if (seen[axis]) refuse(spec, "attribute perm names axis {} twice", axis);
    seen[axis] = true;
  }
  return permutation;
}

std::unique_ptr<Kernel> transpose(const KernelSpec& spec) {
  checkArity(spec, 1, 1);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  const std::vector<int64_t> permutation = permutationOf(spec);
  Shape expected;
  for (int64_t axis : permutation) expected.push_back(spec.inputs[0].shape[axis]);
  checkOutputShape(spec, 0, expected);
  const TransposePlan plan = planTranspose(spec.inputs[0].shape, permutation);
  return withElementSize(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel([plan](const KernelArguments& arguments) {
      transposeElements<T>(arguments.queue, plan, input<T>(arguments, 0), output<T>(arguments, 0));
    });
  });
}

}  // namespace

void addTransposeKernels(KernelRegistry& registry) { registry.add("", "Transpose", transpose); }

}  // namespace pipeshard::kernels
