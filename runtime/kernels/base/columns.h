// Work over the middle axis of a tensor seen as [outer, size, inner], for inner > 1: groups of neighbouring
// columns.
#pragma once

#include <algorithm>

#include "runtime/kernels/base/parallel.h"
#include "runtime/kernels/base/support.h"

namespace pipeshard::kernels {

inline constexpr int64_t kColumns = 64;

// body(outer, column, width) with width <= kColumns, on all threads. Element (outer, i, column) is at
// (outer * size + i) * inner + column.
template <typename Body>
void forColumns(const AxisSplit& split, const Body& body) {
  const int64_t groups = (split.inner + kColumns - 1) / kColumns;
  forRows(split.outer * groups, split.size * std::min(split.inner, kColumns),
          [&](int64_t first, int64_t last) {
            for (int64_t index = first; index < last; ++index) {
              const int64_t column = index % groups * kColumns;
              body(index / groups, column, std::min(kColumns, split.inner - column));
            }
          });
}

}  // namespace pipeshard::kernels
