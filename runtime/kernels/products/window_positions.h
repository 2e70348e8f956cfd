// Which elements of an image an output position sees, and which output positions see an element, so that each
// element of a gradient has one writer: for every device. Positions and elements are row-major offsets in a
// plane of three axes.
#pragma once

#include <algorithm>

#include "runtime/kernels/products/window.h"

namespace pipeshard::kernels {

// The part of the window at output position `o` that lies inside the image, as kernel positions [begin, end)
// per axis.
struct Visible {
  Triple origin;
  Triple begin;
  Triple end;

  PIPESHARD_INLINE Visible(const Window& w, int64_t position)
      : origin{position / w.out[2] / w.out[1], position / w.out[2] % w.out[1], position % w.out[2]},
        begin{},
        end{} {
    for (size_t a = 0; a < 3; ++a) {
      origin[a] = origin[a] * w.stride[a] - w.pad[a];
      begin[a] = origin[a] >= 0 ? 0 : (-origin[a] + w.dilation[a] - 1) / w.dilation[a];
      end[a] = origin[a] >= w.in[a]
                   ? 0
                   : std::min(w.kernel[a], (w.in[a] - origin[a] + w.dilation[a] - 1) / w.dilation[a]);
    }
  }

  // body(offset in the image) in row-major order.
  template <typename Body>
  PIPESHARD_INLINE void forEach(const Window& w, const Body& body) const {
    for (int64_t z = begin[0]; z < end[0]; ++z)
      for (int64_t y = begin[1]; y < end[1]; ++y)
        for (int64_t x = begin[2]; x < end[2]; ++x)
          body(((origin[0] + z * w.dilation[0]) * w.in[1] + origin[1] + y * w.dilation[1]) * w.in[2] +
               origin[2] + x * w.dilation[2]);
  }
};

// By how many an average over the window at `position` divides: the elements in sight, or with those of the
// padding.
PIPESHARD_INLINE int64_t averageCount(const Window& w, int64_t position, bool with_padding) {
  const Visible visible(w, position);
  int64_t count = 1;
  for (size_t a = 0; a < 3; ++a) {
    int64_t size = visible.end[a] - visible.begin[a];
    if (with_padding)
      size = std::min(w.kernel[a],
                      (w.in[a] + w.pad_end[a] - visible.origin[a] + w.dilation[a] - 1) / w.dilation[a]);
    count *= size < 0 ? 0 : size;
  }
  return count < 1 ? 1 : count;
}

// The average over the window at `position` of an image.
template <typename T>
PIPESHARD_INLINE T averageAt(const Window& w, const T* image, int64_t position, bool with_padding) {
  T sum = 0;
  Visible(w, position).forEach(w, [&](int64_t offset) { sum += image[offset]; });
  return sum / static_cast<T>(averageCount(w, position, with_padding));
}

// The offset of the first largest element in sight of `position`, -1 when nothing is in sight. What is no
// number is larger than all numbers.
template <typename T>
PIPESHARD_INLINE int64_t placeOfLargest(const Window& w, const T* image, int64_t position) {
  T best = 0;
  int64_t place = -1;
  Visible(w, position).forEach(w, [&](int64_t offset) {
    const T element = image[offset];
    if (place >= 0 && !(element > best) && element == element) return;
    best = element;
    place = offset;
  });
  return place;
}

// The number in the tensor of an element of a plane, by columns first where `column_major`; -1 for place -1.
PIPESHARD_INLINE int64_t numberOfPlace(const Window& w, int64_t plane, int64_t place, bool column_major) {
  if (place < 0) return -1;
  const int64_t x = place % w.in[2];
  const int64_t y = place / w.in[2] % w.in[1];
  const int64_t z = place / w.in[2] / w.in[1];
  return plane * w.inSize() + (column_major ? (x * w.in[1] + y) * w.in[0] + z : place);
}

// Along one axis: the output positions [begin, end) whose window reaches over place `at` of the image.
struct Viewers {
  int64_t place;  // of the padded image
  int64_t begin;
  int64_t end;

  PIPESHARD_INLINE Viewers(const Window& w, size_t axis, int64_t at) : place(at + w.pad[axis]) {
    const int64_t before = place - (w.kernel[axis] - 1) * w.dilation[axis];
    begin = before <= 0 ? 0 : (before + w.stride[axis] - 1) / w.stride[axis];
    end = std::min(w.out[axis], place / w.stride[axis] + 1);
  }
  // The kernel position by which output position o sees the place, or -1: it looks past.
  PIPESHARD_INLINE int64_t kernelPosition(const Window& w, size_t axis, int64_t o) const {
    const int64_t distance = place - o * w.stride[axis];
    return distance % w.dilation[axis] == 0 ? distance / w.dilation[axis] : -1;
  }
};

// body(output position, kernel position) for all that see the element at `offset` of the image, in the order
// of output positions.
template <typename Body>
PIPESHARD_INLINE void forViewers(const Window& w, int64_t offset, const Body& body) {
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
