#include <cmath>
#include <limits>

#include "runtime/kernels/base/lanes.h"
#include "runtime/kernels/base/parallel.h"
#include "runtime/kernels/reductions/reduce.h"

namespace pipeshard::kernels {
namespace {

constexpr int64_t kColumns = 512;      // outputs that one task reduces together
constexpr int64_t kReducedRows = 64;   // rows summed in T before they are added up in double
constexpr int64_t kCut = 16 * kChunk;  // elements of one partial result of a long row

// The running value of T within a chunk, and the wider one across chunks.
template <typename T>
using Narrow = std::conditional_t<std::is_floating_point_v<T>, T, int64_t>;
template <typename T>
using Wide = std::conditional_t<std::is_floating_point_v<T>, double, int64_t>;

template <Reduction R, typename T>
PIPESHARD_INLINE Narrow<T> term(T x) {
  const auto value = static_cast<Narrow<T>>(x);
  if constexpr (R == Reduction::kL2 || R == Reduction::kSumSquare)
    return value * value;
  else if constexpr (R == Reduction::kL1)
    return value < 0 ? -value : value;
  else
    return value;
}

template <Reduction R, typename A>
PIPESHARD_INLINE A combine(A a, A b) {
  if constexpr (R == Reduction::kMax)
    return a < b || b != b ? b : a;
  else if constexpr (R == Reduction::kMin)
    return b < a || b != b ? b : a;
  else if constexpr (R == Reduction::kProduct)
    return a * b;
  else
    return a + b;
}

template <Reduction R, typename T, typename A>
PIPESHARD_INLINE A neutral() {
  if constexpr (R == Reduction::kMax) {
    if constexpr (std::is_floating_point_v<T>)
      return -std::numeric_limits<A>::infinity();
    else
      return static_cast<A>(std::numeric_limits<T>::lowest());
  } else if constexpr (R == Reduction::kMin) {
    if constexpr (std::is_floating_point_v<T>)
      return std::numeric_limits<A>::infinity();
    else
      return static_cast<A>(std::numeric_limits<T>::max());
  } else {
    return R == Reduction::kProduct ? A(1) : A(0);
  }
}

template <Reduction R, typename T>
PIPESHARD_INLINE T finish(Wide<T> value, int64_t count) {
  if constexpr (R == Reduction::kL2)
    return static_cast<T>(std::sqrt(static_cast<double>(value)));
  else if constexpr (R == Reduction::kMean && std::is_floating_point_v<T>)
    return static_cast<T>(value / static_cast<double>(count));
  else if constexpr (R == Reduction::kMean)
    return count == 0 ? T(0) : static_cast<T>(value / count);
  else
    return static_cast<T>(value);
}

// A contiguous row into one value.
template <Reduction R, typename T>
struct RowReduction {
  PIPESHARD_INLINE static void run(const T* x, int64_t count, Wide<T>* result) {
    using A = Narrow<T>;
    Wide<T> total = *result;
    for (int64_t begin = 0; begin < count; begin += kChunk) {
      const int64_t size = std::min(kChunk, count - begin);
      const int64_t whole = size / kLanes * kLanes;
      A lanes[kLanes];
      for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = neutral<R, T, A>();
      const T* chunk = x + begin;
      for (int64_t i = 0; i < whole; i += kLanes) {
#pragma omp simd
        for (int lane = 0; lane < kLanes; ++lane)
          lanes[lane] = combine<R, A>(lanes[lane], term<R, T>(chunk[i + lane]));
      }
      for (int64_t i = whole; i < size; ++i)
        lanes[i - whole] = combine<R, A>(lanes[i - whole], term<R, T>(chunk[i]));
      for (int width = kLanes / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) lanes[i] = combine<R, A>(lanes[i], lanes[i + width]);
      total = combine<R, Wide<T>>(total, static_cast<Wide<T>>(lanes[0]));
    }
    *result = total;
  }
};

// `width` neighbouring columns over the plan's rows.
template <Reduction R, typename T>
struct ColumnReduction {
  PIPESHARD_INLINE static void run(const T* x, const int64_t* row_starts, int64_t rows, int64_t width,
                                   int64_t count, T* y) {
    using A = Narrow<T>;
    Wide<T> totals[kColumns];
    A sums[kColumns];
    for (int64_t c = 0; c < width; ++c) totals[c] = neutral<R, T, Wide<T>>();
    for (int64_t begin = 0; begin < rows; begin += kReducedRows) {
      const int64_t end = std::min(rows, begin + kReducedRows);
      for (int64_t c = 0; c < width; ++c) sums[c] = neutral<R, T, A>();
      for (int64_t row = begin; row < end; ++row) {
        const T* line = x + row_starts[row];
#pragma omp simd
        for (int64_t c = 0; c < width; ++c) sums[c] = combine<R, A>(sums[c], term<R, T>(line[c]));
      }
      for (int64_t c = 0; c < width; ++c)
        totals[c] = combine<R, Wide<T>>(totals[c], static_cast<Wide<T>>(sums[c]));
    }
    for (int64_t c = 0; c < width; ++c) y[c] = finish<R, T>(totals[c], count);
  }
};

template <Reduction R, typename T>
void reduceColumns(const ReducePlan& plan, const T* x, T* y) {
  const int64_t groups = (plan.inner + kColumns - 1) / kColumns;
  const int64_t rows = plan.row_starts.size();
  forRows(plan.kept * groups, rows * std::min(plan.inner, kColumns), [&](int64_t first, int64_t last) {
    for (int64_t index = first; index < last; ++index) {
      const int64_t column = index % groups * kColumns;
      const int64_t kept = index / groups;
      runVectorised<ColumnReduction<R, T>>(x + plan.kept_starts[kept] + column, plan.row_starts.data(), rows,
                                           std::min(kColumns, plan.inner - column), plan.count,
                                           y + kept * plan.inner + column);
    }
  });
}

template <Reduction R, typename T>
void reduceRows(const ReducePlan& plan, const T* x, T* y, double* partials) {
  const int64_t rows = plan.row_starts.size();
  auto* cuts = reinterpret_cast<Wide<T>*>(partials);
  const int64_t pieces = plan.partials == 0 ? 0 : plan.partials / (plan.kept * rows);
  if (pieces > 0) {
    forEachBlock(plan.partials, true, [&](int64_t index) {
      const int64_t begin = index % pieces * kCut;
      const int64_t row = index / pieces;
      cuts[index] = neutral<R, T, Wide<T>>();
      const T* start = x + plan.kept_starts[row / rows] + plan.row_starts[row % rows] + begin;
      runVectorised<RowReduction<R, T>>(start, std::min(kCut, plan.inner - begin), cuts + index);
    });
  }
  forRows(plan.kept, pieces > 0 ? pieces * rows : plan.count, [&](int64_t first, int64_t last) {
    for (int64_t kept = first; kept < last; ++kept) {
      Wide<T> total = neutral<R, T, Wide<T>>();
      if (pieces > 0) {
        for (int64_t i = 0; i < pieces * rows; ++i)
          total = combine<R, Wide<T>>(total, cuts[kept * pieces * rows + i]);
      } else {
        for (int64_t start : plan.row_starts) {
          runVectorised<RowReduction<R, T>>(x + plan.kept_starts[kept] + start, plan.inner, &total);
        }
      }
      y[kept] = finish<R, T>(total, plan.count);
    }
  });
}

template <Reduction R, typename T>
void reduceAs(const ReducePlan& plan, const T* x, T* y, double* partials) {
  if (plan.inner_reduced)
    reduceRows<R, T>(plan, x, y, partials);
  else
    reduceColumns<R, T>(plan, x, y);
}

// Offsets of every index of the axes (sizes, strides), outermost first.
std::vector<int64_t> allOffsets(const Shape& sizes, const Shape& strides) {
  std::vector<int64_t> offsets = {0};
  for (size_t axis = 0; axis < sizes.size(); ++axis) {
    std::vector<int64_t> next;
    next.reserve(offsets.size() * sizes[axis]);
    for (int64_t base : offsets)
      for (int64_t i = 0; i < sizes[axis]; ++i) next.push_back(base + i * strides[axis]);
    offsets = std::move(next);
  }
  return offsets;
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
  Shape kept_sizes, kept_strides, row_sizes, row_strides;
  for (size_t i = 0; i + 1 < sizes.size(); ++i) {
    (kinds[i] ? row_sizes : kept_sizes).push_back(sizes[i]);
    (kinds[i] ? row_strides : kept_strides).push_back(strides[i]);
  }
  plan.kept_starts = allOffsets(kept_sizes, kept_strides);
  plan.row_starts = allOffsets(row_sizes, row_strides);
  plan.kept = std::ssize(plan.kept_starts);
  plan.count = std::ssize(plan.row_starts) * (plan.inner_reduced ? plan.inner : 1);
  if (plan.inner_reduced && plan.inner > 2 * kCut && plan.kept <= 64) {
    plan.partials = plan.kept * std::ssize(plan.row_starts) * ((plan.inner + kCut - 1) / kCut);
  }
  return plan;
}

template <typename T>
void runReduce(const ReducePlan& plan, Reduction reduction, const T* x, T* y, double* partials) {
  if (reduction == Reduction::kMax) return reduceAs<Reduction::kMax, T>(plan, x, y, partials);
  if (reduction == Reduction::kMin) return reduceAs<Reduction::kMin, T>(plan, x, y, partials);
  if constexpr (sizeof(T) >= 4) {
    switch (reduction) {
      case Reduction::kSum: return reduceAs<Reduction::kSum, T>(plan, x, y, partials);
      case Reduction::kMean: return reduceAs<Reduction::kMean, T>(plan, x, y, partials);
      case Reduction::kProduct: return reduceAs<Reduction::kProduct, T>(plan, x, y, partials);
      case Reduction::kL1: return reduceAs<Reduction::kL1, T>(plan, x, y, partials);
      case Reduction::kL2: return reduceAs<Reduction::kL2, T>(plan, x, y, partials);
      default: return reduceAs<Reduction::kSumSquare, T>(plan, x, y, partials);
    }
  }
}

template void runReduce(const ReducePlan&, Reduction, const float*, float*, double*);
template void runReduce(const ReducePlan&, Reduction, const double*, double*, double*);
template void runReduce(const ReducePlan&, Reduction, const int32_t*, int32_t*, double*);
template void runReduce(const ReducePlan&, Reduction, const int64_t*, int64_t*, double*);
template void runReduce(const ReducePlan&, Reduction, const int8_t*, int8_t*, double*);
template void runReduce(const ReducePlan&, Reduction, const uint8_t*, uint8_t*, double*);
template void runReduce(const ReducePlan&, Reduction, const bool*, bool*, double*);

}  // namespace pipeshard::kernels
