#include "runtime/kernels/base/broadcast.h"
#include "runtime/kernels/base/cuda_launch.h"
#include "runtime/kernels/base/cuda_plans.h"
#include "runtime/kernels/elementwise/binary_functors.h"

namespace pipeshard::kernels {
// The axes of all elements, with the operands' steps.
template <int Operands>
AxisWalk<Operands> walkOf(const Broadcast& plan) {
  const auto steps = [](const BroadcastOffsets& strides) {
    std::array<int64_t, Operands> own{};
    for (int i = 0; i < Operands; ++i) own[i] = strides[i];
    return own;
  };
  AxisWalk<Operands> walk;
  bool fits = true;
  for (size_t a = 0; a < plan.outer_sizes.size(); ++a)
    fits = fits && walk.add(plan.outer_sizes[a], steps(plan.outer_strides[a]));
  if (!fits || !walk.add(plan.length, steps(plan.inner_strides))) refuseAxes(plan.outer_sizes.size() + 1);
  return walk;
}

template <typename Op, typename T, typename R, typename U>
__global__ void binaryKernel(AxisWalk<2> walk, int64_t count, const T* a, const U* b, R* y) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    int64_t offsets[2] = {0, 0};
    walk.offsetsOf(i, offsets);
    y[i] = Op::apply(a[offsets[0]], b[offsets[1]]);
  }
}

// Of an operand that is not read.
template <typename T, typename R, typename U>
__global__ void takeSecondKernel(AxisWalk<2> walk, int64_t count, const U* b, R* y) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    int64_t offsets[2] = {0, 0};
    walk.offsetsOf(i, offsets);
    y[i] = b[offsets[1]];
  }
}

template <typename T>
__global__ void whereKernel(AxisWalk<3> walk, int64_t count, const uint8_t* condition, const T* x, const T* y,
                            T* out) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    int64_t offsets[3] = {0, 0, 0};
    walk.offsetsOf(i, offsets);
    out[i] = condition[offsets[0]] != 0 ? x[offsets[1]] : y[offsets[2]];
  }
}

template <typename Op, typename T, typename R, typename U>
void applyBinary(DeviceQueue* queue, const Broadcast& plan, const T* a, const U* b, R* y) {
  const int64_t count = plan.rows * plan.length;
  if (count == 0) return;
  const AxisWalk<2> walk = walkOf<2>(plan);
  if constexpr (std::is_same_v<Op, TakeSecondOp>)
    launch<takeSecondKernel<T, R, U>>(blocksFor(count), dim3(kBlockThreads), streamOf(queue), walk, count, b,
                                      y);
  else
    launch<binaryKernel<Op, T, R, U>>(blocksFor(count), dim3(kBlockThreads), streamOf(queue), walk, count, a,
                                      b, y);
}

template <typename T>
void applyWhere(DeviceQueue* queue, const Broadcast& plan, const uint8_t* condition, const T* x, const T* y,
                T* out) {
  const int64_t count = plan.rows * plan.length;
  if (count == 0) return;
  launch<whereKernel<T>>(blocksFor(count), dim3(kBlockThreads), streamOf(queue), walkOf<3>(plan), count,
                         condition, x, y, out);
}

#define PIPESHARD_INSTANCE(Op, T, R, U) \
  template void applyBinary<Op, T, R, U>(DeviceQueue*, const Broadcast&, const T*, const U*, R*);
PIPESHARD_BINARY_INSTANCES(PIPESHARD_INSTANCE)
#undef PIPESHARD_INSTANCE

template void applyWhere(DeviceQueue*, const Broadcast&, const uint8_t*, const uint8_t*, const uint8_t*,
                         uint8_t*);
template void applyWhere(DeviceQueue*, const Broadcast&, const uint8_t*, const uint16_t*, const uint16_t*,
                         uint16_t*);
template void applyWhere(DeviceQueue*, const Broadcast&, const uint8_t*, const uint32_t*, const uint32_t*,
                         uint32_t*);
template void applyWhere(DeviceQueue*, const Broadcast&, const uint8_t*, const uint64_t*, const uint64_t*,
                         uint64_t*);

}  // namespace pipeshard::kernels
