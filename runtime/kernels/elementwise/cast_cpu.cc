#include "runtime/kernels/base/parallel.h"
#include "runtime/kernels/elementwise/cast.h"

namespace pipeshard::kernels {
namespace {

template <typename From, typename To>
struct CastLoop {
  PIPESHARD_INLINE static void run(const From* x, To* y, int64_t count) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) y[i] = castElement<To, From>(x[i]);
  }
};

}  // namespace

template <typename From, typename To>
void applyCast(DeviceQueue*, int64_t count, const Stored<From>* x, To* y) {
  forBlocks(count, kBlockElements, [&](int64_t begin, int64_t end) {
    if constexpr (std::is_same_v<From, bool> && std::is_arithmetic_v<To>) {
      for (int64_t i = begin; i < end; ++i) y[i] = x[i] != 0 ? To(1) : To(0);
    } else {
      runVectorised<CastLoop<From, To>>(x + begin, y + begin, end - begin);
    }
  });
}

#define PIPESHARD_INSTANCE(From, To) \
  template void applyCast<From, To>(DeviceQueue*, int64_t, const Stored<From>*, To*);
PIPESHARD_CAST_INSTANCES(PIPESHARD_INSTANCE)
#undef PIPESHARD_INSTANCE

}  // namespace pipeshard::kernels
