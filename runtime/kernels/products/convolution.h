// Convolutions of images with weights, on any device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "runtime/kernels/products/window.h"

namespace pipeshard {
class DeviceQueue;
}

namespace pipeshard::kernels {

// computes the output, the image, the weight
enum class ConvolutionTask { kForward, kInputGrad, kWeightGrad };

// [batch, groups * channels, in..] images, [groups * features, channels, kernel..] weights, [batch, groups *
// features, out..] outputs.
struct Convolution {
  Window window;
  int64_t batch = 0;
  int64_t groups = 1;
  int64_t channels = 0;  // of the image, per group
  int64_t features = 0;  // of the output, per group

  int64_t rows() const { return channels * window.kernelSize(); }
  int64_t imageOffset(int64_t item, int64_t group) const {
    return (item * groups + group) * channels * window.inSize();
  }
  int64_t outputOffset(int64_t item, int64_t group) const {
    return (item * groups + group) * features * window.outSize();
  }
  int64_t weightElements() const { return groups * features * rows(); }
};

// What a device has worked out for a task before the first step.
template <typename T>
struct PreparedConvolution {
  size_t workspace_bytes = 0;
  // kForward: image, weight, bias -> output; kInputGrad: output, weight, bias -> image; kWeightGrad: output,
  // image -> weight. bias: by channel of the result; nullptr for none.
  std::function<void(DeviceQueue* queue, const T* first, const T* second, const T* bias, T* result,
                     void* workspace)>
      run;
};

// T: float, double.
template <typename T>
PreparedConvolution<T> prepareConvolution(ConvolutionTask task, const Convolution& convolution);

}  // namespace pipeshard::kernels
