// Pools over windows of images, and their gradients, on any device.
#pragma once

#include <cstdint>

#include "runtime/kernels/products/window.h"

namespace pipeshard {
class DeviceQueue;
}

namespace pipeshard::kernels {

// Offsets in an image fit into 32 bits.
struct Pool {
  Window window;
  int64_t planes = 0;  // batch * channels
};

// The first largest element in sight of each output position, and its number in the tensor (-1: none is in
// sight), by columns first where `column_major`; indices: nullptr where nobody wants them. T: float, double,
// as below.
template <typename T>
void poolLargest(DeviceQueue* queue, const Pool& pool, bool column_major, const T* x, T* y, int64_t* indices);
// dx = dy of the positions whose first largest element it is, added in their order. `places`: room for one by
// output position where kPlacesOfLargest.
template <typename T>
void poolLargestGrad(DeviceQueue* queue, const Pool& pool, const T* dy, const T* x, int32_t* places, T* dx);
extern const bool kPlacesOfLargest;

template <typename T>
void poolAverage(DeviceQueue* queue, const Pool& pool, bool with_padding, const T* x, T* y);
// Every element in sight gets its share.
template <typename T>
void poolAverageGrad(DeviceQueue* queue, const Pool& pool, bool with_padding, const T* dy, T* dx);

// One number for each plane of `size` elements: the largest, or the average. size > 0.
template <typename T>
void poolAll(DeviceQueue* queue, bool largest, int64_t planes, int64_t size, const T* x, T* y);

// Of a source that defines them.
#define PIPESHARD_POOLING_INSTANCES(T)                                                        \
  template void poolLargest(DeviceQueue*, const Pool&, bool, const T*, T*, int64_t*);         \
  template void poolLargestGrad(DeviceQueue*, const Pool&, const T*, const T*, int32_t*, T*); \
  template void poolAverage(DeviceQueue*, const Pool&, bool, const T*, T*);                   \
  template void poolAverageGrad(DeviceQueue*, const Pool&, bool, const T*, T*);               \
  template void poolAll(DeviceQueue*, bool, int64_t, int64_t, const T*, T*);

}  // namespace pipeshard::kernels
