// Deterministic algorithms alone, and of these the ones that form sums of products (not those that go over
// another basis, as Winograd's, which are less exact). float32 is float32, without TF32.
#include "runtime/kernels/products/cudnn_convolution.h"

#ifdef PIPESHARD_CUDNN
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/kernels/base/cudnn_library.h"
#include "runtime/kernels/products/cudnn_window.h"
#endif

namespace pipeshard::kernels {
#ifdef PIPESHARD_CUDNN
namespace {

// In the order of preference: the first that fits is taken, on any GPU.
constexpr cudnnConvolutionFwdAlgo_t kForward[] = {CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
                                                  CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM};
constexpr cudnnConvolutionBwdDataAlgo_t kInputGrad[] = {CUDNN_CONVOLUTION_BWD_DATA_ALGO_1};
constexpr cudnnConvolutionBwdFilterAlgo_t kWeightGrad[] = {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1};

struct Prepared {
  Cudnn* cudnn = nullptr;
  std::shared_ptr<cudnnTensorStruct> image, output;
  std::shared_ptr<cudnnFilterStruct> weight;
  std::shared_ptr<cudnnConvolutionStruct> convolution;
  size_t workspace_bytes = 0;
};

std::shared_ptr<cudnnConvolutionStruct> describe(const Cudnn& cudnn, cudnnDataType_t type,
                                                 const Convolution& c, CudnnSteps& steps) {
  const CudnnAxes axes(c.window);
  const std::vector<int> pads = steps.numbers(axes.of(c.window.pad));
  const std::vector<int> strides = steps.numbers(axes.of(c.window.stride));
  const std::vector<int> dilations = steps.numbers(axes.of(c.window.dilation));
  const int groups = steps.number(c.groups);
  cudnnConvolutionDescriptor_t made = nullptr;
  if (!steps.good() || !steps.take(cudnn.cudnnCreateConvolutionDescriptor(&made))) return nullptr;
  std::shared_ptr<cudnnConvolutionStruct> owned(made, cudnn.cudnnDestroyConvolutionDescriptor);
  steps.take(cudnn.cudnnSetConvolutionNdDescriptor(made, static_cast<int>(axes.count()), pads.data(),
                                                   strides.data(), dilations.data(), CUDNN_CROSS_CORRELATION,
                                                   type));
  steps.take(cudnn.cudnnSetConvolutionGroupCount(made, groups));
  steps.take(cudnn.cudnnSetConvolutionMathType(made, CUDNN_FMA_MATH));
  return owned;
}

// The first of the algorithms that cuDNN has for it, and whose workspace fits.
template <typename Algorithms, typename Size>
auto choose(const Algorithms& algorithms, size_t most, Prepared& prepared, const Size& size)
    -> std::optional<std::remove_cvref_t<decltype(algorithms[0])>> {
  for (const auto algorithm : algorithms) {
    size_t bytes = 0;
    if (size(algorithm, &bytes) != CUDNN_STATUS_SUCCESS || bytes > most) continue;
    prepared.workspace_bytes = bytes;
    return algorithm;
  }
  return {};
}

template <typename T>
CudnnConvolution<T> forward(Prepared p, size_t most) {
  const auto algorithm = choose(kForward, most, p, [&](cudnnConvolutionFwdAlgo_t which, size_t* bytes) {
    return p.cudnn->cudnnGetConvolutionForwardWorkspaceSize(
        p.cudnn->handle(), p.image.get(), p.weight.get(), p.convolution.get(), p.output.get(), which, bytes);
  });
  if (!algorithm) return {};
  return [p, which = *algorithm](DeviceQueue* queue, const T* image, const T* weight, T* output,
                                 void* workspace) {
    const T one = 1, none = 0;
    p.cudnn->give(streamOf(queue), "cudnnConvolutionForward", [&](cudnnHandle_t handle) {
      return p.cudnn->cudnnConvolutionForward(handle, &one, p.image.get(), image, p.weight.get(), weight,
                                              p.convolution.get(), which, workspace, p.workspace_bytes, &none,
                                              p.output.get(), output);
    });
  };
}

template <typename T>
CudnnConvolution<T> inputGrad(Prepared p, size_t most) {
  const auto algorithm = choose(kInputGrad, most, p, [&](cudnnConvolutionBwdDataAlgo_t which, size_t* bytes) {
    return p.cudnn->cudnnGetConvolutionBackwardDataWorkspaceSize(
        p.cudnn->handle(), p.weight.get(), p.output.get(), p.convolution.get(), p.image.get(), which, bytes);
  });
  if (!algorithm) return {};
  return [p, which = *algorithm](DeviceQueue* queue, const T* output, const T* weight, T* image,
                                 void* workspace) {
    const T one = 1, none = 0;
    p.cudnn->give(streamOf(queue), "cudnnConvolutionBackwardData", [&](cudnnHandle_t handle) {
      return p.cudnn->cudnnConvolutionBackwardData(handle, &one, p.weight.get(), weight, p.output.get(),
                                                   output, p.convolution.get(), which, workspace,
                                                   p.workspace_bytes, &none, p.image.get(), image);
    });
  };
}

template <typename T>
CudnnConvolution<T> weightGrad(Prepared p, size_t most) {
  const auto algorithm =
      choose(kWeightGrad, most, p, [&](cudnnConvolutionBwdFilterAlgo_t which, size_t* bytes) {
        return p.cudnn->cudnnGetConvolutionBackwardFilterWorkspaceSize(p.cudnn->handle(), p.image.get(),
                                                                       p.output.get(), p.convolution.get(),
                                                                       p.weight.get(), which, bytes);
      });
  if (!algorithm) return {};
  return [p, which = *algorithm](DeviceQueue* queue, const T* output, const T* image, T* weight,
                                 void* workspace) {
    const T one = 1, none = 0;
    p.cudnn->give(streamOf(queue), "cudnnConvolutionBackwardFilter", [&](cudnnHandle_t handle) {
      return p.cudnn->cudnnConvolutionBackwardFilter(handle, &one, p.image.get(), image, p.output.get(),
                                                     output, p.convolution.get(), which, workspace,
                                                     p.workspace_bytes, &none, p.weight.get(), weight);
    });
  };
}

}  // namespace

template <typename T>
CudnnConvolution<T> convolutionByCudnn(ConvolutionTask task, const Convolution& c, size_t workspace_bytes) {
  const CudnnAxes axes(c.window);
  if (!axes.areTheirs() || c.batch == 0 || c.batch > kMostCudnnImages || c.weightElements() == 0 ||
      c.window.inSize() == 0)
    return {};
  Prepared p;
  p.cudnn = cudnnOfThisGpu();
  if (p.cudnn == nullptr) return {};
  CudnnSteps steps;
  p.image = steps.tensor(*p.cudnn, kCudnnType<T>, axes.sizes(c.batch, c.groups * c.channels, c.window.in));
  p.output = steps.tensor(*p.cudnn, kCudnnType<T>, axes.sizes(c.batch, c.groups * c.features, c.window.out));
  p.weight =
      steps.filter(*p.cudnn, kCudnnType<T>, axes.sizes(c.groups * c.features, c.channels, c.window.kernel));
  p.convolution = describe(*p.cudnn, kCudnnType<T>, c, steps);
  if (!steps.good()) return {};
  switch (task) {
    case ConvolutionTask::kForward: return forward<T>(std::move(p), workspace_bytes);
    case ConvolutionTask::kInputGrad: return inputGrad<T>(std::move(p), workspace_bytes);
    case ConvolutionTask::kWeightGrad: return weightGrad<T>(std::move(p), workspace_bytes);
  }
  return {};
}

#else

template <typename T>
CudnnConvolution<T> convolutionByCudnn(ConvolutionTask, const Convolution&, size_t) {
  return {};
}

#endif

template CudnnConvolution<float> convolutionByCudnn(ConvolutionTask, const Convolution&, size_t);
template CudnnConvolution<double> convolutionByCudnn(ConvolutionTask, const Convolution&, size_t);

}  // namespace pipeshard::kernels
