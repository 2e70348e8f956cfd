#include <algorithm>

#include "runtime/kernels/base/copy_elements.h"
#include "runtime/kernels/base/parallel.h"
#include "runtime/kernels/base/strided_copy.h"

namespace pipeshard::kernels {

template <typename T>
void copyElements(DeviceQueue*, const StridedCopy& copy, const T* in, T* out) {
  runStridedCopy(copy, in, out);
}

template <typename T>
void fillElements(DeviceQueue*, int64_t count, T value, T* out) {
  forBlocks(count, kBlockElements * 16,
            [&](int64_t begin, int64_t end) { std::fill(out + begin, out + end, value); });
}

template void copyElements(DeviceQueue*, const StridedCopy&, const uint8_t*, uint8_t*);
template void copyElements(DeviceQueue*, const StridedCopy&, const uint16_t*, uint16_t*);
template void copyElements(DeviceQueue*, const StridedCopy&, const uint32_t*, uint32_t*);
template void copyElements(DeviceQueue*, const StridedCopy&, const uint64_t*, uint64_t*);
template void fillElements(DeviceQueue*, int64_t, uint8_t, uint8_t*);
template void fillElements(DeviceQueue*, int64_t, uint16_t, uint16_t*);
template void fillElements(DeviceQueue*, int64_t, uint32_t, uint32_t*);
template void fillElements(DeviceQueue*, int64_t, uint64_t, uint64_t*);

}  // namespace pipeshard::kernels
