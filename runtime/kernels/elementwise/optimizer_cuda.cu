#include "runtime/kernels/base/cuda_launch.h"
#include "runtime/kernels/elementwise/optimizer.h"

namespace pipeshard::kernels {
template <typename Update, typename T>
__global__ void updateKernel(const __grid_constant__ UpdateInputs<T> inputs) {
  const Update numbers(UpdateNumbers<T>{inputs});
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < inputs.count; i += step) {
    UpdateTensors<T> at = inputs.tensors;
    at.param += i;
    at.grad += i;
    at.new_param += i;
    for (int s = 0; s < 2; ++s) {
      if (at.state[s] == nullptr) continue;
      at.state[s] += i;
      at.new_state[s] += i;
    }
    Update::run(at, 1, numbers);
  }
}

template <typename T>
__global__ void scheduledRateKernel(const __grid_constant__ UpdateInputs<T> inputs, T* rate) {
  *rate = UpdateNumbers<T>{inputs}.rate();
}

template <typename T>
__global__ void movingAverageKernel(int64_t count, const T* old, const T* sample, const T* decay,
                                    T* average) {
  const T share = *decay;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step)
    average[i] = share * old[i] + (T(1) - share) * sample[i];
}

template <typename Update, typename T>
void applyUpdate(DeviceQueue* queue, const UpdateInputs<T>& inputs) {
  if (inputs.count == 0) return;
  launch<updateKernel<Update, T>>(blocksFor(inputs.count), dim3(kBlockThreads), streamOf(queue), inputs);
}

template <typename T>
void applyScheduledRate(DeviceQueue* queue, const UpdateInputs<T>& inputs, T* rate) {
  launch<scheduledRateKernel<T>>(dim3(1), dim3(1), streamOf(queue), inputs, rate);
}

template <typename T>
void applyMovingAverage(DeviceQueue* queue, int64_t count, const T* old, const T* sample, const T* decay,
                        T* average) {
  if (count == 0) return;
  launch<movingAverageKernel<T>>(blocksFor(count), dim3(kBlockThreads), streamOf(queue), count, old, sample,
                                 decay, average);
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
