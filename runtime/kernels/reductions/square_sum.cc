// SquareSum (docs/operators.md).
#include "runtime/kernels/reductions/square_sum.h"

#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/support.h"

namespace pipeshard::kernels {
namespace {

std::unique_ptr<Kernel> squareSum(const KernelSpec& spec) {
  checkArity(spec, 2, 2);
  checkOutputType(spec, 0, DataType::kFloat64);
  checkOutputShape(spec, 0, {});
  const int64_t parts = spec.node->intAttribute("parts", 1);
  if (parts < 1) refuse(spec, "{} parts are none", parts);
  if (spec.inputs[1].data_type != DataType::kInt64 || elementCount(spec.inputs[1].shape) != 1)
    refuse(spec, "the number of its part must be one int64");
  const int64_t size = elementCount(spec.inputs[0].shape);
  const int64_t most_blocks = ((size + parts - 1) / parts + kBlockElements - 1) / kBlockElements;
  const auto throw_fault = [parts](const DataFault& fault) {
    fail(ErrorCode::kBadModel, "SquareSum: part {} of {} parts is none", fault.value, parts);
  };
  return withType<float, double>(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel(
        [size, parts, throw_fault](const KernelArguments& a) {
          const int64_t* part = input<int64_t>(a, 1);
          checkData(a, throw_fault,
                    [&](DataFault* fault) { findOutside(a.queue, 1, part, 0, parts, {}, fault); });
          sumSquares(a.queue, size, parts, part, input<T>(a, 0), static_cast<double*>(a.workspace),
                     output<double>(a, 0));
        },
        {.in_place = {},
         .workspace_bytes = static_cast<size_t>(most_blocks) * sizeof(double),
         .throw_fault = throw_fault});
  });
}

}  // namespace

void addSquareSumKernels(KernelRegistry& registry) {
  registry.add(std::string(kPipeshardDomain), "SquareSum", squareSum);
}

}  // namespace pipeshard::kernels
