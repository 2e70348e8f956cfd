// What a kernel records about its data.
#pragma once

#include <cstdint>

namespace pipeshard {

// The first element of a kernel's data that is wrong (an index outside, a division by zero), in the memory of
// a device whose kernels cannot throw. Zeros: none.
struct DataFault {
  int64_t found = 0;  // 1: there is one
  int64_t position = 0;
  int64_t value = 0;
};

}  // namespace pipeshard
