// SquareSum (docs/operators.md): the sum of squares of a share of a tensor's elements, in double. Blocks are
// fixed and added in order, so that the number of threads does not show.
#include <vector>

#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/lanes.h"
#include "runtime/kernels/base/parallel.h"
#include "runtime/kernels/base/support.h"

namespace pipeshard::kernels {
namespace {

template <typename T>
struct BlockSquares {
  PIPESHARD_INLINE static void run(const T* x, int64_t count, double* sum) {
    *sum = sumOf<double>(count, [x](int64_t i) PIPESHARD_LAMBDA_INLINE {
      const auto wide = static_cast<double>(x[i]);
      return wide * wide;
    });
  }
};

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
  return withType<float, double>(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel(
        [size, parts](const KernelArguments& arguments) {
          const int64_t part = *input<int64_t>(arguments, 1);
          if (part < 0 || part >= parts)
            fail(ErrorCode::kBadModel, "SquareSum: part {} of {} parts is none", part, parts);
          const int64_t begin = size * part / parts;
          const int64_t count = size * (part + 1) / parts - begin;
          const int64_t blocks = (count + kBlockElements - 1) / kBlockElements;
          const T* x = input<T>(arguments, 0) + begin;
          auto* sums = static_cast<double*>(arguments.workspace);
          forEachBlock(blocks, true, [&](int64_t b) {
            const int64_t first = b * kBlockElements;
            runVectorised<BlockSquares<T>>(x + first, std::min(kBlockElements, count - first), sums + b);
          });
          double total = 0;
          for (int64_t b = 0; b < blocks; ++b) total += sums[b];
          *output<double>(arguments, 0) = total;
        },
        {.in_place = {}, .workspace_bytes = static_cast<size_t>(most_blocks) * sizeof(double)});
  });
}

}  // namespace

void addSquareSumKernels(KernelRegistry& registry) {
  registry.add(std::string(kPipeshardDomain), "SquareSum", squareSum);
}

}  // namespace pipeshard::kernels
