#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/simd.h"
#include "runtime/kernels/base/strided_copy.h"
#include "runtime/kernels/base/support.h"

namespace pipeshard::kernels {
namespace {

constexpr int64_t kTile = 32;

// A transposition as a batch of matrices: out[c, r] = in[r, c], with c contiguous in the source and r in the
// destination.
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

// A tile goes through a small buffer, so that both sides are touched in whole lines.
template <typename T>
PIPESHARD_INLINE void transposeByElements(const T* in, int64_t in_stride, T* out, int64_t out_stride,
                                          int64_t rows, int64_t columns) {
  T buffer[kTile * kTile];
  for (int64_t r = 0; r < rows; ++r) {
    const T* line = in + r * in_stride;
    for (int64_t c = 0; c < columns; ++c) buffer[c * kTile + r] = line[c];
  }
  for (int64_t c = 0; c < columns; ++c)
    std::memcpy(out + c * out_stride, buffer + c * kTile, rows * sizeof(T));
}

// Eight rows of eight 4-byte elements in registers: elements, then pairs, then halves change places.
PIPESHARD_INLINE void transposeEight(const uint32_t* in, int64_t in_stride, uint32_t* out,
                                     int64_t out_stride) {
  using Eight = uint32_t __attribute__((vector_size(32)));
  Eight a[8], b[8];
  for (int i = 0; i < 8; ++i) std::memcpy(&a[i], in + i * in_stride, sizeof(Eight));
  for (int i = 0; i < 8; i += 2) {
    b[i] = __builtin_shufflevector(a[i], a[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
    b[i + 1] = __builtin_shufflevector(a[i], a[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
  }
  for (int i = 0; i < 8; i += 4) {
    for (int j = i; j < i + 2; ++j) {
      a[j] = __builtin_shufflevector(b[j], b[j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
      a[j + 2] = __builtin_shufflevector(b[j], b[j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
  for (int i = 0; i < 4; ++i) {
    b[i] = __builtin_shufflevector(a[i], a[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    b[i + 4] = __builtin_shufflevector(a[i], a[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
  for (int i = 0; i < 8; ++i) std::memcpy(out + i * out_stride, &b[i], sizeof(Eight));
}

template <typename T>
struct TransposeTile {
  PIPESHARD_INLINE static void run(const T* in, int64_t in_stride, T* out, int64_t out_stride, int64_t rows,
                                   int64_t columns) {
    if constexpr (std::is_same_v<T, uint32_t>) {
      if (rows % 8 == 0 && columns % 8 == 0) {
        for (int64_t r = 0; r < rows; r += 8)
          for (int64_t c = 0; c < columns; c += 8)
            transposeEight(in + r * in_stride + c, in_stride, out + c * out_stride + r, out_stride);
        return;
      }
    }
    transposeByElements(in, in_stride, out, out_stride, rows, columns);
  }
};

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
      runVectorised<TransposeTile<T>>(in + from, plan.rows.in, out + to, plan.columns.out,
                                      std::min(kTile, plan.rows.size - r),
                                      std::min(kTile, plan.columns.size - c));
    }
  });
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
