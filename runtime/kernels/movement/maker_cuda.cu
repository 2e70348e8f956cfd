#include <cstring>

#include "runtime/kernels/base/cuda_launch.h"
#include "runtime/kernels/movement/maker.h"

namespace pipeshard::kernels {

constexpr int64_t kStoredAtOnce = 2048;

// Bytes that a launch brings along.
struct BroughtBytes {
  uint8_t bytes[kStoredAtOnce] = {};
};

__global__ void storeBytesKernel(BroughtBytes from, int64_t count, uint8_t* out) {
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) out[i] = from.bytes[i];
}

// As arguments of launches, so that neither the host nor the queue waits.
void storeBytes(DeviceQueue* queue, std::span<const std::byte> bytes, std::byte* out) {
  for (size_t begin = 0; begin < bytes.size(); begin += kStoredAtOnce) {
    const std::span<const std::byte> part =
        bytes.subspan(begin, std::min<size_t>(kStoredAtOnce, bytes.size() - begin));
    BroughtBytes brought;
    std::memcpy(brought.bytes, part.data(), part.size());
    launch<storeBytesKernel>(dim3(1), dim3(kBlockThreads), streamOf(queue), brought,
                             static_cast<int64_t>(part.size()), reinterpret_cast<uint8_t*>(out + begin));
  }
}

template <typename T>
__global__ void fillRangeKernel(int64_t count, const T* start, const T* delta, T* out) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step)
    out[i] = static_cast<T>(*start + static_cast<T>(i) * *delta);
}

template <typename T>
__global__ void fillDiagonalKernel(int64_t count, int64_t columns, int64_t diagonal, T one, T* out) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step)
    out[i] = i % columns - i / columns == diagonal ? one : T(0);
}

template <typename V, typename I>
__global__ void fillOneHotKernel(AxisSplit split, int64_t count, const I* indices, const V* values, V* out) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const int64_t place = i / split.inner % split.size;
    const auto index =
        static_cast<int64_t>(indices[i / split.inner / split.size * split.inner + i % split.inner]);
    out[i] = values[place == index || place == index + split.size ? 1 : 0];
  }
}

template <typename T>
__global__ void keepTriangleKernel(TrianglePlan plan, int64_t count, const T* x, T* out) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step)
    out[i] = (i % plan.columns >= plan.edge(i / plan.columns)) == plan.upper ? x[i] : T(0);
}

template <typename T>
void fillRange(DeviceQueue* queue, int64_t count, const T* start, const T* delta, T* out) {
  if (count > 0)
    launch<fillRangeKernel<T>>(blocksFor(count), dim3(kBlockThreads), streamOf(queue), count, start, delta,
                               out);
}

template <typename T>
void fillDiagonal(DeviceQueue* queue, int64_t rows, int64_t columns, int64_t diagonal, T one, T* out) {
  const int64_t count = rows * columns;
  if (count > 0)
    launch<fillDiagonalKernel<T>>(blocksFor(count), dim3(kBlockThreads), streamOf(queue), count, columns,
                                  diagonal, one, out);
}

template <typename V, typename I>
void fillOneHot(DeviceQueue* queue, const AxisSplit& split, const I* indices, const V* values, V* out) {
  const int64_t count = split.outer * split.size * split.inner;
  if (count > 0)
    launch<fillOneHotKernel<V, I>>(blocksFor(count), dim3(kBlockThreads), streamOf(queue), split, count,
                                   indices, values, out);
}

template <typename T>
void keepTriangle(DeviceQueue* queue, const TrianglePlan& plan, const T* x, T* out) {
  const int64_t count = plan.batch * plan.rows * plan.columns;
  if (count > 0)
    launch<keepTriangleKernel<T>>(blocksFor(count), dim3(kBlockThreads), streamOf(queue), plan, count, x,
                                  out);
}

PIPESHARD_MAKER_INSTANCES

}  // namespace pipeshard::kernels
