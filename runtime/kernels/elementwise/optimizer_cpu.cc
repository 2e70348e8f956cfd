#include "runtime/kernels/base/parallel.h"
#include "runtime/kernels/elementwise/optimizer.h"

namespace pipeshard::kernels {
namespace {

template <typename T>
UpdateTensors<T> tensorsFrom(UpdateTensors<T> at, int64_t begin) {
  at.param += begin;
  at.grad += begin;
  at.new_param += begin;
  for (int s = 0; s < 2; ++s) {
    if (at.state[s] == nullptr) continue;
    at.state[s] += begin;
    at.new_state[s] += begin;
  }
  return at;
}

template <typename T>
struct AverageBlock {
  PIPESHARD_INLINE static void run(const T* old, const T* sample, T* average, int64_t count, T decay) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) average[i] = decay * old[i] + (T(1) - decay) * sample[i];
  }
};

}  // namespace

template <typename Update, typename T>
void applyUpdate(DeviceQueue*, const UpdateInputs<T>& inputs) {
  const Update step(UpdateNumbers<T>{inputs});
  forBlocks(inputs.count, kBlockElements, [&](int64_t begin, int64_t end) {
    runVectorised<Update>(tensorsFrom(inputs.tensors, begin), end - begin, step);
  });
}

template <typename T>
void applyScheduledRate(DeviceQueue*, const UpdateInputs<T>& inputs, T* rate) {
  *rate = UpdateNumbers<T>{inputs}.rate();
}

template <typename T>
void applyMovingAverage(DeviceQueue*, int64_t count, const T* old, const T* sample, const T* decay,
                        T* average) {
  const T share = *decay;
  forBlocks(count, kBlockElements, [&](int64_t begin, int64_t end) {
    runVectorised<AverageBlock<T>>(old + begin, sample + begin, average + begin, end - begin, share);
  });
}

#define PIPESHARD_INSTANCE(Update, T) \
  template void applyUpdate<Update, T>(DeviceQueue*, const UpdateInputs<T>&);
PIPESHARD_UPDATE_INSTANCES(PIPESHARD_INSTANCE, float)
PIPESHARD_UPDATE_INSTANCES(PIPESHARD_INSTANCE, double)
#undef PIPESHARD_INSTANCE
template void applyScheduledRate(DeviceQueue*, const UpdateInputs<float>&, float*);
template void applyScheduledRate(DeviceQueue*, const UpdateInputs<double>&, double*);
template void applyMovingAverage(DeviceQueue*, int64_t, const float*, const float*, const float*, float*);
template void applyMovingAverage(DeviceQueue*, int64_t, const double*, const double*, const double*, double*);

}  // namespace pipeshard::kernels
