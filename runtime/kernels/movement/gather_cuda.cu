#include "runtime/kernels/base/copy_elements.h"
#include "runtime/kernels/base/cuda_indices.h"
#include "runtime/kernels/base/cuda_launch.h"
#include "runtime/kernels/movement/gather.h"

namespace pipeshard::kernels {

template <typename T, typename I>
__global__ void gatherRowsKernel(AxisSplit split, int64_t count, const T* data, const I* indices, T* out) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  const int64_t all = split.outer * count * split.inner;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < all; i += step) {
    const int64_t column = i % split.inner;
    const int64_t position = i / split.inner % count;
    const int64_t outer = i / split.inner / count;
    const int64_t row = rowOf(indices[position], split.size);
    out[i] = data[(outer * split.size + row) * split.inner + column];
  }
}

// The thread of a row's first mention adds up all of them, so that each element has one writer and a fixed
// order.
template <typename T, typename I>
__global__ void gatherGradRowsKernel(AxisSplit split, int64_t count, const T* dy, const I* indices, bool add,
                                     T* ddata) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  const int64_t all = split.outer * count * split.inner;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < all; i += step) {
    const int64_t column = i % split.inner;
    const int64_t position = i / split.inner % count;
    const int64_t outer = i / split.inner / count;
    const int64_t row = rowOf(indices[position], split.size);
    bool is_first = true;
    for (int64_t p = 0; p < position && is_first; ++p) is_first = rowOf(indices[p], split.size) != row;
    if (!is_first) continue;
    T sum = 0;
    for (int64_t p = position; p < count; ++p) {
      if (rowOf(indices[p], split.size) == row) sum += dy[(outer * count + p) * split.inner + column];
    }
    T* place = ddata + (outer * split.size + row) * split.inner + column;
    *place = add ? *place + sum : sum;
  }
}

template <typename T, typename I>
void gatherRows(DeviceQueue* queue, const AxisSplit& split, int64_t count, const T* data, const I* indices,
                T* out) {
  const int64_t all = split.outer * count * split.inner;
  if (all == 0) return;
  launch<gatherRowsKernel<T, I>>(blocksFor(all), dim3(kBlockThreads), streamOf(queue), split, count, data,
                                 indices, out);
}

template <typename T, typename I>
void gatherGradRows(DeviceQueue* queue, const AxisSplit& split, int64_t count, const T* dy, const I* indices,
                    Mention*, bool add, T* ddata) {
  const int64_t elements = split.outer * split.size * split.inner;
  if (!add) fillElements(queue, elements, Bits<T>(0), bitsOf(ddata));
  const int64_t all = split.outer * count * split.inner;
  if (all == 0) return;
  launch<gatherGradRowsKernel<T, I>>(blocksFor(all), dim3(kBlockThreads), streamOf(queue), split, count, dy,
                                     indices, add, ddata);
}

template void gatherRows(DeviceQueue*, const AxisSplit&, int64_t, const uint8_t*, const int32_t*, uint8_t*);
template void gatherRows(DeviceQueue*, const AxisSplit&, int64_t, const uint8_t*, const int64_t*, uint8_t*);
template void gatherRows(DeviceQueue*, const AxisSplit&, int64_t, const uint16_t*, const int32_t*, uint16_t*);
template void gatherRows(DeviceQueue*, const AxisSplit&, int64_t, const uint16_t*, const int64_t*, uint16_t*);
template void gatherRows(DeviceQueue*, const AxisSplit&, int64_t, const uint32_t*, const int32_t*, uint32_t*);
template void gatherRows(DeviceQueue*, const AxisSplit&, int64_t, const uint32_t*, const int64_t*, uint32_t*);
template void gatherRows(DeviceQueue*, const AxisSplit&, int64_t, const uint64_t*, const int32_t*, uint64_t*);
template void gatherRows(DeviceQueue*, const AxisSplit&, int64_t, const uint64_t*, const int64_t*, uint64_t*);
template void gatherGradRows(DeviceQueue*, const AxisSplit&, int64_t, const float*, const int32_t*, Mention*,
                             bool, float*);
template void gatherGradRows(DeviceQueue*, const AxisSplit&, int64_t, const float*, const int64_t*, Mention*,
                             bool, float*);
template void gatherGradRows(DeviceQueue*, const AxisSplit&, int64_t, const double*, const int32_t*, Mention*,
                             bool, double*);
template void gatherGradRows(DeviceQueue*, const AxisSplit&, int64_t, const double*, const int64_t*, Mention*,
                             bool, double*);

}  // namespace pipeshard::kernels
