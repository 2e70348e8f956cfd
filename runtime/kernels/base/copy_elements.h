// Copies between strided views, and bytes of one value, on any device.
#pragma once

#include <cstdint>

namespace pipeshard {
class DeviceQueue;
}

namespace pipeshard::kernels {

struct StridedCopy;

// T: the unsigned integer of the elements' size.
template <typename T>
void copyElements(DeviceQueue* queue, const StridedCopy& copy, const T* in, T* out);

void fillBytes(DeviceQueue* queue, int64_t count, uint8_t value, uint8_t* out);

}  // namespace pipeshard::kernels
