// The sliding window of convolutions and pools: which elements of an image each output position sees. Images
// have one to three spatial axes; fewer are seen as three with leading ones.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "ir/base/shape.h"
#include "runtime/kernels/base/simd.h"

namespace pipeshard {
struct KernelSpec;
}

namespace pipeshard::kernels {

using Triple = std::array<int64_t, 3>;

// Output position o and kernel position k see the image at o * stride - pad + k * dilation, if that is
// inside.
struct Window {
  Triple in{1, 1, 1};
  Triple out{1, 1, 1};
  Triple kernel{1, 1, 1};
  Triple stride{1, 1, 1};
  Triple dilation{1, 1, 1};
  Triple pad{0, 0, 0};  // at the begin
  Triple pad_end{0, 0, 0};

  PIPESHARD_INLINE int64_t inSize() const { return in[0] * in[1] * in[2]; }
  PIPESHARD_INLINE int64_t outSize() const { return out[0] * out[1] * out[2]; }
  PIPESHARD_INLINE int64_t kernelSize() const { return kernel[0] * kernel[1] * kernel[2]; }
  // The output is the image, position by position.
  bool isPointwise() const;
};

// The window that the node's attributes (strides, dilations, pads, auto_pad) describe for an image and its
// output, both [batch, channels, spatial..], and spatial kernel sizes. Refuses other ranks than 3 to 5 and
// shapes that do not fit.
Window windowOf(const KernelSpec& spec, const Shape& image, const Shape& output,
                const std::vector<int64_t>& kernel);

// The same for a transposed convolution, whose output is the image: auto_pad and output_shape say something
// else there.
Window transposedWindowOf(const KernelSpec& spec, const Shape& image, const Shape& output,
                          const std::vector<int64_t>& kernel);

// The kernel's sizes: attribute kernel_shape, else the spatial axes of `weight`.
std::vector<int64_t> kernelSizes(const KernelSpec& spec, const Shape* weight);

}  // namespace pipeshard::kernels
