#include <limits>

#include "runtime/kernels/base/cuda_block.h"
#include "runtime/kernels/base/cudnn_use.h"
#include "runtime/kernels/elementwise/binary_functors.h"
#include "runtime/kernels/products/cudnn_pooling.h"
#include "runtime/kernels/products/pooling.h"
#include "runtime/kernels/products/window_positions.h"

namespace pipeshard::kernels {

template <typename T>
__global__ void poolLargestKernel(Pool pool, bool column_major, const T* x, T* y, int64_t* indices) {
  const Window& w = pool.window;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  const int64_t all = pool.planes * w.outSize();
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < all; i += step) {
    const int64_t plane = i / w.outSize();
    const T* image = x + plane * w.inSize();
    const int64_t place = placeOfLargest(w, image, i % w.outSize());
    y[i] = place < 0 ? std::numeric_limits<T>::lowest() : image[place];
    if (indices != nullptr) indices[i] = numberOfPlace(w, plane, place, column_major);
  }
}

template <typename T>
__global__ void placesOfLargestKernel(Pool pool, const T* x, int32_t* places) {
  const Window& w = pool.window;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  const int64_t all = pool.planes * w.outSize();
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < all; i += step)
    places[i] = static_cast<int32_t>(placeOfLargest(w, x + i / w.outSize() * w.inSize(), i % w.outSize()));
}

template <typename T>
__global__ void poolLargestGradKernel(Pool pool, const T* dy, const int32_t* places, T* dx) {
  const Window& w = pool.window;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  const int64_t all = pool.planes * w.inSize();
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < all; i += step) {
    const int64_t outputs = i / w.inSize() * w.outSize();
    const int64_t offset = i % w.inSize();
    T sum = 0;
    forViewers(w, offset, [&](int64_t o, int64_t) {
      if (places[outputs + o] == offset) sum += dy[outputs + o];
    });
    dx[i] = sum;
  }
}

template <typename T>
__global__ void poolAverageKernel(Pool pool, bool with_padding, const T* x, T* y) {
  const Window& w = pool.window;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  const int64_t all = pool.planes * w.outSize();
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < all; i += step)
    y[i] = averageAt(w, x + i / w.outSize() * w.inSize(), i % w.outSize(), with_padding);
}

template <typename T>
__global__ void poolAverageGradKernel(Pool pool, bool with_padding, const T* dy, T* dx) {
  const Window& w = pool.window;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  const int64_t all = pool.planes * w.inSize();
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < all; i += step) {
    const T* shares = dy + i / w.inSize() * w.outSize();
    T sum = 0;
    forViewers(w, i % w.inSize(), [&](int64_t o, int64_t) {
      sum += shares[o] / static_cast<T>(averageCount(w, o, with_padding));
    });
    dx[i] = sum;
  }
}

// A block for each plane.
template <typename T>
__global__ void poolAllKernel(bool largest, int64_t planes, int64_t size, const T* x, T* y) {
  __shared__ double values[kBlockThreads];
  for (int64_t plane = blockIdx.x; plane < planes; plane += gridDim.x) {
    const T* from = x + plane * size;
    auto value = largest ? static_cast<double>(from[0]) : 0.0;
    for (int64_t i = threadIdx.x; i < size; i += blockDim.x) {
      const auto element = static_cast<double>(from[i]);
      value = largest ? MaxOp::apply(value, element) : value + element;
    }
    value =
        combineBlock(value, values, [=](double a, double b) { return largest ? MaxOp::apply(a, b) : a + b; });
    if (threadIdx.x == 0) y[plane] = static_cast<T>(largest ? value : value / static_cast<double>(size));
  }
}

template <typename T>
LargestPooling<T> preparePoolLargest(const Pool& pool, bool column_major, bool numbered) {
  if (!numbered) {  // cuDNN has no indices
    if (const CudnnPooling<T> by_cudnn = noted(poolByCudnn<T>(CudnnPool::kLargest, pool)))
      return [by_cudnn](DeviceQueue* queue, const T* x, T* y, int64_t*) { by_cudnn(queue, x, y); };
  }
  return [pool, column_major](DeviceQueue* queue, const T* x, T* y, int64_t* indices) {
    if (const int64_t all = pool.planes * pool.window.outSize(); all > 0)
      launch<poolLargestKernel<T>>(blocksFor(all), dim3(kBlockThreads), streamOf(queue), pool, column_major,
                                   x, y, indices);
  };
}

const bool kPlacesOfLargest = true;

template <typename T>
void poolLargestGrad(DeviceQueue* queue, const Pool& pool, const T* dy, const T* x, int32_t* places, T* dx) {
  const cudaStream_t stream = streamOf(queue);
  const int64_t outputs = pool.planes * pool.window.outSize();
  const int64_t inputs = pool.planes * pool.window.inSize();
  if (outputs > 0)
    launch<placesOfLargestKernel<T>>(blocksFor(outputs), dim3(kBlockThreads), stream, pool, x, places);
  if (inputs > 0)
    launch<poolLargestGradKernel<T>>(blocksFor(inputs), dim3(kBlockThreads), stream, pool, dy,
                                     static_cast<const int32_t*>(places), dx);
}

template <typename T>
AveragePooling<T> preparePoolAverage(const Pool& pool, bool with_padding) {
  const CudnnPool kind = with_padding ? CudnnPool::kAverageWithPadding : CudnnPool::kAverage;
  if (CudnnPooling<T> by_cudnn = noted(poolByCudnn<T>(kind, pool))) return by_cudnn;
  return [pool, with_padding](DeviceQueue* queue, const T* x, T* y) {
    if (const int64_t all = pool.planes * pool.window.outSize(); all > 0)
      launch<poolAverageKernel<T>>(blocksFor(all), dim3(kBlockThreads), streamOf(queue), pool, with_padding,
                                   x, y);
  };
}

template <typename T>
void poolAverageGrad(DeviceQueue* queue, const Pool& pool, bool with_padding, const T* dy, T* dx) {
  if (const int64_t all = pool.planes * pool.window.inSize(); all > 0)
    launch<poolAverageGradKernel<T>>(blocksFor(all), dim3(kBlockThreads), streamOf(queue), pool, with_padding,
                                     dy, dx);
}

template <typename T>
void poolAll(DeviceQueue* queue, bool largest, int64_t planes, int64_t size, const T* x, T* y) {
  if (planes > 0)
    launch<poolAllKernel<T>>(aBlockEach(planes), dim3(kBlockThreads), streamOf(queue), largest, planes, size,
                             x, y);
}

PIPESHARD_POOLING_INSTANCES(float)
PIPESHARD_POOLING_INSTANCES(double)

}  // namespace pipeshard::kernels
