// Padding, on any device.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/base/shape.h"
#include "runtime/kernels/base/simd.h"

namespace pipeshard {
class DeviceQueue;
}

namespace pipeshard::kernels {

enum class PadMode { kConstant, kEdge, kWrap, kReflect };

inline constexpr int64_t kOutside = -1;

// The source position of position i, counted from the source's first, of an axis of `size`; kOutside for the
// constant.
PIPESHARD_INLINE int64_t paddedFrom(PadMode mode, int64_t i, int64_t size) {
  if (i >= 0 && i < size) return i;
  if (mode == PadMode::kConstant) return kOutside;
  if (mode == PadMode::kEdge) return i < 0 ? 0 : size - 1;
  if (mode == PadMode::kWrap) return (i % size + size) % size;
  const int64_t period = 2 * (size - 1) < 1 ? 1 : 2 * (size - 1);  // reflect, without repeating the edge
  const int64_t phase = (i % period + period) % period;
  return phase < size ? phase : period - phase;
}

struct PadPlan {
  PadMode mode = PadMode::kConstant;
  Shape input, output;
  Shape before;  // by axis: positions in front of the source's first
  Shape in_strides;
  std::vector<std::vector<int64_t>> maps;  // by axis and position: paddedFrom
  int64_t rows = 1;
};

// The constant is `*value_at` where there is one (on the device), else `value`. T: the unsigned integer of
// the elements' size.
template <typename T>
void padElements(DeviceQueue* queue, const PadPlan& plan, const T* in, T value, const T* value_at, T* out);

}  // namespace pipeshard::kernels
