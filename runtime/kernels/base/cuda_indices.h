// For .cu files: where strided views and index tensors point.
#pragma once

#include "runtime/kernels/base/cuda_plans.h"
#include "runtime/kernels/base/strided_copy.h"

namespace pipeshard::kernels {

// Of a copy's axes; offsets: of the source, of the destination.
inline AxisWalk<2> walkOf(const StridedCopy& copy) {
  AxisWalk<2> walk;
  for (const CopyAxis& axis : copy.axes) {
    if (!walk.add(axis.size, {axis.in, axis.out})) refuseAxes(copy.axes.size());
  }
  return walk;
}

// The row that an index in [-size, size) names. One that is outside is read as 0: it has been recorded.
template <typename I>
__device__ int64_t rowOf(I index, int64_t size) {
  const int64_t row = index < 0 ? index + size : index;
  return row < 0 || row >= size ? 0 : row;
}

}  // namespace pipeshard::kernels
