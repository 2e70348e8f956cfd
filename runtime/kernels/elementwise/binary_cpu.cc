#include "runtime/kernels/elementwise/binary_functors.h"
#include "runtime/kernels/elementwise/binary_loop.h"

namespace pipeshard::kernels {
namespace {

template <typename T, int StepCondition, int StepX, int StepY>
struct WhereLoop {
  PIPESHARD_INLINE static void run(const uint8_t* condition, const T* x, const T* y, T* out, int64_t count) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const T yes = x[i * StepX];
      const T no = y[i * StepY];
      out[i] = condition[i * StepCondition] != 0 ? yes : no;
    }
  }
};

template <typename T>
void runWhere(const Broadcast& plan, const uint8_t* condition, const T* x, const T* y, T* out) {
  const auto& step = plan.inner_strides;
  forBroadcast(plan, [&](int64_t at, const BroadcastOffsets& from, int64_t count) {
    const uint8_t* c = condition + from[0];
    const T* a = x + from[1];
    const T* b = y + from[2];
    switch (step[0] * 4 + step[1] * 2 + step[2]) {
      case 7: return runVectorised<WhereLoop<T, 1, 1, 1>>(c, a, b, out + at, count);
      case 6: return runVectorised<WhereLoop<T, 1, 1, 0>>(c, a, b, out + at, count);
      case 5: return runVectorised<WhereLoop<T, 1, 0, 1>>(c, a, b, out + at, count);
      case 4: return runVectorised<WhereLoop<T, 1, 0, 0>>(c, a, b, out + at, count);
      case 3: return runVectorised<WhereLoop<T, 0, 1, 1>>(c, a, b, out + at, count);
      case 2: return runVectorised<WhereLoop<T, 0, 1, 0>>(c, a, b, out + at, count);
      case 1: return runVectorised<WhereLoop<T, 0, 0, 1>>(c, a, b, out + at, count);
      default: return runVectorised<WhereLoop<T, 0, 0, 0>>(c, a, b, out + at, count);
    }
  });
}

}  // namespace

template <typename Op, typename T, typename R, typename U>
void applyBinary(DeviceQueue*, const Broadcast& plan, const T* a, const U* b, R* y) {
  runBinary<Op, T, R, U>(plan, a, b, y);
}

#define PIPESHARD_INSTANCE(Op, T, R, U) \
  template void applyBinary<Op, T, R, U>(DeviceQueue*, const Broadcast&, const T*, const U*, R*);
PIPESHARD_BINARY_INSTANCES(PIPESHARD_INSTANCE)
#undef PIPESHARD_INSTANCE

template <typename T>
void applyWhere(DeviceQueue*, const Broadcast& plan, const uint8_t* condition, const T* x, const T* y,
                T* out) {
  runWhere(plan, condition, x, y, out);
}

template void applyWhere(DeviceQueue*, const Broadcast&, const uint8_t*, const uint8_t*, const uint8_t*,
                         uint8_t*);
template void applyWhere(DeviceQueue*, const Broadcast&, const uint8_t*, const uint16_t*, const uint16_t*,
                         uint16_t*);
template void applyWhere(DeviceQueue*, const Broadcast&, const uint8_t*, const uint32_t*, const uint32_t*,
                         uint32_t*);
template void applyWhere(DeviceQueue*, const Broadcast&, const uint8_t*, const uint64_t*, const uint64_t*,
                         uint64_t*);

}  // namespace pipeshard::kernels
