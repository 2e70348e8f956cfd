#include "runtime/kernels/products/cudnn_pooling.h"

#ifdef PIPESHARD_CUDNN
#include <memory>
#include <vector>

#include "runtime/kernels/base/cudnn_library.h"
#include "runtime/kernels/products/cudnn_window.h"
#endif

namespace pipeshard::kernels {
#ifdef PIPESHARD_CUDNN
namespace {

bool canBeTheirs(CudnnPool kind, const Window& w) {
  if (!CudnnAxes(w).areTheirs()) return false;
  for (size_t a = 0; a < 3; ++a) {
    if (w.kernel[a] > 1 && w.dilation[a] > 1) return false;
    if (w.pad[a] >= w.kernel[a]) return false;  // some windows would see nothing of the image
    // What the average divides by: ours ends with the padding, theirs is the window.
    const int64_t end = (w.out[a] - 1) * w.stride[a] - w.pad[a] + w.kernel[a];
    if (kind == CudnnPool::kAverageWithPadding && end > w.in[a] + w.pad_end[a]) return false;
  }
  return true;
}

cudnnPoolingMode_t modeOf(CudnnPool kind) {
  switch (kind) {
    case CudnnPool::kLargest: return CUDNN_POOLING_MAX_DETERMINISTIC;
    case CudnnPool::kAverage: return CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING;
    case CudnnPool::kAverageWithPadding: break;
  }
  return CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING;
}

}  // namespace

template <typename T>
CudnnPooling<T> poolByCudnn(CudnnPool kind, const Pool& pool) {
  const Window& w = pool.window;
  if (pool.planes == 0 || pool.batch > kMostCudnnImages || w.inSize() == 0 || !canBeTheirs(kind, w))
    return {};
  Cudnn* const cudnn = cudnnOfThisGpu();
  if (cudnn == nullptr) return {};
  const CudnnAxes axes(w);
  CudnnSteps steps;
  const auto from = steps.tensor(*cudnn, kCudnnType<T>, axes.sizes(pool.batch, pool.channels, w.in));
  const auto to = steps.tensor(*cudnn, kCudnnType<T>, axes.sizes(pool.batch, pool.channels, w.out));
  const std::vector<int> sizes = steps.numbers(axes.of(w.kernel));
  const std::vector<int> pads = steps.numbers(axes.of(w.pad));
  const std::vector<int> strides = steps.numbers(axes.of(w.stride));
  cudnnPoolingDescriptor_t made = nullptr;
  if (!steps.good() || !steps.take(cudnn->cudnnCreatePoolingDescriptor(&made))) return {};
  const std::shared_ptr<cudnnPoolingStruct> window(made, cudnn->cudnnDestroyPoolingDescriptor);
  steps.take(cudnn->cudnnSetPoolingNdDescriptor(made, modeOf(kind), CUDNN_PROPAGATE_NAN,
                                                static_cast<int>(axes.count()), sizes.data(), pads.data(),
                                                strides.data()));
  if (!steps.good()) return {};
  return [cudnn, from, to, window](DeviceQueue* queue, const T* x, T* y) {
    const T one = 1, none = 0;
    cudnn->give(streamOf(queue), "cudnnPoolingForward", [&](cudnnHandle_t handle) {
      return cudnn->cudnnPoolingForward(handle, window.get(), &one, from.get(), x, &none, to.get(), y);
    });
  };
}

#else

template <typename T>
CudnnPooling<T> poolByCudnn(CudnnPool, const Pool&) {
  return {};
}

#endif

template CudnnPooling<float> poolByCudnn(CudnnPool, const Pool&);
template CudnnPooling<double> poolByCudnn(CudnnPool, const Pool&);

}  // namespace pipeshard::kernels
