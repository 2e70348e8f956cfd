// Sixteen channels are computed at once, one in each lane of a vector. A task packs their planes of an image
// with channels last and padding as zeros, and of its outputs, and then adds for each row of the kernel
//
//   sum[kx] += dy[oy, ox] * image[oy * stride + ky * dilation, ox * stride + kx * dilation]
//
// with the sums of up to eight kx in registers. Where there are few channels the batch is cut into chunks, by
// sizes alone, whose sums are added in order.
#include "runtime/kernels/products/depthwise_weight.h"

#include <algorithm>

#include "runtime/kernels/base/parallel.h"
#include "runtime/kernels/base/slots.h"

namespace pipeshard::kernels {
namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kWeightSlots = 32;
constexpr int64_t kWeightTasks = 8;  // that work is cut into at least, if its sizes allow
constexpr int kMostSums = 8;         // of a row of the kernel at a time

using Lanes = float __attribute__((vector_size(kLanes * sizeof(float)), may_alias));

PIPESHARD_INLINE Lanes& lanesAt(float* p) { return *reinterpret_cast<Lanes*>(p); }
PIPESHARD_INLINE const Lanes& lanesAt(const float* p) { return *reinterpret_cast<const Lanes*>(p); }

// The part of an image that the window sees, padding included: position r is the image's r - pad.
Triple seenSizes(const Window& w) {
  Triple sizes;
  for (size_t a = 0; a < sizes.size(); ++a)
    sizes[a] = (w.out[a] - 1) * w.stride[a] + (w.kernel[a] - 1) * w.dilation[a] + 1;
  return sizes;
}

int64_t elementsOf(const Triple& sizes) { return sizes[0] * sizes[1] * sizes[2]; }

// `count` positions of `lanes` channels, which lie `plane` elements apart, with channels last.
struct PackRow {
  PIPESHARD_INLINE static void run(const float* from, int64_t plane, int64_t lanes, int64_t count,
                                   float* to) {
    if (lanes == kLanes) {
      for (int64_t i = 0; i < count; ++i)
        for (int64_t lane = 0; lane < kLanes; ++lane) to[i * kLanes + lane] = from[lane * plane + i];
    } else {
      for (int64_t i = 0; i < count; ++i)
        for (int64_t lane = 0; lane < kLanes; ++lane)
          to[i * kLanes + lane] = lane < lanes ? from[lane * plane + i] : 0;
    }
  }
};

// sum[t] += dy[i] * image[i * stride + t * dilation] over a row of outputs.
template <int kSums>
PIPESHARD_INLINE void addKernelRow(const float* dy, int64_t count, const float* image, int64_t stride,
                                   int64_t dilation, float* sum) {
  Lanes sums[kSums];
  for (int t = 0; t < kSums; ++t) sums[t] = lanesAt(sum + t * kLanes);
  for (int64_t i = 0; i < count; ++i) {
    const Lanes weight = lanesAt(dy + i * kLanes);
    const float* seen = image + i * stride * kLanes;
    for (int t = 0; t < kSums; ++t) sums[t] += weight * lanesAt(seen + t * dilation * kLanes);
  }
  for (int t = 0; t < kSums; ++t) lanesAt(sum + t * kLanes) = sums[t];
}

struct AddKernelRow {
  PIPESHARD_INLINE static void run(const float* dy, int64_t count, const float* image, int64_t stride,
                                   int64_t dilation, int64_t kernel, float* sum) {
    for (int64_t first = 0; first < kernel; first += kMostSums) {
      const float* seen = image + first * dilation * kLanes;
      float* sums = sum + first * kLanes;
      switch (std::min<int64_t>(kernel - first, kMostSums)) {
        case 1: addKernelRow<1>(dy, count, seen, stride, dilation, sums); break;
        case 2: addKernelRow<2>(dy, count, seen, stride, dilation, sums); break;
        case 3: addKernelRow<3>(dy, count, seen, stride, dilation, sums); break;
        case 4: addKernelRow<4>(dy, count, seen, stride, dilation, sums); break;
        case 5: addKernelRow<5>(dy, count, seen, stride, dilation, sums); break;
        case 6: addKernelRow<6>(dy, count, seen, stride, dilation, sums); break;
        case 7: addKernelRow<7>(dy, count, seen, stride, dilation, sums); break;
        default: addKernelRow<kMostSums>(dy, count, seen, stride, dilation, sums);
      }
    }
  }
};

// What the tasks are cut from.
class DepthwiseWeight {
 public:
  explicit DepthwiseWeight(const Convolution& convolution)
      : c_(convolution),
        seen_(seenSizes(convolution.window)),
        blocks_((convolution.groups + kLanes - 1) / kLanes),
        chunks_(
            std::clamp<int64_t>((kWeightTasks + blocks_ - 1) / blocks_, 1, std::max<int64_t>(1, c_.batch))) {}

  int64_t workspaceElements() const {
    return chunks_ * blocks_ * sumElements() + kWeightSlots * slotElements();
  }

  void run(const float* dy, const float* image, float* weight, float* space) const {
    float* slots = space + chunks_ * blocks_ * sumElements();
    forSlots(kWeightSlots, chunks_ * blocks_, [&](int64_t slot, int64_t task) {
      addChunk(dy, image, task / blocks_, task % blocks_, space + task * sumElements(),
               slots + slot * slotElements());
    });
    const int64_t size = c_.window.kernelSize();
    for (int64_t g = 0; g < c_.groups; ++g) {
      for (int64_t k = 0; k < size; ++k) {
        float total = 0;
        for (int64_t chunk = 0; chunk < chunks_; ++chunk)
          total += space[((chunk * blocks_ + g / kLanes) * size + k) * kLanes + g % kLanes];
        weight[g * size + k] = total;
      }
    }
  }

 private:
  int64_t sumElements() const { return c_.window.kernelSize() * kLanes; }
  int64_t imageElements() const { return elementsOf(seen_) * kLanes; }
  int64_t slotElements() const { return imageElements() + c_.window.outSize() * kLanes; }

  void addChunk(const float* dy, const float* image, int64_t chunk, int64_t block, float* sum,
                float* space) const {
    const int64_t first = block * kLanes;
    const int64_t lanes = std::min(kLanes, c_.groups - first);
    float* outputs = space + imageElements();
    std::fill_n(sum, sumElements(), 0.0F);
    std::fill_n(space, imageElements(), 0.0F);  // the padding
    for (int64_t item = chunk * c_.batch / chunks_; item < (chunk + 1) * c_.batch / chunks_; ++item) {
      packImage(image + c_.imageOffset(item, first), lanes, space);
      const int64_t size = c_.window.outSize();
      runVectorised<PackRow>(dy + c_.outputOffset(item, first), size, lanes, size, outputs);
      addImage(outputs, space, sum);
    }
  }

  void packImage(const float* image, int64_t lanes, float* packed) const {
    const Window& w = c_.window;
    const int64_t begin = w.pad[2];
    const int64_t count = std::min(w.in[2], seen_[2] - begin);
    for (int64_t row = 0; row < seen_[0] * seen_[1]; ++row) {
      const int64_t z = row / seen_[1] - w.pad[0], y = row % seen_[1] - w.pad[1];
      if (z < 0 || z >= w.in[0] || y < 0 || y >= w.in[1] || count <= 0) continue;
      runVectorised<PackRow>(image + (z * w.in[1] + y) * w.in[2], w.inSize(), lanes, count,
                             packed + (row * seen_[2] + begin) * kLanes);
    }
  }

  void addImage(const float* dy, const float* packed, float* sum) const {
    const Window& w = c_.window;
    for (int64_t row = 0; row < w.out[0] * w.out[1]; ++row) {
      for (int64_t line = 0; line < w.kernel[0] * w.kernel[1]; ++line) {
        const int64_t z = row / w.out[1] * w.stride[0] + line / w.kernel[1] * w.dilation[0];
        const int64_t y = row % w.out[1] * w.stride[1] + line % w.kernel[1] * w.dilation[1];
        runVectorised<AddKernelRow>(dy + row * w.out[2] * kLanes, w.out[2],
                                    packed + (z * seen_[1] + y) * seen_[2] * kLanes, w.stride[2],
                                    w.dilation[2], w.kernel[2], sum + line * w.kernel[2] * kLanes);
      }
    }
  }

  Convolution c_;
  Triple seen_;
  int64_t blocks_;  // of channels
  int64_t chunks_;  // of the batch
};

}  // namespace

bool isDepthwise(const Convolution& c) { return c.groups > 1 && c.channels == 1 && c.features == 1; }

size_t depthwiseWeightBytes(const Convolution& c) {
  return DepthwiseWeight(c).workspaceElements() * sizeof(float);
}

void depthwiseWeightGrad(const Convolution& c, const float* dy, const float* image, float* weight,
                         void* workspace) {
  DepthwiseWeight(c).run(dy, image, weight, static_cast<float*>(workspace));
}

}  // namespace pipeshard::kernels
