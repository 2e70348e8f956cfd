#include <algorithm>

#include "runtime/kernels/base/copy_elements.h"
#include "runtime/kernels/base/strided_copy.h"

namespace pipeshard::kernels {

template <typename T>
void copyElements(DeviceQueue*, const StridedCopy& copy, const T* in, T* out) {
  runStridedCopy(copy, in, out);
}

void fillBytes(DeviceQueue*, int64_t count, uint8_t value, uint8_t* out) { std::fill_n(out, count, value); }

template void copyElements(DeviceQueue*, const StridedCopy&, const uint8_t*, uint8_t*);
template void copyElements(DeviceQueue*, const StridedCopy&, const uint16_t*, uint16_t*);
template void copyElements(DeviceQueue*, const StridedCopy&, const uint32_t*, uint32_t*);
template void copyElements(DeviceQueue*, const StridedCopy&, const uint64_t*, uint64_t*);

}  // namespace pipeshard::kernels
