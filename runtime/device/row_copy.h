// Copies of a range of one axis between row-major tensors: what kSlice and kConcatenate come down to.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ir/program/program.h"

namespace pipeshard {

// `count` runs of `bytes` contiguous bytes, whose starts are a stride apart on either side.
//   rows 1..2 of float32[2,4,3] into float32[2,2,3]:
//   2 runs of 24 bytes, 48 apart in the source, 24 in the destination
struct RowCopy {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  size_t bytes = 0;
  size_t count = 0;
  size_t from_stride = 0;
  size_t to_stride = 0;

  void run() const;
};

// All of `part` from (or into) the range of `whole` that starts at `offset` of `axis`. Neither memory may
// overlap the other. Error(kConfiguration), naming both buffers, when the range is not inside of `whole` or
// types or other axes differ.
RowCopy copyOutOfRange(const Buffer& whole, const std::byte* from, const Buffer& part, std::byte* to,
                       int axis, int64_t offset);
RowCopy copyIntoRange(const Buffer& part, const std::byte* from, const Buffer& whole, std::byte* to, int axis,
                      int64_t offset);

}  // namespace pipeshard
