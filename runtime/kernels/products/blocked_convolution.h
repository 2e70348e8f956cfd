// The three tasks of a float32 convolution over a batch, by oneDNN in its own layouts. Tensors come and go in
// plain layouts; each is reordered in the caches, an image at a time. Work is cut by sizes alone, and each
// piece is one thread's.
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/kernels/products/onednn_convolution.h"

namespace pipeshard::kernels {

class BlockedConvolution {
 public:
  // nullptr when oneDNN has no code made for this processor.
  static std::unique_ptr<BlockedConvolution> create(ConvolutionTask task, const Convolution& convolution);

  size_t workspaceBytes() const;  // for as many threads as there were when it was created
  // Of the three tensors the task's result is written, the others are read; `workspace` is 64-byte aligned.
  void run(float* image, float* weight, float* output, void* workspace) const;

 private:
  struct Workspace;
  BlockedConvolution() = default;
  void runImages(float* image, float* weight, float* output, const Workspace& space) const;
  void runWeight(const float* image, float* weight, const float* output, const Workspace& space) const;
  Workspace divide(void* workspace) const;

  ConvolutionTask task_ = ConvolutionTask::kForward;
  int64_t batch_ = 0;
  int64_t image_item_ = 0;   // elements of an image
  int64_t output_item_ = 0;  // and of an output
  // Of the result's channels, or of all groups: each piece is `..._step_` elements behind the one before.
  int64_t pieces_ = 1;
  int64_t image_step_ = 0;  // 0: all pieces need the whole
  int64_t weight_step_ = 0;
  int64_t output_step_ = 0;
  int64_t slots_ = 1;  // pieces of the workspace; each is used by one thread at a time
  std::shared_ptr<const OnednnConvolution> conv_;
};

}  // namespace pipeshard::kernels
