#include "runtime/kernels/base/cuda_launch.h"
#include "runtime/kernels/base/cuda_plans.h"
#include "runtime/kernels/base/data_fault.h"
#include "runtime/kernels/base/data_faults.h"

namespace pipeshard::kernels {
constexpr int64_t kNone = INT64_MAX;

// One block: each thread looks at every so many elements, and the least position that one has found is kept.
// No atomics: the first one is the same in every run.
template <typename T, typename Good>
__device__ void findFirst(int64_t count, const T* elements, Good is_good, DataFault* fault) {
  __shared__ int64_t firsts[kBlockThreads];
  int64_t first = kNone;
  for (int64_t i = threadIdx.x; i < count && first == kNone; i += blockDim.x) {
    if (!is_good(elements[i], i)) first = i;
  }
  firsts[threadIdx.x] = first;
  __syncthreads();
  for (unsigned width = kBlockThreads / 2; width > 0; width /= 2) {
    if (threadIdx.x < width && firsts[threadIdx.x + width] < firsts[threadIdx.x])
      firsts[threadIdx.x] = firsts[threadIdx.x + width];
    __syncthreads();
  }
  if (threadIdx.x != 0 || firsts[0] == kNone || fault->found != 0) return;
  fault->found = 1;
  fault->position = firsts[0];
  fault->value = static_cast<int64_t>(elements[firsts[0]]);
}

template <typename T>
__global__ void findZeroKernel(int64_t count, const T* elements, DataFault* fault) {
  findFirst(
      count, elements, [](T x, int64_t) { return x != 0; }, fault);
}

template <typename T>
__global__ void findOutsideKernel(int64_t count, const T* elements, int64_t low, int64_t high,
                                  bool has_ignored, int64_t ignored, DataFault* fault) {
  findFirst(
      count, elements, [=](T x, int64_t) { return (x >= low && x < high) || (has_ignored && x == ignored); },
      fault);
}

struct TupleSizes {
  int64_t depth = 0;
  int64_t sizes[kMostAxes] = {};
};

__global__ void findOutsideTuplesKernel(int64_t count, const int64_t* entries,
                                        const __grid_constant__ TupleSizes of, DataFault* fault) {
  findFirst(
      count, entries,
      [&](int64_t x, int64_t i) { return x >= -of.sizes[i % of.depth] && x < of.sizes[i % of.depth]; },
      fault);
}

const bool kKernelsThrow = false;

template <typename T>
void findZero(DeviceQueue* queue, int64_t count, const T* elements, DataFault* fault) {
  launch<findZeroKernel<T>>(dim3(1), dim3(kBlockThreads), streamOf(queue), count, elements, fault);
}

template <typename T>
void findOutside(DeviceQueue* queue, int64_t count, const T* elements, int64_t low, int64_t high,
                 std::optional<int64_t> ignored, DataFault* fault) {
  launch<findOutsideKernel<T>>(dim3(1), dim3(kBlockThreads), streamOf(queue), count, elements, low, high,
                               ignored.has_value(), ignored.value_or(0), fault);
}

void findOutsideTuples(DeviceQueue* queue, int64_t count, const int64_t* entries,
                       const std::vector<int64_t>& sizes, DataFault* fault) {
  if (count == 0) return;
  if (sizes.size() > kMostAxes) refuseAxes(sizes.size());
  TupleSizes of;
  for (const int64_t size : sizes) of.sizes[of.depth++] = size;
  launch<findOutsideTuplesKernel>(dim3(1), dim3(kBlockThreads), streamOf(queue), count, entries, of, fault);
}

template void findZero(DeviceQueue*, int64_t, const int32_t*, DataFault*);
template void findZero(DeviceQueue*, int64_t, const int64_t*, DataFault*);
template void findZero(DeviceQueue*, int64_t, const int8_t*, DataFault*);
template void findZero(DeviceQueue*, int64_t, const uint8_t*, DataFault*);
template void findOutside(DeviceQueue*, int64_t, const int32_t*, int64_t, int64_t, std::optional<int64_t>,
                          DataFault*);
template void findOutside(DeviceQueue*, int64_t, const int64_t*, int64_t, int64_t, std::optional<int64_t>,
                          DataFault*);

}  // namespace pipeshard::kernels
