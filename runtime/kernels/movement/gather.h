// Rows by their indices, and the gradient, on any device. Data [outer, size, inner]; `count` indices in
// [-size, size), int32_t or int64_t; rows [outer, count, inner].
#pragma once

#include <compare>
#include <cstdint>

#include "runtime/kernels/base/axis_split.h"

namespace pipeshard {
class DeviceQueue;
}

namespace pipeshard::kernels {

// T: the unsigned integer of the elements' size.
template <typename T, typename I>
void gatherRows(DeviceQueue* queue, const AxisSplit& split, int64_t count, const T* data, const I* indices,
                T* out);

// A place in the indices, and the row of the data that it names.
struct Mention {
  int64_t row;
  int64_t position;
  friend auto operator<=>(const Mention&, const Mention&) = default;
};

// ddata = sum of dy's rows that an index names, in the order of positions; `add`: added to what is there.
// `mentions`: room for `count`. T: float, double.
template <typename T, typename I>
void gatherGradRows(DeviceQueue* queue, const AxisSplit& split, int64_t count, const T* dy, const I* indices,
                    Mention* mentions, bool add, T* ddata);

}  // namespace pipeshard::kernels
