// libcudnn, the part that the module calls: descriptors.
#include "tests/standin/cudnn/descriptors.h"

#include <map>

namespace standin::cudnn {
namespace {

struct Made {
  std::map<const void*, const char*> kinds;
  ~Made() {
    const std::lock_guard held(lock());
    for (const auto& [descriptor, kind] : kinds) report(std::string("cuDNN: a ") + kind + " is left at exit");
  }
};

Made& made() {
  static Made all;
  return all;
}

// The axes behind outer and channels.
bool takeSizes(Tensor& tensor, cudnnDataType_t type, int rank, const int* sizes) {
  if ((type != CUDNN_DATA_FLOAT && type != CUDNN_DATA_DOUBLE) || rank < 4 || rank > 5) return false;
  tensor.is_set = true;
  tensor.type = type;
  tensor.rank = rank;
  tensor.outer = sizes[0];
  tensor.channels = sizes[1];
  tensor.size = {1, 1, 1};
  for (int a = 2; a < rank; ++a) tensor.size[a + 3 - rank] = sizes[a];
  for (int a = 0; a < rank; ++a) {
    if (sizes[a] < 1) return false;
  }
  return true;
}

void takeAxes(Axes& axes, int count, const int* values, int64_t otherwise) {
  axes.fill(otherwise);
  for (int a = 0; a < count; ++a) axes[a + 3 - count] = values[a];
}

}  // namespace

cudnnStatus_t refuse(const std::string& why, cudnnStatus_t status) {
  const std::lock_guard held(lock());
  report("cuDNN: " + why);
  return status;
}

void noteMade(const void* descriptor, const char* kind) {
  const std::lock_guard held(lock());
  made().kinds[descriptor] = kind;
}
bool noteDestroyed(const void* descriptor) {
  const std::lock_guard held(lock());
  return made().kinds.erase(descriptor) > 0;
}
bool isMade(const void* descriptor) {
  const std::lock_guard held(lock());
  return made().kinds.contains(descriptor);
}

bool areSet(std::initializer_list<const Tensor*> tensors) {
  for (const Tensor* tensor : tensors) {
    if (!isMade(tensor) || !tensor->is_set) return false;
  }
  return true;
}

bool isPlain(const void* alpha, const void* beta, cudnnDataType_t type) {
  bool plain = false;
  withType(type, [&](auto zero) {
    using T = decltype(zero);
    plain = *static_cast<const T*>(alpha) == T(1) && *static_cast<const T*>(beta) == T(0);
  });
  return plain;
}

}  // namespace standin::cudnn

using namespace standin::cudnn;

namespace {

template <typename Descriptor>
cudnnStatus_t make(Descriptor** place, const char* kind) {
  *place = new Descriptor();
  noteMade(*place, kind);
  return CUDNN_STATUS_SUCCESS;
}

template <typename Descriptor>
cudnnStatus_t destroy(Descriptor* descriptor) {
  if (!noteDestroyed(descriptor)) return refuse("a descriptor is destroyed that is none");
  delete descriptor;
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

API cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* place) {
  return make(place, "tensor descriptor");
}
API cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t tensor) { return destroy(tensor); }
API cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t tensor, cudnnDataType_t type, int rank,
                                             const int sizes[], const int strides[]) {
  if (!isMade(tensor) || !takeSizes(*tensor, type, rank, sizes))
    return refuse("cudnnSetTensorNdDescriptor: no descriptor, or sizes and a type that are not known here");
  int64_t stride = 1;
  for (int a = rank - 1; a >= 0; --a) {
    if (strides[a] != stride) return refuse("cudnnSetTensorNdDescriptor: a tensor with gaps");
    stride *= sizes[a];
  }
  return stride > INT32_MAX ? refuse("cudnnSetTensorNdDescriptor: more than 2^31 - 1 elements")
                            : CUDNN_STATUS_SUCCESS;
}

API cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* place) {
  return make(place, "filter descriptor");
}
API cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t filter) { return destroy(filter); }
API cudnnStatus_t cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t filter, cudnnDataType_t type,
                                             cudnnTensorFormat_t format, int rank, const int sizes[]) {
  if (!isMade(filter) || format != CUDNN_TENSOR_NCHW || !takeSizes(*filter, type, rank, sizes))
    return refuse(
        "cudnnSetFilterNdDescriptor: no descriptor, or sizes, format and type that are not known here");
  return CUDNN_STATUS_SUCCESS;
}

API cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t* place) {
  return make(place, "convolution descriptor");
}
API cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t convolution) {
  return destroy(convolution);
}
API cudnnStatus_t cudnnSetConvolutionNdDescriptor(cudnnConvolutionDescriptor_t convolution, int axes,
                                                  const int pads[], const int strides[],
                                                  const int dilations[], cudnnConvolutionMode_t mode,
                                                  cudnnDataType_t compute) {
  if (!isMade(convolution) || axes < 2 || axes > 3 || mode != CUDNN_CROSS_CORRELATION)
    return refuse("cudnnSetConvolutionNdDescriptor: no descriptor, or axes and mode that are not known here");
  for (int a = 0; a < axes; ++a) {
    if (pads[a] < 0 || strides[a] < 1 || dilations[a] < 1)
      return refuse("cudnnSetConvolutionNdDescriptor: a negative pad, or no stride or dilation");
  }
  convolution->is_set = true;
  convolution->axes = axes;
  convolution->compute = compute;
  takeAxes(convolution->pad, axes, pads, 0);
  takeAxes(convolution->stride, axes, strides, 1);
  takeAxes(convolution->dilation, axes, dilations, 1);
  return CUDNN_STATUS_SUCCESS;
}
API cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t convolution, int groups) {
  if (!isMade(convolution) || groups < 1) return refuse("cudnnSetConvolutionGroupCount: no groups");
  convolution->groups = groups;
  return CUDNN_STATUS_SUCCESS;
}
API cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t convolution,
                                              cudnnMathType_t math) {
  if (!isMade(convolution)) return refuse("cudnnSetConvolutionMathType: no descriptor");
  convolution->math = math;
  return CUDNN_STATUS_SUCCESS;
}

API cudnnStatus_t cudnnCreatePoolingDescriptor(cudnnPoolingDescriptor_t* place) {
  return make(place, "pooling descriptor");
}
API cudnnStatus_t cudnnDestroyPoolingDescriptor(cudnnPoolingDescriptor_t pooling) { return destroy(pooling); }
API cudnnStatus_t cudnnSetPoolingNdDescriptor(cudnnPoolingDescriptor_t pooling, const cudnnPoolingMode_t mode,
                                              const cudnnNanPropagation_t nan, int axes, const int windows[],
                                              const int pads[], const int strides[]) {
  if (!isMade(pooling) || axes < 2 || axes > 3)
    return refuse("cudnnSetPoolingNdDescriptor: no descriptor, or axes that are not known here");
  for (int a = 0; a < axes; ++a) {
    if (windows[a] < 1 || pads[a] < 0 || strides[a] < 1 || pads[a] >= windows[a])
      return refuse("cudnnSetPoolingNdDescriptor: no window or stride, or a pad as wide as the window");
  }
  pooling->is_set = true;
  pooling->axes = axes;
  pooling->mode = mode;
  pooling->nan = nan;
  takeAxes(pooling->kernel, axes, windows, 1);
  takeAxes(pooling->pad, axes, pads, 0);
  takeAxes(pooling->stride, axes, strides, 1);
  return CUDNN_STATUS_SUCCESS;
}
