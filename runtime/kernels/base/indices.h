// Index inputs (int32 or int64): range checks that name node, position, index and range, before anything is
// read.
#pragma once

#include <string>

#include "runtime/kernels/base/support.h"

namespace pipeshard::kernels {

// Throws the Error(kBadModel) about an index of `node` that is outside of [-size, size).
inline std::function<void(const DataFault&)> aboutIndices(const std::string& node, int64_t size) {
  return [node, size](const DataFault& fault) {
    fail(ErrorCode::kBadModel,
         "{}: index {} at position {} is outside of [{}, {}): the indexed axis has {} elements", node,
         fault.value, fault.position, -size, size, size);
  };
}

// Every index lies in [-size, size), else that Error, or its record.
template <typename I>
void checkIndices(const KernelArguments& arguments, const std::function<void(const DataFault&)>& throw_fault,
                  const I* indices, int64_t count, int64_t size) {
  checkData(arguments, throw_fault,
            [&](DataFault* fault) { findOutside(arguments.queue, count, indices, -size, size, {}, fault); });
}
template <typename I>
int64_t wrapIndex(I index, int64_t size) {
  return index < 0 ? index + size : index;
}

}  // namespace pipeshard::kernels
