// For .cu files: which output positions see an element of an image, so that each element of a gradient has
// one writer. Positions and elements are row-major offsets in a plane of three axes.
#pragma once

#include <algorithm>

#include "runtime/kernels/products/window.h"

namespace pipeshard::kernels {

// Along one axis: the output positions [begin, end) whose window reaches over place `at` of the image.
struct Viewers {
  int64_t place;  // of the padded image
  int64_t begin;
  int64_t end;

  __device__ Viewers(const Window& w, size_t axis, int64_t at) : place(at + w.pad[axis]) {
    const int64_t before = place - (w.kernel[axis] - 1) * w.dilation[axis];
    begin = before <= 0 ? 0 : (before + w.stride[axis] - 1) / w.stride[axis];
    end = std::min(w.out[axis], place / w.stride[axis] + 1);
  }
  // The kernel position by which output position o sees the place, or -1: it looks past.
  __device__ int64_t kernelPosition(const Window& w, size_t axis, int64_t o) const {
    const int64_t distance = place - o * w.stride[axis];
    return distance % w.dilation[axis] == 0 ? distance / w.dilation[axis] : -1;
  }
};

// body(output position, kernel position) for all that see the element at `offset` of the image, in the order
// of output positions.
template <typename Body>
__device__ void forViewers(const Window& w, int64_t offset, const Body& body) {
  const Viewers zs(w, 0, offset / w.in[2] / w.in[1]);
  const Viewers ys(w, 1, offset / w.in[2] % w.in[1]);
  const Viewers xs(w, 2, offset % w.in[2]);
  for (int64_t z = zs.begin; z < zs.end; ++z) {
    const int64_t kz = zs.kernelPosition(w, 0, z);
    for (int64_t y = ys.begin; y < ys.end && kz >= 0; ++y) {
      const int64_t ky = ys.kernelPosition(w, 1, y);
      for (int64_t x = xs.begin; x < xs.end && ky >= 0; ++x) {
        const int64_t kx = xs.kernelPosition(w, 2, x);
        if (kx >= 0) body((z * w.out[1] + y) * w.out[2] + x, (kz * w.kernel[1] + ky) * w.kernel[2] + kx);
      }
    }
  }
}

}  // namespace pipeshard::kernels
