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
constexpr int64_t kPieceElements = 1 << 16;  // of one image, in a piece of groups
constexpr size_t kAlignment = 64;

size_t align(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// The largest number of equal pieces of `channels`, at most `wanted`, that are whole blocks of at least
// `least` channels.
int64_t piecesOf(int64_t channels, int64_t wanted, int64_t least) {
  for (int64_t pieces = std::min(wanted, channels / least); pieces > 1; --pieces)
    if (channels % (pieces * kBlock) == 0) return pieces;
  return 1;
}

// Groups are independent: a piece is as many of them as stay in the caches.
int64_t choosePieces(ConvolutionTask task, const Convolution& c) {
  if (c.groups > 1) {
    const int64_t elements =
        c.groups * std::max(c.channels * c.window.inSize(), c.features * c.window.outSize());
    const int64_t most = std::min(c.groups, std::max<int64_t>(1, elements / kPieceElements));
    for (int64_t pieces = most; pieces > 1; --pieces) {
      const int64_t groups = c.groups / pieces;
      if (c.groups % pieces == 0 && groups * c.channels % kBlock == 0 && groups * c.features % kBlock == 0)
        return pieces;
    }
    return 1;
  }
  if (task == ConvolutionTask::kWeightGrad) return piecesOf(c.features, c.features >= 512 ? 8 : 4, kBlock);
  // Every piece packs the whole image again.
  const int64_t result = task == ConvolutionTask::kForward ? c.features : c.channels;
  return piecesOf(result, (kLeastTasks + c.batch - 1) / c.batch, kLeastChannels);
}

}  // namespace

// Packed tensors: `shared` holds what several tasks read, each slot what belongs to one task.
struct BlockedConvolution::Workspace {
  std::byte* shared = nullptr;
  std::byte* slots = nullptr;
  size_t slot_bytes = 0;
  size_t shared_bytes = 0;  // of one piece
  size_t image = 0, weight = 0, output = 0, scratch = 0;

  float* sharedPart(int64_t piece) const { return reinterpret_cast<float*>(shared + piece * shared_bytes); }
  float* slotPart(int64_t slot, size_t offset) const {
    return reinterpret_cast<float*>(slots + slot * slot_bytes + offset);
  }
};

std::unique_ptr<BlockedConvolution> BlockedConvolution::create(ConvolutionTask task, const Convolution& c) {
  if (c.batch == 0 || c.channels == 0 || c.features == 0) return nullptr;
  std::unique_ptr<BlockedConvolution> made(new BlockedConvolution());
  made->task_ = task;
  made->batch_ = c.batch;
  made->image_item_ = c.imageOffset(1, 0);
  made->output_item_ = c.outputOffset(1, 0);
  made->pieces_ = choosePieces(task, c);
  const bool weight = task == ConvolutionTask::kWeightGrad;
  const bool cuts_image = c.groups > 1 || task == ConvolutionTask::kInputGrad;
  const bool cuts_output = c.groups > 1 || !cuts_image;
  made->slots_ = std::min<int64_t>(omp_get_max_threads(), weight ? made->pieces_ : c.batch * made->pieces_);
  ConvolutionSizes sizes = {.batch = weight ? c.batch : 1,
                            .groups = c.groups,
                            .channels = c.channels,
                            .features = c.features,
                            .all_channels = c.groups * c.channels,
                            .all_features = c.groups * c.features,
                            .weight_channels = c.channels};
  (c.groups > 1 ? sizes.groups : cuts_image ? sizes.channels : sizes.features) /= made->pieces_;
  if (cuts_image) made->image_step_ = sizes.groups * sizes.channels * c.window.inSize();
  if (cuts_output) made->output_step_ = sizes.groups * sizes.features * c.window.outSize();
  // Of a single group whose image is cut, a piece of the weight is some columns of every row.
  made->weight_step_ =
      (cuts_output ? sizes.groups * sizes.features * c.channels : sizes.channels) * c.window.kernelSize();
  made->conv_ = OnednnConvolution::create(task, c.window, sizes);
  return made->conv_ == nullptr ? nullptr : std::move(made);
}

BlockedConvolution::Workspace BlockedConvolution::divide(void* workspace) const {
  using Tensor = ConvolutionTensor;
  const auto bytes = [&](Tensor tensor) { return align(conv_->packedBytes(tensor)); };
  const bool weight = task_ == ConvolutionTask::kWeightGrad;
  const bool shares_image = weight && image_step_ == 0;
  Workspace space;
  space.shared = static_cast<std::byte*>(workspace);
  space.shared_bytes = weight ? (shares_image ? bytes(Tensor::kImage) : 0) : bytes(Tensor::kWeight);
  space.slots = space.shared + space.shared_bytes * (weight ? 1 : pieces_);
  space.weight = space.image + (shares_image ? 0 : bytes(Tensor::kImage));
  space.output = space.weight + (weight ? bytes(Tensor::kWeight) : 0);
  space.scratch = space.output + bytes(Tensor::kOutput);
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

// A task is an image and a piece.
void BlockedConvolution::runImages(float* image, float* weight, float* output, const Workspace& space) const {
  using Tensor = ConvolutionTensor;
  const bool forward = task_ == ConvolutionTask::kForward;
  for (int64_t p = 0; p < pieces_; ++p)
    conv_->pack(Tensor::kWeight, weight + p * weight_step_, space.sharedPart(p));
  forSlots(slots_, batch_ * pieces_, [&](int64_t slot, int64_t task) {
    const int64_t item = task / pieces_;
    const int64_t p = task % pieces_;
    float* x = image + item * image_item_ + p * image_step_;
    float* y = output + item * output_item_ + p * output_step_;
    float* packed_x = space.slotPart(slot, space.image);
    float* packed_y = space.slotPart(slot, space.output);
    const float* w = conv_->target(Tensor::kWeight, weight + p * weight_step_, space.sharedPart(p));
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

// A task is a piece, over the whole batch.
void BlockedConvolution::runWeight(const float* image, float* weight, const float* output,
                                   const Workspace& space) const {
  using Tensor = ConvolutionTensor;
  const float* shared = image_step_ == 0 ? conv_->pack(Tensor::kImage, image, space.sharedPart(0)) : nullptr;
  forSlots(slots_, pieces_, [&](int64_t slot, int64_t p) {
    const float* x = shared;
    if (x == nullptr)
      x = conv_->pack(Tensor::kImage, image + p * image_step_, space.slotPart(slot, space.image));
    float* w = weight + p * weight_step_;
    float* result = conv_->target(Tensor::kWeight, w, space.slotPart(slot, space.weight));
    const float* y =
        conv_->pack(Tensor::kOutput, output + p * output_step_, space.slotPart(slot, space.output));
    conv_->run(x, result, y, space.slotPart(slot, space.scratch));
    conv_->unpack(Tensor::kWeight, result, w);
  });
}

}  // namespace pipeshard::kernels
