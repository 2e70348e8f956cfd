// Pools over windows of images, and their gradients, on any device.
#pragma once

#include <cstdint>
#include <functional>

#include "runtime/kernels/products/window.h"

namespace pipeshard {
class DeviceQueue;
}

namespace pipeshard::kernels {

// Offsets in an image fit into 32 bits.
struct Pool {
  Window window;
  int64_t batch = 0;
  int64_t channels = 0;
  int64_t planes = 0;  // batch * channels
};

// The first largest element in sight of each output position, and its number in the tensor (-1: none is in
// sight), by columns first where `column_major`; indices: nullptr where nobody wants them. T: float, double,
// as below.
template <typename T>
using LargestPooling = std::function<void(DeviceQueue* queue, const T* x, T* y, int64_t* indices)>;
// What a device has worked out before the first step. `numbered`: somebody wants indices.
template <typename T>
LargestPooling<T> preparePoolLargest(const Pool& pool, bool column_major, bool numbered);
// dx = dy of the positions whose first largest element it is, added in their order. `places`: room for one by
// output position where kPlacesOfLargest.
template <typename T>
void poolLargestGrad(DeviceQueue* queue, const Pool& pool, const T* dy, const T* x, int32_t* places, T* dx);
extern const bool kPlacesOfLargest;

template <typename T>
using AveragePooling = std::function<void(DeviceQueue* queue, const T* x, T* y)>;
template <typename T>
AveragePooling<T> preparePoolAverage(const Pool& pool, bool with_padding);
// Every element in sight gets its share.
template <typename T>
void poolAverageGrad(DeviceQueue* queue, const Pool& pool, bool with_padding, const T* dy, T* dx);

// One number for each plane of `size` elements: the largest (NaN, if there is one), or the average. size > 0.
template <typename T>
void poolAll(DeviceQueue* queue, bool largest, int64_t planes, int64_t size, const T* x, T* y);

// Of a source that defines them.
#define PIPESHARD_POOLING_INSTANCES(T)                                                        \
  template LargestPooling<T> preparePoolLargest(const Pool&, bool, bool);                     \
  template void poolLargestGrad(DeviceQueue*, const Pool&, const T*, const T*, int32_t*, T*); \
  template AveragePooling<T> preparePoolAverage(const Pool&, bool);                           \
  template void poolAverageGrad(DeviceQueue*, const Pool&, bool, const T*, T*);               \
  template void poolAll(DeviceQueue*, bool, int64_t, int64_t, const T*, T*);

}  // namespace pipeshard::kernels
