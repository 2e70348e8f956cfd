#include "runtime/kernels/base/cuda_launch.h"
#include "runtime/kernels/elementwise/cast.h"

namespace pipeshard::kernels {

// In: Stored<From>.
template <typename From, typename To, typename In>
__global__ void castKernel(int64_t count, const In* x, To* y) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    if constexpr (std::is_same_v<From, bool>)
      y[i] = castElement<To>(x[i] != 0 ? 1.0f : 0.0f);
    else
      y[i] = castElement<To, From>(x[i]);
  }
}

template <typename From, typename To>
void applyCast(DeviceQueue* queue, int64_t count, const Stored<From>* x, To* y) {
  if (count == 0) return;
  launch<castKernel<From, To, Stored<From>>>(blocksFor(count), dim3(kBlockThreads), streamOf(queue), count, x,
                                             y);
}

#define PIPESHARD_INSTANCE(From, To) \
  template void applyCast<From, To>(DeviceQueue*, int64_t, const Stored<From>*, To*);
PIPESHARD_CAST_INSTANCES(PIPESHARD_INSTANCE)
PIPESHARD_NARROW_CASTS(PIPESHARD_INSTANCE, Half)
PIPESHARD_NARROW_CASTS(PIPESHARD_INSTANCE, Bfloat)
#undef PIPESHARD_INSTANCE

}  // namespace pipeshard::kernels
