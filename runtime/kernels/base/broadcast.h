// Broadcasting, worked out once per kernel: how to walk a dense output and up to three inputs that broadcast
// to it, as rows.
//
// Axes over which every operand is contiguous (or broadcast) in the same way are merged first, so that equal
// shapes become one row, and [8,16,64] + [64] becomes 128 rows of 64. In a row, an operand moves by 1 or
// stays (stride 0).
//   makeBroadcast({8,16,64}, {{8,16,64}, {64}}):
//   rows 128, length 64, strides {1, 1}; row r starts at {64 r, 0}
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "ir/base/shape.h"
#include "runtime/kernels/base/parallel.h"

namespace pipeshard::kernels {

inline constexpr size_t kMaxBroadcastInputs = 3;
using BroadcastOffsets = std::array<int64_t, kMaxBroadcastInputs>;

struct Broadcast {
  int64_t rows = 1;
  int64_t length = 1;                // elements of a row
  BroadcastOffsets inner_strides{};  // 0 or 1 per input, inside a row
  Shape outer_sizes;                 // the axes that count rows
  std::vector<BroadcastOffsets> outer_strides;

  // Elements from the input's begin to the first of row `row`, per input.
  BroadcastOffsets rowStart(int64_t row) const;
};

// Every input shape must broadcast to `output` (numpy rules); Error(kBadModel) otherwise.
Broadcast makeBroadcast(const Shape& output, const std::vector<Shape>& inputs);

// body(output_offset, input_offsets, length) over pieces of rows, on all threads, cut independently of their
// number.
template <typename Body>
void forBroadcast(const Broadcast& plan, const Body& body) {
  const int64_t pieces = (plan.length + kBlockElements - 1) / kBlockElements;  // of a row
  const int64_t group = std::max<int64_t>(1, kBlockElements / std::max<int64_t>(1, plan.length));
  const int64_t groups = pieces > 1 ? plan.rows * pieces : (plan.rows + group - 1) / group;
  if (plan.length == 0 || plan.rows == 0) return;
  forEachBlock(groups, true, [&](int64_t index) {
    if (pieces > 1) {
      const int64_t row = index / pieces;
      const int64_t begin = (index % pieces) * kBlockElements;
      BroadcastOffsets start = plan.rowStart(row);
      for (size_t i = 0; i < start.size(); ++i) start[i] += begin * plan.inner_strides[i];
      body(row * plan.length + begin, start, std::min(kBlockElements, plan.length - begin));
      return;
    }
    const int64_t last = std::min(plan.rows, (index + 1) * group);
    for (int64_t row = index * group; row < last; ++row)
      body(row * plan.length, plan.rowStart(row), plan.length);
  });
}

}  // namespace pipeshard::kernels
