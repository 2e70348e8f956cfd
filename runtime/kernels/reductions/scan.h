// What goes along one axis, element after element, of a tensor seen as [outer, size, inner], on any device.
#pragma once

#include <cstdint>

#include "runtime/kernels/base/axis_split.h"
#include "runtime/kernels/base/simd.h"

namespace pipeshard {
class DeviceQueue;
}

namespace pipeshard::kernels {

struct ExtremeRule {
  bool greatest = true;
  bool take_last = false;  // of equal ones
};

// The position of the greatest (least) element of a line, `stride` between neighbours; NaN counts as greatest
// (least), as in numpy.
template <typename T>
PIPESHARD_INLINE int64_t extremeOf(const T* line, int64_t size, int64_t stride, ExtremeRule rule) {
  T best = line[0];
  int64_t at = 0;
  for (int64_t i = 1; i < size; ++i) {
    const T value = line[i * stride];
    const bool better = best == best && (value != value || (rule.greatest ? value > best : value < best));
    if (better || (rule.take_last && value == best)) {
      best = value;
      at = i;
    }
  }
  return at;
}

// Is a to stand before b? NaN counts as greatest (least).
template <typename T>
PIPESHARD_INLINE bool standsBefore(T a, T b, bool greatest) {
  return b == b && (a != a || (greatest ? a > b : a < b));
}

// The k greatest (least) elements of a line, best first, and their places; of equal ones the earlier first.
// `stride`: between neighbours, also of the results.
template <typename T>
PIPESHARD_INLINE void topOf(const T* line, int64_t size, int64_t stride, int64_t k, bool greatest, T* best,
                            int64_t* places) {
  for (int64_t i = 0; i < size; ++i) {
    const T value = line[i * stride];
    int64_t at = i < k ? i : k;
    if (at == k && (k == 0 || !standsBefore(value, best[(k - 1) * stride], greatest))) continue;
    for (at = at < k - 1 ? at : k - 1; at > 0 && standsBefore(value, best[(at - 1) * stride], greatest);
         --at) {
      best[at * stride] = best[(at - 1) * stride];
      places[at * stride] = places[(at - 1) * stride];
    }
    best[at * stride] = value;
    places[at * stride] = i;
  }
}

// T: float, double, int32_t, int64_t, int8_t, uint8_t.
template <typename T>
void findExtremes(DeviceQueue* queue, const AxisSplit& split, ExtremeRule rule, const T* x, int64_t* y);
// T: float, double, int32_t, int64_t; likewise below.
template <typename T>
void findTop(DeviceQueue* queue, const AxisSplit& split, int64_t k, bool greatest, const T* x, T* values,
             int64_t* places);
// The sum up to each element, with it or `exclusive`; from the end where `reverse`. y may be x.
template <typename T>
void sumAlong(DeviceQueue* queue, const AxisSplit& split, bool exclusive, bool reverse, const T* x, T* y);

// Of a source that defines them.
#define PIPESHARD_SCAN_INSTANCES(T)                                                             \
  template void findExtremes(DeviceQueue*, const AxisSplit&, ExtremeRule, const T*, int64_t*);  \
  template void findTop(DeviceQueue*, const AxisSplit&, int64_t, bool, const T*, T*, int64_t*); \
  template void sumAlong(DeviceQueue*, const AxisSplit&, bool, bool, const T*, T*);
#define PIPESHARD_ALL_SCAN_INSTANCES                                                                \
  PIPESHARD_SCAN_INSTANCES(float)                                                                   \
  PIPESHARD_SCAN_INSTANCES(double)                                                                  \
  PIPESHARD_SCAN_INSTANCES(int32_t)                                                                 \
  PIPESHARD_SCAN_INSTANCES(int64_t)                                                                 \
  template void findExtremes(DeviceQueue*, const AxisSplit&, ExtremeRule, const int8_t*, int64_t*); \
  template void findExtremes(DeviceQueue*, const AxisSplit&, ExtremeRule, const uint8_t*, int64_t*);

}  // namespace pipeshard::kernels
