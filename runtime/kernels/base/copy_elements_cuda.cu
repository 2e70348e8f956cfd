#include "runtime/kernels/base/copy_elements.h"
#include "runtime/kernels/base/cuda_indices.h"
#include "runtime/kernels/base/cuda_launch.h"

namespace pipeshard::kernels {
template <typename T>
__global__ void copyElementsKernel(AxisWalk<2> walk, int64_t count, const T* in, T* out) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    int64_t offsets[2] = {0, 0};
    walk.offsetsOf(i, offsets);
    out[offsets[1]] = in[offsets[0]];
  }
}

template <typename T>
void copyElements(DeviceQueue* queue, const StridedCopy& copy, const T* in, T* out) {
  const int64_t count = copy.rows * copy.axes.back().size;
  if (count == 0) return;
  launch<copyElementsKernel<T>>(blocksFor(count), dim3(kBlockThreads), streamOf(queue), walkOf(copy), count,
                                in + copy.in_begin, out + copy.out_begin);
}

template <typename T>
__global__ void fillElementsKernel(int64_t count, T value, T* out) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) out[i] = value;
}

template <typename T>
void fillElements(DeviceQueue* queue, int64_t count, T value, T* out) {
  if (count > 0)
    launch<fillElementsKernel<T>>(blocksFor(count), dim3(kBlockThreads), streamOf(queue), count, value, out);
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
