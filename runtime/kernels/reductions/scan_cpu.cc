#include "runtime/kernels/base/columns.h"
#include "runtime/kernels/reductions/scan.h"

namespace pipeshard::kernels {
namespace {

// body(outer, column) for every column of the middle axis, which threads share out.
template <typename Body>
void forEachColumn(const AxisSplit& split, const Body& body) {
  forColumns(split, [&](int64_t outer, int64_t column, int64_t width) {
    for (int64_t c = column; c < column + width; ++c) body(outer, c);
  });
}

}  // namespace

template <typename T>
void findExtremes(DeviceQueue*, const AxisSplit& split, ExtremeRule rule, const T* x, int64_t* y) {
  forEachColumn(split, [&](int64_t outer, int64_t c) {
    const T* line = x + outer * split.size * split.inner + c;
    y[outer * split.inner + c] = extremeOf(line, split.size, split.inner, rule);
  });
}

template <typename T>
void findTop(DeviceQueue*, const AxisSplit& split, int64_t k, bool greatest, const T* x, T* values,
             int64_t* places) {
  forEachColumn(split, [&](int64_t outer, int64_t c) {
    const int64_t results = outer * k * split.inner + c;
    topOf(x + outer * split.size * split.inner + c, split.size, split.inner, k, greatest, values + results,
          places + results);
  });
}

template <typename T>
void sumAlong(DeviceQueue*, const AxisSplit& split, bool exclusive, bool reverse, const T* x, T* y) {
  forColumns(split, [&](int64_t outer, int64_t column, int64_t width) {
    T sums[kColumns] = {};
    for (int64_t step = 0; step < split.size; ++step) {
      const int64_t i = reverse ? split.size - 1 - step : step;
      const int64_t at = (outer * split.size + i) * split.inner + column;
      for (int64_t c = 0; c < width; ++c) {
        const T before = sums[c];
        sums[c] += x[at + c];
        y[at + c] = exclusive ? before : sums[c];
      }
    }
  });
}

PIPESHARD_ALL_SCAN_INSTANCES

}  // namespace pipeshard::kernels
