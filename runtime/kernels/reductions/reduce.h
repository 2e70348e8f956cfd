// Reductions over any set of axes of a dense tensor, in an order fixed by the shape.
//
// Neighbouring axes of the same kind (kept or reduced) are merged; the innermost decides how the work is
// done:
//   innermost reduced: every output is the reduction of `reduced_rows` contiguous rows of `inner` elements;
//   innermost kept:    `inner` neighbouring outputs are reduced together over `reduced_rows` rows.
// [8,16,64] over {0,1}: kept 1, reduced_rows 128, inner 64 (kept). [8,16,64] over {2}: kept 128, reduced_rows
// 1, inner 64. Sums of float are formed in float over at most 2048 elements (64 rows) and added up in double.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/base/shape.h"

namespace pipeshard {
class DeviceQueue;
}

namespace pipeshard::kernels {

enum class Reduction { kSum, kMean, kMax, kMin, kProduct, kL1, kL2, kSumSquare };

// Elements of one partial result of a long row.
inline constexpr int64_t kReduceCut = int64_t{1} << 15;

// Axes, outermost first, whose row-major indices are counted through. [3,2] by strides [100,10] starts at 0,
// 10, 100, 110, 200, 210. There is no table of them: a long batch has as many rows as numbers.
struct ReduceAxes {
  Shape sizes, strides;

  int64_t count() const { return elementCount(sizes); }
  int64_t start(int64_t index) const {
    if (sizes.empty()) return 0;
    int64_t at = 0;
    for (size_t axis = sizes.size() - 1; axis > 0; --axis) {
      at += index % sizes[axis] * strides[axis];
      index /= sizes[axis];
    }
    return at + index * strides[0];
  }
};

struct ReducePlan {
  int64_t kept = 1;   // outputs, or groups of `inner` outputs
  int64_t inner = 1;  // contiguous elements
  bool inner_reduced = true;
  ReduceAxes kept_axes;  // per kept index: elements to its first row
  ReduceAxes row_axes;   // per reduced row: elements from the kept start
  int64_t count = 1;     // elements per output
  int64_t partials = 0;  // doubles of workspace (a long reduction to few outputs is cut)
};

ReducePlan planReduce(const Shape& shape, const std::vector<bool>& reduced);

// T: float, double, int32_t, int64_t; for kMax and kMin also int8_t, uint8_t, bool. Reducing no elements
// gives the neutral element (0, 1, lowest, max; NaN for the mean of floats).
template <typename T>
void runReduce(DeviceQueue* queue, const ReducePlan& plan, Reduction reduction, const T* x, T* y,
               double* partials);

}  // namespace pipeshard::kernels
