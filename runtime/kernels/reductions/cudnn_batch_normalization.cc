#include "runtime/kernels/reductions/cudnn_batch_normalization.h"

#ifdef PIPESHARD_CUDNN
#include <memory>
#include <optional>

#include "runtime/kernels/base/cudnn_library.h"
#endif

namespace pipeshard::kernels {
#ifdef PIPESHARD_CUDNN
namespace {

// The one that may not lose sums: no fixed point inside.
constexpr cudnnBatchNormMode_t kMode = CUDNN_BATCHNORM_SPATIAL;

struct Prepared {
  Cudnn* cudnn = nullptr;
  std::shared_ptr<cudnnTensorStruct> images, channels;
  double epsilon = 0;
};

template <typename T>
std::optional<Prepared> prepare(const BatchNorm& plan) {
  if (plan.batch > kMostCudnnImages || !(plan.epsilon >= CUDNN_BN_MIN_EPSILON)) return {};
  Prepared p;
  p.cudnn = cudnnOfThisGpu();
  if (p.cudnn == nullptr) return {};
  CudnnSteps steps;
  p.images = steps.tensor(*p.cudnn, kCudnnType<T>, {plan.batch, plan.channels, plan.inner, 1});
  p.channels = steps.tensor(*p.cudnn, kCudnnType<T>, {1, plan.channels, 1, 1});
  p.epsilon = plan.epsilon;
  if (!steps.good()) return {};
  return p;
}

}  // namespace

template <typename T>
CudnnBatchNorm<T> batchNormByCudnn(const BatchNorm& plan, bool training) {
  const std::optional<Prepared> prepared = prepare<T>(plan);
  if (!prepared) return {};
  const Prepared& p = *prepared;
  if (training) {
    return [p, room = cudnnChannels(plan.channels)](DeviceQueue* queue, const T* x,
                                                    const BatchNormTensors<T>& of, T* y, T* batch) {
      const T one = 1, none = 0;
      p.cudnn->give(streamOf(queue), "cudnnBatchNormalizationForwardTraining", [&](cudnnHandle_t handle) {
        return p.cudnn->cudnnBatchNormalizationForwardTraining(
            handle, kMode, &one, &none, p.images.get(), x, p.images.get(), y, p.channels.get(), of.scale,
            of.bias, 1, nullptr, nullptr, p.epsilon, batch, batch + room);
      });
    };
  }
  return [p](DeviceQueue* queue, const T* x, const BatchNormTensors<T>& of, T* y, T*) {
    const T one = 1, none = 0;
    p.cudnn->give(streamOf(queue), "cudnnBatchNormalizationForwardInference", [&](cudnnHandle_t handle) {
      return p.cudnn->cudnnBatchNormalizationForwardInference(handle, kMode, &one, &none, p.images.get(), x,
                                                              p.images.get(), y, p.channels.get(), of.scale,
                                                              of.bias, of.mean, of.variance, p.epsilon);
    });
  };
}

template <typename T>
CudnnBatchNormGrad<T> batchNormGradByCudnn(const BatchNorm& plan) {
  const std::optional<Prepared> prepared = prepare<T>(plan);
  if (!prepared) return {};
  return [p = *prepared, room = cudnnChannels(plan.channels)](DeviceQueue* queue, const T* dy, const T* x,
                                                              const T* scale, T* dx, T* unused) {
    const T one = 1, none = 0;
    p.cudnn->give(streamOf(queue), "cudnnBatchNormalizationBackward", [&](cudnnHandle_t handle) {
      return p.cudnn->cudnnBatchNormalizationBackward(
          handle, kMode, &one, &none, &one, &none, p.images.get(), x, p.images.get(), dy, p.images.get(), dx,
          p.channels.get(), scale, unused, unused + room, p.epsilon, nullptr, nullptr);
    });
  };
}

#else

template <typename T>
CudnnBatchNorm<T> batchNormByCudnn(const BatchNorm&, bool) {
  return {};
}
template <typename T>
CudnnBatchNormGrad<T> batchNormGradByCudnn(const BatchNorm&) {
  return {};
}

#endif

template CudnnBatchNorm<float> batchNormByCudnn(const BatchNorm&, bool);
template CudnnBatchNorm<double> batchNormByCudnn(const BatchNorm&, bool);
template CudnnBatchNormGrad<float> batchNormGradByCudnn(const BatchNorm&);
template CudnnBatchNormGrad<double> batchNormGradByCudnn(const BatchNorm&);

}  // namespace pipeshard::kernels
