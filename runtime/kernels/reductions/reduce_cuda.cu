#include <limits>
#include <type_traits>

#include "runtime/kernels/base/cuda_launch.h"
#include "runtime/kernels/base/cuda_plans.h"
#include "runtime/kernels/reductions/reduce.h"
#include "runtime/kernels/reductions/reduce_terms.h"

namespace pipeshard::kernels {

// Where the elements of an output are: its own start, and those of its rows.
struct ReduceWalk {
  AxisWalk<1> kept, rows;
  int64_t outputs = 0;
  int64_t elements = 0;  // of an output
  int64_t inner = 0;     // of the plan
  bool inner_reduced = false;

  __device__ int64_t startOf(int64_t output) const {
    int64_t at[1] = {inner_reduced ? 0 : output % inner};
    kept.offsetsOf(inner_reduced ? output : output / inner, at);
    return at[0];
  }
  __device__ int64_t placeOf(int64_t element) const {
    int64_t at[1] = {inner_reduced ? element % inner : 0};
    rows.offsetsOf(inner_reduced ? element / inner : element, at);
    return at[0];
  }
};

// One block for each output: a thread takes every so many elements, in double (integers: int64), then
// pairwise. The order follows from the sizes alone.
template <Reduction R, typename T>
__global__ void reduceBlockKernel(ReduceWalk walk, const T* x, T* y) {
  __shared__ Wide<T> values[kBlockThreads];
  for (int64_t output = blockIdx.x; output < walk.outputs; output += gridDim.x) {
    const T* from = x + walk.startOf(output);
    Wide<T> value = neutral<R, T, Wide<T>>();
    for (int64_t i = threadIdx.x; i < walk.elements; i += blockDim.x)
      value = combine<R, Wide<T>>(value, static_cast<Wide<T>>(term<R, T>(from[walk.placeOf(i)])));
    values[threadIdx.x] = value;
    __syncthreads();
    for (unsigned width = kBlockThreads / 2; width > 0; width /= 2) {
      if (threadIdx.x < width)
        values[threadIdx.x] = combine<R, Wide<T>>(values[threadIdx.x], values[threadIdx.x + width]);
      __syncthreads();
    }
    // Thread 0 alone reads values[0] here, and writes it next: no barrier.
    if (threadIdx.x == 0) y[output] = finishReduction<R, T>(values[0], walk.elements);
  }
}

// Few elements for each output: one thread does them all.
template <Reduction R, typename T>
__global__ void reduceThreadKernel(ReduceWalk walk, const T* x, T* y) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t output = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; output < walk.outputs;
       output += step) {
    const T* from = x + walk.startOf(output);
    Wide<T> value = neutral<R, T, Wide<T>>();
    for (int64_t i = 0; i < walk.elements; ++i)
      value = combine<R, Wide<T>>(value, static_cast<Wide<T>>(term<R, T>(from[walk.placeOf(i)])));
    y[output] = finishReduction<R, T>(value, walk.elements);
  }
}

template <Reduction R, typename T>
void reduceOnDevice(cudaStream_t stream, const ReduceWalk& walk, const T* x, T* y) {
  constexpr int64_t kFew = 64;
  if (walk.elements <= kFew)
    return launch<reduceThreadKernel<R, T>>(blocksFor(walk.outputs), dim3(kBlockThreads), stream, walk, x, y);
  const auto blocks = static_cast<unsigned>(walk.outputs < kMostBlocks ? walk.outputs : kMostBlocks);
  launch<reduceBlockKernel<R, T>>(dim3(blocks), dim3(kBlockThreads), stream, walk, x, y);
}

inline ReduceWalk walkOf(const ReducePlan& plan) {
  ReduceWalk walk;
  bool fits = true;
  for (size_t a = 0; a < plan.kept_axes.sizes.size(); ++a)
    fits = fits && walk.kept.add(plan.kept_axes.sizes[a], {plan.kept_axes.strides[a]});
  for (size_t a = 0; a < plan.row_axes.sizes.size(); ++a)
    fits = fits && walk.rows.add(plan.row_axes.sizes[a], {plan.row_axes.strides[a]});
  if (!fits) refuseAxes(plan.kept_axes.sizes.size() + plan.row_axes.sizes.size() + 1);
  walk.inner = plan.inner;
  walk.inner_reduced = plan.inner_reduced;
  walk.outputs = plan.kept * (plan.inner_reduced ? 1 : plan.inner);
  walk.elements = plan.count;
  return walk;
}

template <typename T>
void runReduce(DeviceQueue* queue, const ReducePlan& plan, Reduction reduction, const T* x, T* y, double*) {
  const ReduceWalk walk = walkOf(plan);
  const cudaStream_t stream = streamOf(queue);
  if (walk.outputs == 0) return;
  if (reduction == Reduction::kMax) return reduceOnDevice<Reduction::kMax, T>(stream, walk, x, y);
  if (reduction == Reduction::kMin) return reduceOnDevice<Reduction::kMin, T>(stream, walk, x, y);
  if constexpr (sizeof(T) >= 4) {
    switch (reduction) {
      case Reduction::kSum: return reduceOnDevice<Reduction::kSum, T>(stream, walk, x, y);
      case Reduction::kMean: return reduceOnDevice<Reduction::kMean, T>(stream, walk, x, y);
      case Reduction::kProduct: return reduceOnDevice<Reduction::kProduct, T>(stream, walk, x, y);
      case Reduction::kL1: return reduceOnDevice<Reduction::kL1, T>(stream, walk, x, y);
      case Reduction::kL2: return reduceOnDevice<Reduction::kL2, T>(stream, walk, x, y);
      default: return reduceOnDevice<Reduction::kSumSquare, T>(stream, walk, x, y);
    }
  }
}

template void runReduce(DeviceQueue*, const ReducePlan&, Reduction, const float*, float*, double*);
template void runReduce(DeviceQueue*, const ReducePlan&, Reduction, const double*, double*, double*);
template void runReduce(DeviceQueue*, const ReducePlan&, Reduction, const int32_t*, int32_t*, double*);
template void runReduce(DeviceQueue*, const ReducePlan&, Reduction, const int64_t*, int64_t*, double*);
template void runReduce(DeviceQueue*, const ReducePlan&, Reduction, const int8_t*, int8_t*, double*);
template void runReduce(DeviceQueue*, const ReducePlan&, Reduction, const uint8_t*, uint8_t*, double*);
template void runReduce(DeviceQueue*, const ReducePlan&, Reduction, const bool*, bool*, double*);

}  // namespace pipeshard::kernels
