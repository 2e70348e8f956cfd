// The sum of squares of a share of a tensor's elements, on any device.
#pragma once

#include <cstdint>

#include "runtime/kernels/base/parallel.h"
#include "runtime/kernels/base/simd.h"

namespace pipeshard {
class DeviceQueue;
}

namespace pipeshard::kernels {

// Part `part` of `parts` of `size` elements, as blocks of kBlockElements. A part that is none is read as the
// first: it has been recorded.
struct SquareShare {
  int64_t begin;
  int64_t count;
  int64_t blocks;

  PIPESHARD_INLINE SquareShare(int64_t size, int64_t parts, int64_t part) {
    if (part < 0 || part >= parts) part = 0;
    begin = size * part / parts;
    count = size * (part + 1) / parts - begin;
    blocks = (count + kBlockElements - 1) / kBlockElements;
  }
};

// In double, block after block. `sums`: room for one by block of the largest part. T: float, double.
template <typename T>
void sumSquares(DeviceQueue* queue, int64_t size, int64_t parts, const int64_t* part, const T* x,
                double* sums, double* total);

}  // namespace pipeshard::kernels
