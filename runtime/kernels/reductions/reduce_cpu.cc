#include "runtime/kernels/base/lanes.h"
#include "runtime/kernels/base/parallel.h"
#include "runtime/kernels/reductions/reduce.h"
#include "runtime/kernels/reductions/reduce_terms.h"

namespace pipeshard::kernels {
namespace {

constexpr int64_t kColumns = 512;     // outputs that one task reduces together
constexpr int64_t kReducedRows = 64;  // rows summed in T before they are added up in double
constexpr int64_t kCut = kReduceCut;

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
  PIPESHARD_INLINE static void run(const T* x, const ReduceAxes* axes, int64_t rows, int64_t width,
                                   int64_t count, T* y) {
    using A = Narrow<T>;
    Wide<T> totals[kColumns];
    A sums[kColumns];
    for (int64_t c = 0; c < width; ++c) totals[c] = neutral<R, T, Wide<T>>();
    for (int64_t begin = 0; begin < rows; begin += kReducedRows) {
      const int64_t end = std::min(rows, begin + kReducedRows);
      for (int64_t c = 0; c < width; ++c) sums[c] = neutral<R, T, A>();
      for (int64_t row = begin; row < end; ++row) {
        const T* line = x + axes->start(row);
#pragma omp simd
        for (int64_t c = 0; c < width; ++c) sums[c] = combine<R, A>(sums[c], term<R, T>(line[c]));
      }
      for (int64_t c = 0; c < width; ++c)
        totals[c] = combine<R, Wide<T>>(totals[c], static_cast<Wide<T>>(sums[c]));
    }
    for (int64_t c = 0; c < width; ++c) y[c] = finishReduction<R, T>(totals[c], count);
  }
};

template <Reduction R, typename T>
void reduceColumns(const ReducePlan& plan, const T* x, T* y) {
  const int64_t groups = (plan.inner + kColumns - 1) / kColumns;
  const int64_t rows = plan.row_axes.count();
  forRows(plan.kept * groups, rows * std::min(plan.inner, kColumns), [&](int64_t first, int64_t last) {
    for (int64_t index = first; index < last; ++index) {
      const int64_t column = index % groups * kColumns;
      const int64_t kept = index / groups;
      runVectorised<ColumnReduction<R, T>>(x + plan.kept_axes.start(kept) + column, &plan.row_axes, rows,
                                           std::min(kColumns, plan.inner - column), plan.count,
                                           y + kept * plan.inner + column);
    }
  });
}

template <Reduction R, typename T>
void reduceRows(const ReducePlan& plan, const T* x, T* y, double* partials) {
  const int64_t rows = plan.row_axes.count();
  auto* cuts = reinterpret_cast<Wide<T>*>(partials);
  const int64_t pieces = plan.partials == 0 ? 0 : plan.partials / (plan.kept * rows);
  if (pieces > 0) {
    forEachBlock(plan.partials, true, [&](int64_t index) {
      const int64_t begin = index % pieces * kCut;
      const int64_t row = index / pieces;
      cuts[index] = neutral<R, T, Wide<T>>();
      const T* start = x + plan.kept_axes.start(row / rows) + plan.row_axes.start(row % rows) + begin;
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
        const T* first_row = x + plan.kept_axes.start(kept);
        for (int64_t row = 0; row < rows; ++row)
          runVectorised<RowReduction<R, T>>(first_row + plan.row_axes.start(row), plan.inner, &total);
      }
      y[kept] = finishReduction<R, T>(total, plan.count);
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

}  // namespace

template <typename T>
void runReduce(DeviceQueue*, const ReducePlan& plan, Reduction reduction, const T* x, T* y,
               double* partials) {
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

template void runReduce(DeviceQueue*, const ReducePlan&, Reduction, const float*, float*, double*);
template void runReduce(DeviceQueue*, const ReducePlan&, Reduction, const double*, double*, double*);
template void runReduce(DeviceQueue*, const ReducePlan&, Reduction, const int32_t*, int32_t*, double*);
template void runReduce(DeviceQueue*, const ReducePlan&, Reduction, const int64_t*, int64_t*, double*);
template void runReduce(DeviceQueue*, const ReducePlan&, Reduction, const int8_t*, int8_t*, double*);
template void runReduce(DeviceQueue*, const ReducePlan&, Reduction, const uint8_t*, uint8_t*, double*);
template void runReduce(DeviceQueue*, const ReducePlan&, Reduction, const bool*, bool*, double*);

}  // namespace pipeshard::kernels
