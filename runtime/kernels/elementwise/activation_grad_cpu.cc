#include "runtime/kernels/base/parallel.h"
#include "runtime/kernels/elementwise/activation_grad.h"

namespace pipeshard::kernels {
namespace {

template <typename Op, typename T>
struct GradLoop {
  PIPESHARD_INLINE static void run(const UnaryParameters& parameters, const T* dy, const T* x, T* dx,
                                   int64_t count) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) dx[i] = Op::apply(dy[i], x[i], parameters);
  }
};

}  // namespace

template <typename Op, typename T>
void applyActivationGrad(DeviceQueue*, int64_t count, const UnaryParameters& parameters, const T* dy,
                         const T* x, T* dx) {
  forBlocks(count, kBlockElements, [&](int64_t begin, int64_t end) {
    runVectorised<GradLoop<Op, T>>(parameters, dy + begin, x + begin, dx + begin, end - begin);
  });
}

#define PIPESHARD_INSTANCE(Op, T)                                                                   \
  template void applyActivationGrad<Op, T>(DeviceQueue*, int64_t, const UnaryParameters&, const T*, \
                                           const T*, T*);
PIPESHARD_ACTIVATION_GRAD_INSTANCES(PIPESHARD_INSTANCE)
#undef PIPESHARD_INSTANCE

}  // namespace pipeshard::kernels
