// Index inputs (int32 or int64): range checks that name node, position, index and range, before anything is
// read.
#pragma once

#include <string>

#include "runtime/kernels/base/support.h"

namespace pipeshard::kernels {

// Every index lies in [-size, size), else Error(kBadModel).
template <typename I>
void checkIndices(const std::string& node, const I* indices, int64_t count, int64_t size) {
  bool good = true;
  for (int64_t i = 0; i < count; ++i) good = good && indices[i] >= -size && indices[i] < size;
  if (good) return;
  for (int64_t i = 0; i < count; ++i) {
    if (indices[i] >= -size && indices[i] < size) continue;
    fail(ErrorCode::kBadModel,
         "{}: index {} at position {} is outside of [{}, {}): the indexed axis has {} elements", node,
         indices[i], i, -size, size, size);
  }
}

template <typename I>
int64_t wrapIndex(I index, int64_t size) {
  return index < 0 ? index + size : index;
}

}  // namespace pipeshard::kernels
