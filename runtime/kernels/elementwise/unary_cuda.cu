#include "runtime/kernels/base/cuda_launch.h"
#include "runtime/kernels/elementwise/unary_functors.h"

namespace pipeshard::kernels {
template <typename Op, typename T, typename R>
__global__ void unaryKernel(UnaryParameters parameters, int64_t count, const T* x, R* y) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step)
    y[i] = Op::apply(x[i], parameters);
}

template <typename T>
__global__ void clipKernel(ClipBounds<T> bounds, int64_t count, const T* x, T* y) {
  const T low = bounds.low_at != nullptr ? *bounds.low_at : bounds.low;
  const T high = bounds.high_at != nullptr ? *bounds.high_at : bounds.high;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const T raised = x[i] < low ? low : x[i];
    y[i] = raised > high ? high : raised;
  }
}

template <typename Op, typename T, typename R>
void applyUnary(DeviceQueue* queue, const UnaryParameters& parameters, int64_t count, const T* x, R* y) {
  if (count == 0) return;
  launch<unaryKernel<Op, T, R>>(blocksFor(count), dim3(kBlockThreads), streamOf(queue), parameters, count, x,
                                y);
}

template <typename T>
void applyClip(DeviceQueue* queue, const ClipBounds<T>& bounds, int64_t count, const T* x, T* y) {
  if (count == 0) return;
  launch<clipKernel<T>>(blocksFor(count), dim3(kBlockThreads), streamOf(queue), bounds, count, x, y);
}

#define PIPESHARD_INSTANCE(Op, T, R) \
  template void applyUnary<Op, T, R>(DeviceQueue*, const UnaryParameters&, int64_t, const T*, R*);
PIPESHARD_UNARY_INSTANCES(PIPESHARD_INSTANCE)
#undef PIPESHARD_INSTANCE
template void applyClip(DeviceQueue*, const ClipBounds<float>&, int64_t, const float*, float*);
template void applyClip(DeviceQueue*, const ClipBounds<double>&, int64_t, const double*, double*);
template void applyClip(DeviceQueue*, const ClipBounds<int32_t>&, int64_t, const int32_t*, int32_t*);
template void applyClip(DeviceQueue*, const ClipBounds<int64_t>&, int64_t, const int64_t*, int64_t*);
template void applyClip(DeviceQueue*, const ClipBounds<int8_t>&, int64_t, const int8_t*, int8_t*);
template void applyClip(DeviceQueue*, const ClipBounds<uint8_t>&, int64_t, const uint8_t*, uint8_t*);

}  // namespace pipeshard::kernels
