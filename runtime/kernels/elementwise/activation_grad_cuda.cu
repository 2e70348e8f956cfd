#include "runtime/kernels/base/cuda_launch.h"
#include "runtime/kernels/elementwise/activation_grad.h"

namespace pipeshard::kernels {
template <typename Op, typename T>
__global__ void activationGradKernel(int64_t count, UnaryParameters parameters, const T* dy, const T* x,
                                     T* dx) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step)
    dx[i] = Op::apply(dy[i], x[i], parameters);
}

template <typename Op, typename T>
void applyActivationGrad(DeviceQueue* queue, int64_t count, const UnaryParameters& parameters, const T* dy,
                         const T* x, T* dx) {
  if (count == 0) return;
  launch<activationGradKernel<Op, T>>(blocksFor(count), dim3(kBlockThreads), streamOf(queue), count,
                                      parameters, dy, x, dx);
}

#define PIPESHARD_INSTANCE(Op, T)                                                                   \
  template void applyActivationGrad<Op, T>(DeviceQueue*, int64_t, const UnaryParameters&, const T*, \
                                           const T*, T*);
PIPESHARD_ACTIVATION_GRAD_INSTANCES(PIPESHARD_INSTANCE)
#undef PIPESHARD_INSTANCE

}  // namespace pipeshard::kernels
