#include "runtime/kernels/base/cuda_launch.h"
#include "runtime/kernels/base/cuda_plans.h"
#include "runtime/kernels/movement/pad.h"

namespace pipeshard::kernels {

struct PadWalk {
  PadMode mode = PadMode::kConstant;
  int axes = 0;
  int64_t input[kMostAxes], output[kMostAxes], before[kMostAxes], strides[kMostAxes];
};

template <typename T>
__global__ void padKernel(PadWalk walk, int64_t count, const T* in, T value, const T* value_at, T* out) {
  const T outside = value_at != nullptr ? *value_at : value;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    int64_t rest = i, from = 0;
    bool is_outside = false;
    for (int a = walk.axes - 1; a >= 0; --a) {
      const int64_t position = paddedFrom(walk.mode, rest % walk.output[a] - walk.before[a], walk.input[a]);
      rest /= walk.output[a];
      is_outside = is_outside || position == kOutside;
      from += position * walk.strides[a];
    }
    out[i] = is_outside ? outside : in[from];
  }
}

template <typename T>
void padElements(DeviceQueue* queue, const PadPlan& plan, const T* in, T value, const T* value_at, T* out) {
  if (plan.output.size() > kMostAxes) refuseAxes(plan.output.size());
  PadWalk walk;
  walk.mode = plan.mode;
  int64_t count = 1;
  for (size_t a = 0; a < plan.output.size(); ++a) {
    walk.input[walk.axes] = plan.input[a];
    walk.output[walk.axes] = plan.output[a];
    walk.before[walk.axes] = plan.before[a];
    walk.strides[walk.axes++] = plan.in_strides[a];
    count *= plan.output[a];
  }
  if (count == 0) return;
  launch<padKernel<T>>(blocksFor(count), dim3(kBlockThreads), streamOf(queue), walk, count, in, value,
                       value_at, out);
}

template void padElements(DeviceQueue*, const PadPlan&, const uint8_t*, uint8_t, const uint8_t*, uint8_t*);
template void padElements(DeviceQueue*, const PadPlan&, const uint16_t*, uint16_t, const uint16_t*,
                          uint16_t*);
template void padElements(DeviceQueue*, const PadPlan&, const uint32_t*, uint32_t, const uint32_t*,
                          uint32_t*);
template void padElements(DeviceQueue*, const PadPlan&, const uint64_t*, uint64_t, const uint64_t*,
                          uint64_t*);

}  // namespace pipeshard::kernels
