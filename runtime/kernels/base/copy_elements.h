// Copies between strided views, and elements of one value, on any device.
#pragma once

#include <cstdint>
#include <type_traits>

namespace pipeshard {
class DeviceQueue;
}

namespace pipeshard::kernels {

struct StridedCopy;

// Elements as what they are moved as: the unsigned integer of their size.
template <typename T>
using Bits = std::conditional_t<
    sizeof(T) == 8, uint64_t,
    std::conditional_t<sizeof(T) == 4, uint32_t, std::conditional_t<sizeof(T) == 2, uint16_t, uint8_t>>>;
template <typename T>
const Bits<T>* bitsOf(const T* elements) {
  return reinterpret_cast<const Bits<T>*>(elements);
}
template <typename T>
Bits<T>* bitsOf(T* elements) {
  return reinterpret_cast<Bits<T>*>(elements);
}

// T: Bits, as below.
template <typename T>
void copyElements(DeviceQueue* queue, const StridedCopy& copy, const T* in, T* out);

template <typename T>
void fillElements(DeviceQueue* queue, int64_t count, T value, T* out);

}  // namespace pipeshard::kernels
