// A tensor seen as three axes.
#pragma once

#include <cstdint>

namespace pipeshard::kernels {

// [product of sizes before axis, size of axis, product of sizes after].
struct AxisSplit {
  int64_t outer = 1;
  int64_t size = 1;
  int64_t inner = 1;
};

}  // namespace pipeshard::kernels
