// Convolutions of oneDNN (2.x) in the layouts that it computes fastest in: blocks of channels, chosen by it.
// float32.
//
//   auto conv = OnednnConvolution::create(ConvolutionTask::kForward, window, {.batch = 1, ...});
//   if (conv != nullptr) {
//     const float* packed_image = conv->pack(ConvolutionTensor::kImage, image, space);
//     ...  // the same for the weight
//     conv->run(packed_image, packed_weight, packed_output, scratch);
//     conv->unpack(ConvolutionTensor::kOutput, packed_output, output);
//   }
//
// run() is the calling thread's work alone, whatever the number of threads: sums are formed in an order fixed
// by the sizes. All calls are safe from several threads at once with memory of their own. Errors of oneDNN
// come out as pipeshard::Error (kInternal).
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "runtime/kernels/products/convolution.h"

namespace pipeshard::kernels {

enum class ConvolutionTensor : size_t { kImage, kWeight, kOutput };

// What one run() sees: [batch, groups * channels, in..] images, [batch, groups * features, out..] outputs,
// [groups * features, channels, kernel..] weights. The images and outputs they are cut from have
// `all_channels` and `all_features`, the weights `weight_channels`.
struct ConvolutionSizes {
  int64_t batch = 0;
  int64_t groups = 1;
  int64_t channels = 0;
  int64_t features = 0;
  int64_t all_channels = 0;
  int64_t all_features = 0;
  int64_t weight_channels = 0;
};

class OnednnConvolution {
 public:
  // nullptr when oneDNN has no code made for this processor.
  static std::shared_ptr<const OnednnConvolution> create(ConvolutionTask task, const Window& window,
                                                         const ConvolutionSizes& sizes);

  // Bytes of a tensor in oneDNN's layout; 0 when that is the plain one.
  size_t packedBytes(ConvolutionTensor tensor) const;
  size_t scratchBytes() const;

  // Plain (row-major) to oneDNN's layout. Returns `space`, or `plain` where both layouts are one. Outside of
  // parallel regions it uses all threads.
  const float* pack(ConvolutionTensor tensor, const float* plain, float* space) const;
  // Where run() shall put its result: `space`, or `plain` where both layouts are one.
  float* target(ConvolutionTensor tensor, float* plain, float* space) const {
    return packedBytes(tensor) == 0 ? plain : space;
  }
  // oneDNN's layout to the plain one; nothing where both are one.
  void unpack(ConvolutionTensor tensor, const float* packed, float* plain) const;

  // Of the three tensors the task's result is written, the others are read.
  void run(const float* image, const float* weight, const float* output, void* scratch) const;

  OnednnConvolution(const OnednnConvolution&) = delete;
  OnednnConvolution& operator=(const OnednnConvolution&) = delete;
  ~OnednnConvolution();

 private:
  struct Primitives;
  explicit OnednnConvolution(std::unique_ptr<const Primitives> primitives);
  std::unique_ptr<const Primitives> primitives_;
};

}  // namespace pipeshard::kernels
