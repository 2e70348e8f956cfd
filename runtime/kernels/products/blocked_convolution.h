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
  // Of images [batch, channels, in..] with weights [features, channels, kernel..]; one group. nullptr when
  // oneDNN has no code made for this processor.
  static std::unique_ptr<BlockedConvolution> create(ConvolutionTask task, const Window& window, int64_t batch,
                                                    int64_t channels, int64_t features);

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
  Window window_;
  int64_t batch_ = 0;
  int64_t channels_ = 0;
  int64_t features_ = 0;
  int64_t pieces_ = 1;  // of the result's channels
  int64_t slots_ = 1;   // pieces of the workspace; each is used by one thread at a time
  std::shared_ptr<const OnednnConvolution> conv_;
};

}  // namespace pipeshard::kernels
