// Transpositions, on any device.
#pragma once

#include <vector>

#include "runtime/kernels/base/strided_copy.h"

namespace pipeshard {
class DeviceQueue;
}

namespace pipeshard::kernels {

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

// T: the unsigned integer of the elements' size.
template <typename T>
void transposeElements(DeviceQueue* queue, const TransposePlan& plan, const T* in, T* out);

}  // namespace pipeshard::kernels
