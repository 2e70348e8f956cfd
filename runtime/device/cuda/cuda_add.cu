#include "runtime/device/cuda/cuda_add.h"

#include "runtime/kernels/base/cuda_launch.h"

namespace pipeshard {
template <typename T>
__global__ void addPartKernel(const T* part, T* total, int64_t count) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) total[i] += part[i];
}

template <typename T>
bool add(cudaStream_t stream, const void* part, void* total, size_t count) {
  const auto elements = static_cast<int64_t>(count);
  kernels::launch<addPartKernel<T>>(kernels::blocksFor(elements), dim3(kernels::kBlockThreads), stream,
                                    static_cast<const T*>(part), static_cast<T*>(total), elements);
  return true;
}

bool addOnDevice(cudaStream_t stream, DataType type, const void* part, void* total, size_t count) {
  switch (type) {
    case DataType::kFloat32: return add<float>(stream, part, total, count);
    case DataType::kFloat64: return add<double>(stream, part, total, count);
    // As unsigned numbers, which wrap around.
    case DataType::kInt32: return add<uint32_t>(stream, part, total, count);
    case DataType::kInt64: return add<uint64_t>(stream, part, total, count);
    default: return false;
  }
}

}  // namespace pipeshard
