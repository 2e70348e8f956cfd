#include <algorithm>
#include <compare>
#include <cstring>

#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/indices.h"
#include "runtime/kernels/base/parallel.h"
#include "runtime/kernels/base/simd.h"

namespace pipeshard::kernels {
namespace {

// data [outer, size, inner], `count` indices: output [outer, count, inner].
template <typename T, typename I>
void runGather(const AxisSplit& split, int64_t count, const T* data, const I* indices, T* out) {
  forRows(split.outer * count, split.inner, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const int64_t index = wrapIndex(indices[row % count], split.size);
      const T* from = data + (row / count * split.size + index) * split.inner;
      if (split.inner == 1)
        out[row] = *from;
      else
        std::memcpy(out + row * split.inner, from, split.inner * sizeof(T));
    }
  });
}

std::unique_ptr<Kernel> gather(const KernelSpec& spec) {
  checkArity(spec, 2, 2);
  const Shape& data = spec.inputs[0].shape;
  const Shape& indices = spec.inputs[1].shape;
  const size_t axis = axisAttribute(spec, 0);
  Shape expected(data.begin(), data.begin() + axis);
  expected.insert(expected.end(), indices.begin(), indices.end());
  expected.insert(expected.end(), data.begin() + axis + 1, data.end());
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  checkOutputShape(spec, 0, expected);
  const AxisSplit split = splitAtAxis(data, axis);
  const int64_t count = elementCount(indices);
  return withElementSize(spec, spec.inputs[0].data_type, "input 0", [&](auto element) {
    using T = decltype(element);
    return withType<int32_t, int64_t>(spec, spec.inputs[1].data_type, "input 1", [&](auto index) {
      using I = decltype(index);
      return makeKernel([split, count, node = describeNode(*spec.node)](const KernelArguments& arguments) {
        checkIndices(node, input<I>(arguments, 1), count, split.size);
        runGather<T, I>(split, count, input<T>(arguments, 0), input<I>(arguments, 1),
                        output<T>(arguments, 0));
      });
    });
  });
}

constexpr int64_t kColumns = 128;  // columns of the data that one task adds up

// A place in the indices, and the row of the data that it names.
struct Mention {
  int64_t row;
  int64_t position;
  friend auto operator<=>(const Mention&, const Mention&) = default;
};

// The mentions of one row: adds up their gradients in the order of positions, and puts the sum (or adds it)
// to the row's.
template <typename T>
struct SumMentions {
  PIPESHARD_INLINE static void run(const Mention* mentions, int64_t count, const T* dy, int64_t stride,
                                   T* row, int64_t width, bool add) {
    T sums[kColumns] = {};
    for (int64_t i = 0; i < count; ++i) {
      const T* from = dy + mentions[i].position * stride;
#pragma omp simd
      for (int64_t c = 0; c < width; ++c) sums[c] += from[c];
    }
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) row[c] = add ? row[c] + sums[c] : sums[c];
  }
};

// Indices may repeat, so they are sorted by row, and tasks share out columns. `mentions`: room for `count`.
template <typename T, typename I>
void runGatherGrad(const AxisSplit& split, int64_t count, const T* dy, const I* indices, Mention* mentions,
                   bool add, T* ddata) {
  if (!add) {
    forBlocks(split.outer * split.size * split.inner, kBlockElements * 16,
              [&](int64_t begin, int64_t end) { std::fill(ddata + begin, ddata + end, T(0)); });
  }
  for (int64_t i = 0; i < count; ++i) mentions[i] = {wrapIndex(indices[i], split.size), i};
  std::sort(mentions, mentions + count);
  const int64_t groups = (split.inner + kColumns - 1) / kColumns;
  forEachBlock(split.outer * groups, split.outer * count * split.inner > kBlockElements, [&](int64_t task) {
    const int64_t outer = task / groups;
    const int64_t column = task % groups * kColumns;
    const int64_t width = std::min(kColumns, split.inner - column);
    for (int64_t i = 0; i < count;) {
      int64_t end = i + 1;
      while (end < count && mentions[end].row == mentions[i].row) ++end;
      runVectorised<SumMentions<T>>(
          mentions + i, end - i, dy + outer * count * split.inner + column, split.inner,
          ddata + (outer * split.size + mentions[i].row) * split.inner + column, width, add);
      i = end;
    }
  });
}

std::unique_ptr<Kernel> gatherGrad(const KernelSpec& spec) {
  checkArity(spec, 3, 3);
  const Shape data = constantIntegers(spec, 2, "Shape");
  const size_t axis = checkedAxis(spec, spec.node->intAttribute("axis", 0), data.size());
  const Shape& indices = spec.inputs[1].shape;
  Shape expected(data.begin(), data.begin() + axis);
  expected.insert(expected.end(), indices.begin(), indices.end());
  expected.insert(expected.end(), data.begin() + axis + 1, data.end());
  checkInputShape(spec, 0, expected);
  checkOutputShape(spec, 0, data);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  const AxisSplit split = splitAtAxis(data, axis);
  const int64_t count = elementCount(indices);
  return withType<float, double>(spec, spec.inputs[0].data_type, "input 0", [&](auto element) {
    using T = decltype(element);
    return withType<int32_t, int64_t>(spec, spec.inputs[1].data_type, "input 1", [&](auto index) {
      using I = decltype(index);
      return makeKernel(
          [split, count, node = describeNode(*spec.node)](const KernelArguments& arguments) {
            checkIndices(node, input<I>(arguments, 1), count, split.size);
            runGatherGrad<T, I>(split, count, input<T>(arguments, 0), input<I>(arguments, 1),
                                static_cast<Mention*>(arguments.workspace), accumulates(arguments),
                                output<T>(arguments, 0));
          },
          {.in_place = {}, .workspace_bytes = count * sizeof(Mention), .accumulates = true});
    });
  });
}

}  // namespace

void addGatherKernels(KernelRegistry& registry) {
  registry.add("", "Gather", gather);
  registry.add(std::string(kPipeshardDomain), "GatherGrad", gatherGrad);
}

}  // namespace pipeshard::kernels
