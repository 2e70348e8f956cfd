#include "runtime/kernels/products/blocked_convolution.h"

#include <omp.h>

#include <algorithm>

#include "runtime/kernels/base/parallel.h"
#include "runtime/kernels/base/slots.h"

namespace pipeshard::kernels {
namespace {

constexpr int64_t kLeastTasks = 4;      // that a small batch is cut into
constexpr int64_t kLeastChannels = 64;  // of a piece, and they are a multiple of kBlock
constexpr int64_t kBlock = 16;
constexpr size_t kAlignment = 64;

size_t align(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// The largest number of equal pieces of `channels`, at most `wanted`, that are whole blocks of at least
// `least` channels.
int64_t piecesOf(int64_t channels, int64_t wanted, int64_t least) {
  for (int64_t pieces = std::min(wanted, channels / least); pieces > 1; --pieces)
    if (channels % (pieces * kBlock) == 0) return pieces;
  return 1;
}

int64_t choosePieces(ConvolutionTask task, int64_t batch, int64_t channels, int64_t features) {
  if (task == ConvolutionTask::kWeightGrad) return piecesOf(features, features >= 512 ? 8 : 4, kBlock);
  // Every piece packs the whole image again.
  const int64_t result = task == ConvolutionTask::kForward ? features : channels;
  return piecesOf(result, (kLeastTasks + batch - 1) / batch, kLeastChannels);
}

}  // namespace

// Packed tensors: `shared` holds what all tasks read, each slot what belongs to one task.
struct BlockedConvolution::Workspace {
  std::byte* shared = nullptr;
  std::byte* slots = nullptr;
  size_t slot_bytes = 0;
  size_t shared_bytes = 0;  // of one piece
  size_t first = 0, second = 0, scratch = 0;

  float* sharedPart(int64_t piece) const { return reinterpret_cast<float*>(shared + piece * shared_bytes); }
  float* slotPart(int64_t slot, size_t offset) const {
    return reinterpret_cast<float*>(slots + slot * slot_bytes + offset);
  }
};

std::unique_ptr<BlockedConvolution> BlockedConvolution::create(ConvolutionTask task, const Window& window,
                                                               int64_t batch, int64_t channels,
                                                               int64_t features) {
  if (batch == 0 || channels == 0 || features == 0) return nullptr;
  std::unique_ptr<BlockedConvolution> made(new BlockedConvolution());
  made->task_ = task;
  made->window_ = window;
  made->batch_ = batch;
  made->channels_ = channels;
  made->features_ = features;
  made->pieces_ = choosePieces(task, batch, channels, features);
  const bool weight = task == ConvolutionTask::kWeightGrad;
  made->slots_ = std::min<int64_t>(omp_get_max_threads(), weight ? made->pieces_ : batch * made->pieces_);
  ConvolutionSizes sizes{weight ? batch : 1, channels, features, channels, features};
  (task == ConvolutionTask::kInputGrad ? sizes.channels : sizes.features) /= made->pieces_;
  made->conv_ = OnednnConvolution::create(task, window, sizes);
  return made->conv_ == nullptr ? nullptr : std::move(made);
}

BlockedConvolution::Workspace BlockedConvolution::divide(void* workspace) const {
  using Tensor = ConvolutionTensor;
  const bool weight = task_ == ConvolutionTask::kWeightGrad;
  Workspace space;
  space.shared = static_cast<std::byte*>(workspace);
  space.shared_bytes = align(conv_->packedBytes(weight ? Tensor::kImage : Tensor::kWeight));
  space.slots = space.shared + space.shared_bytes * (weight ? 1 : pieces_);
  space.second = align(conv_->packedBytes(weight ? Tensor::kWeight : Tensor::kImage));
  space.scratch = space.second + align(conv_->packedBytes(Tensor::kOutput));
  space.slot_bytes = space.scratch + align(conv_->scratchBytes());
  return space;
}

size_t BlockedConvolution::workspaceBytes() const {
  const Workspace space = divide(nullptr);
  return (space.slots - space.shared) + space.slot_bytes * slots_;
}

void BlockedConvolution::run(float* image, float* weight, float* output, void* workspace) const {
  const Workspace space = divide(workspace);
  if (task_ == ConvolutionTask::kWeightGrad)
    runWeight(image, weight, output, space);
  else
    runImages(image, weight, output, space);
}

// A task is an image and a piece of the result's channels.
void BlockedConvolution::runImages(float* image, float* weight, float* output, const Workspace& space) const {
  using Tensor = ConvolutionTensor;
  const bool forward = task_ == ConvolutionTask::kForward;
  const int64_t piece_channels = forward ? channels_ : channels_ / pieces_;
  const int64_t piece_features = forward ? features_ / pieces_ : features_;
  const int64_t weight_step = (forward ? piece_features * channels_ : piece_channels) * window_.kernelSize();
  for (int64_t p = 0; p < pieces_; ++p)
    conv_->pack(Tensor::kWeight, weight + p * weight_step, space.sharedPart(p));
  forSlots(slots_, batch_ * pieces_, [&](int64_t slot, int64_t task) {
    const int64_t item = task / pieces_;
    const int64_t p = task % pieces_;
    float* x = image + (item * channels_ + (forward ? 0 : p * piece_channels)) * window_.inSize();
    float* y = output + (item * features_ + (forward ? p * piece_features : 0)) * window_.outSize();
    float* packed_x = space.slotPart(slot, space.first);
    float* packed_y = space.slotPart(slot, space.second);
    const float* w = conv_->target(Tensor::kWeight, weight + p * weight_step, space.sharedPart(p));
    float* scratch = space.slotPart(slot, space.scratch);
    if (forward) {
      float* result = conv_->target(Tensor::kOutput, y, packed_y);
      conv_->run(conv_->pack(Tensor::kImage, x, packed_x), w, result, scratch);
      conv_->unpack(Tensor::kOutput, result, y);
    } else {
      float* result = conv_->target(Tensor::kImage, x, packed_x);
      conv_->run(result, w, conv_->pack(Tensor::kOutput, y, packed_y), scratch);
      conv_->unpack(Tensor::kImage, result, x);
    }
  });
}

// A task is a piece of the features, over the whole batch.
void BlockedConvolution::runWeight(const float* image, float* weight, const float* output,
                                   const Workspace& space) const {
  using Tensor = ConvolutionTensor;
  const int64_t features = features_ / pieces_;
  const float* x = conv_->pack(Tensor::kImage, image, space.sharedPart(0));
  forSlots(slots_, pieces_, [&](int64_t slot, int64_t p) {
    float* w = weight + p * features * channels_ * window_.kernelSize();
    float* result = conv_->target(Tensor::kWeight, w, space.slotPart(slot, space.first));
    const float* y = conv_->pack(Tensor::kOutput, output + p * features * window_.outSize(),
                                 space.slotPart(slot, space.second));
    conv_->run(x, result, y, space.slotPart(slot, space.scratch));
    conv_->unpack(Tensor::kWeight, result, w);
  });
}

}  // namespace pipeshard::kernels
