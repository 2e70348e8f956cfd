// cuDNN's library, loaded when a kernel asks for it: the module needs it for nothing else. Whoever finds
// none, or is told that it cannot do something, has kernels of its own.
#pragma once

#include <cudnn.h>

#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

#include "runtime/kernels/base/cuda_launch.h"

namespace pipeshard::kernels {

#define PIPESHARD_CUDNN_FUNCTIONS(X)                \
  X(cudnnGetVersion)                                \
  X(cudnnGetErrorString)                            \
  X(cudnnCreate)                                    \
  X(cudnnSetStream)                                 \
  X(cudnnCreateTensorDescriptor)                    \
  X(cudnnSetTensorNdDescriptor)                     \
  X(cudnnDestroyTensorDescriptor)                   \
  X(cudnnCreateFilterDescriptor)                    \
  X(cudnnSetFilterNdDescriptor)                     \
  X(cudnnDestroyFilterDescriptor)                   \
  X(cudnnCreateConvolutionDescriptor)               \
  X(cudnnSetConvolutionNdDescriptor)                \
  X(cudnnSetConvolutionGroupCount)                  \
  X(cudnnSetConvolutionMathType)                    \
  X(cudnnDestroyConvolutionDescriptor)              \
  X(cudnnGetConvolutionForwardWorkspaceSize)        \
  X(cudnnConvolutionForward)                        \
  X(cudnnGetConvolutionBackwardDataWorkspaceSize)   \
  X(cudnnConvolutionBackwardData)                   \
  X(cudnnGetConvolutionBackwardFilterWorkspaceSize) \
  X(cudnnConvolutionBackwardFilter)                 \
  X(cudnnCreatePoolingDescriptor)                   \
  X(cudnnSetPoolingNdDescriptor)                    \
  X(cudnnDestroyPoolingDescriptor)                  \
  X(cudnnPoolingForward)                            \
  X(cudnnBatchNormalizationForwardTraining)         \
  X(cudnnBatchNormalizationForwardInference)        \
  X(cudnnBatchNormalizationBackward)

struct CudnnFunctions {
#define PIPESHARD_FUNCTION(name) decltype(&::name) name = nullptr;
  PIPESHARD_CUDNN_FUNCTIONS(PIPESHARD_FUNCTION)
#undef PIPESHARD_FUNCTION
};

struct CudnnFound {
  std::string name;     // "cuDNN 9.19.0"
  std::string missing;  // why there is none; "": there is
};
CudnnFound cudnnFound();

// cuDNN on a GPU. Its handle is one thread's at a time. Lives as long as the process: nothing of CUDA may be
// called when that ends.
class Cudnn : public CudnnFunctions {
 public:
  Cudnn(const CudnnFunctions& functions, cudnnHandle_t handle) : CudnnFunctions(functions), handle_(handle) {}

  cudnnHandle_t handle() const { return handle_; }
  // Gives work to the stream: body(handle) is a call of `name`, which may not fail any more.
  template <typename Body>
  void give(cudaStream_t stream, const char* name, const Body& body) {
    const std::lock_guard held(mutex_);
    require(cudnnSetStream(handle_, stream), "cudnnSetStream");
    require(body(handle_), name);
  }

 private:
  void require(cudnnStatus_t status, const char* name) const {
    if (status != CUDNN_STATUS_SUCCESS) failCall(name, cudnnGetErrorString(status));
  }

  cudnnHandle_t handle_;
  std::mutex mutex_;
};

// Images that it takes at a time, with a margin: some of its kernels have a block for each.
inline constexpr int64_t kMostCudnnImages = 65535;

// Of the GPU that the calling thread uses; nullptr where there is none, and cudnnUse() says why.
Cudnn* cudnnOfThisGpu();

template <typename T>
inline constexpr cudnnDataType_t kCudnnType = std::is_same_v<T, float> ? CUDNN_DATA_FLOAT : CUDNN_DATA_DOUBLE;

// The calls that prepare something: all of them did what they were asked for, or cuDNN cannot do it.
class CudnnSteps {
 public:
  bool take(cudnnStatus_t status) { return good_ = good_ && status == CUDNN_STATUS_SUCCESS; }
  // Of sizes that cuDNN's int has room for.
  int number(int64_t value);
  std::vector<int> numbers(const std::vector<int64_t>& values);
  bool good() const { return good_; }

  // What is made here is given back with the last copy. Tensors lie without gaps.
  std::shared_ptr<cudnnTensorStruct> tensor(const Cudnn& cudnn, cudnnDataType_t type,
                                            const std::vector<int64_t>& sizes);
  std::shared_ptr<cudnnFilterStruct> filter(const Cudnn& cudnn, cudnnDataType_t type,
                                            const std::vector<int64_t>& sizes);

 private:
  bool good_ = true;
};

}  // namespace pipeshard::kernels
