#include "runtime/kernels/families.h"
#include "runtime/kernels/strided_copy.h"
#include "runtime/kernels/support.h"

namespace pipeshard::kernels {
namespace {

constexpr int64_t kTile = 32;

// A transposition as a batch of matrices: out[c, r] = in[r, c], with c contiguous in the source and r in the destination.
struct TransposePlan {
  StridedCopy copy;
  bool matrices = false;  // otherwise the copy alone does it (the innermost axis stays)
  CopyAxis rows;          // source rows: contiguous in the destination (out == 1)
  CopyAxis columns;       // contiguous in the source (in == 1)
  std::vector<CopyAxis> batch;
  int64_t matrices_count = 1;
};

TransposePlan planTranspose(const Shape& input, const std::vector<int64_t>& permutation) {
  const Shape strides = rowMajorStrides(input);
  Shape sizes, in_strides;
  for (int64_t axis : permutation) {
    sizes.push_back(input[static_cast<size_t>(axis)]);
    in_strides.push_back(strides[static_cast<size_t>(axis)]);
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

// A tile goes through a small buffer, so that both sides are touched in whole lines.
template <typename T>
void transposeTile(const T* in, int64_t in_stride, T* out, int64_t out_stride, int64_t rows, int64_t columns) {
  T buffer[kTile * kTile];
  for (int64_t r = 0; r < rows; ++r) {
    const T* line = in + r * in_stride;
    for (int64_t c = 0; c < columns; ++c) buffer[c * kTile + r] = line[c];
  }
  for (int64_t c = 0; c < columns; ++c) std::memcpy(out + c * out_stride, buffer + c * kTile, static_cast<size_t>(rows) * sizeof(T));
}

template <typename T>
void transposeMatrices(const TransposePlan& plan, const T* in, T* out) {
  const int64_t row_tiles = (plan.rows.size + kTile - 1) / kTile;
  const int64_t column_tiles = (plan.columns.size + kTile - 1) / kTile;
  forRows(plan.matrices_count * row_tiles * column_tiles, kTile * kTile, [&](int64_t first, int64_t last) {
    for (int64_t index = first; index < last; ++index) {
      const int64_t r = index / column_tiles % row_tiles * kTile;
      const int64_t c = index % column_tiles * kTile;
      int64_t rest = index / (row_tiles * column_tiles);
      int64_t from = r * plan.rows.in + c;
      int64_t to = r + c * plan.columns.out;
      for (size_t a = plan.batch.size(); a-- > 0;) {
        from += rest % plan.batch[a].size * plan.batch[a].in;
        to += rest % plan.batch[a].size * plan.batch[a].out;
        rest /= plan.batch[a].size;
      }
      transposeTile(in + from, plan.rows.in, out + to, plan.columns.out, std::min(kTile, plan.rows.size - r),
                    std::min(kTile, plan.columns.size - c));
    }
  });
}

std::vector<int64_t> permutationOf(const KernelSpec& spec) {
  const size_t rank = spec.inputs[0].shape.size();
  std::vector<int64_t> permutation = spec.node->intsAttribute("perm");
  if (permutation.empty()) {
    for (size_t i = rank; i-- > 0;) permutation.push_back(static_cast<int64_t>(i));
  }
  if (permutation.size() != rank) refuse(spec, "attribute perm has {} entries for an input of rank {}", permutation.size(), rank);
  std::vector<bool> seen(rank, false);
  for (int64_t& axis : permutation) {
    axis = static_cast<int64_t>(checkedAxis(spec, axis, rank));
    if (seen[static_cast<size_t>(axis)]) refuse(spec, "attribute perm names axis {} twice", axis);
    seen[static_cast<size_t>(axis)] = true;
  }
  return permutation;
}

std::unique_ptr<Kernel> transpose(const KernelSpec& spec) {
  checkArity(spec, 1, 1);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  const std::vector<int64_t> permutation = permutationOf(spec);
  Shape expected;
  for (int64_t axis : permutation) expected.push_back(spec.inputs[0].shape[static_cast<size_t>(axis)]);
  checkOutputShape(spec, 0, expected);
  const TransposePlan plan = planTranspose(spec.inputs[0].shape, permutation);
  return withElementSize(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel([plan](const KernelArguments& arguments) {
      if (plan.matrices)
        transposeMatrices<T>(plan, input<T>(arguments, 0), output<T>(arguments, 0));
      else
        runStridedCopy<T>(plan.copy, input<T>(arguments, 0), output<T>(arguments, 0));
    });
  });
}

}  // namespace

void addTransposeKernels(KernelRegistry& registry) { registry.add("", "Transpose", transpose); }

}  // namespace pipeshard::kernels
