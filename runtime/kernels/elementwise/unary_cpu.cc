#include "runtime/kernels/base/parallel.h"
#include "runtime/kernels/elementwise/unary_functors.h"

namespace pipeshard::kernels {
namespace {

template <typename Op, typename T, typename R>
struct UnaryLoop {
  PIPESHARD_INLINE static void run(const T* x, R* y, int64_t count, UnaryParameters parameters) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) y[i] = Op::apply(x[i], parameters);
  }
};

template <typename T>
struct ClipLoop {
  PIPESHARD_INLINE static void run(const T* x, T* y, int64_t count, T low, T high) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const T raised = x[i] < low ? low : x[i];
      y[i] = raised > high ? high : raised;
    }
  }
};

}  // namespace

template <typename Op, typename T, typename R>
void applyUnary(DeviceQueue*, const UnaryParameters& parameters, int64_t count, const T* x, R* y) {
  forBlocks(count, kBlockElements, [&](int64_t begin, int64_t end) {
    runVectorised<UnaryLoop<Op, T, R>>(x + begin, y + begin, end - begin, parameters);
  });
}

template <typename T>
void applyClip(DeviceQueue*, const ClipBounds<T>& bounds, int64_t count, const T* x, T* y) {
  const T low = bounds.low_at != nullptr ? *bounds.low_at : bounds.low;
  const T high = bounds.high_at != nullptr ? *bounds.high_at : bounds.high;
  forBlocks(count, kBlockElements, [&](int64_t begin, int64_t end) {
    runVectorised<ClipLoop<T>>(x + begin, y + begin, end - begin, low, high);
  });
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
