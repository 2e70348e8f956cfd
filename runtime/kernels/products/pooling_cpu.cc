#include <algorithm>
#include <limits>

#include "runtime/kernels/base/parallel.h"
#include "runtime/kernels/base/simd.h"
#include "runtime/kernels/products/pooling.h"
#include "runtime/kernels/products/window_positions.h"

namespace pipeshard::kernels {
namespace {

constexpr int64_t kRowPart = 256;  // output positions of a row that are looked at together

// Output i of [begin, end) sees image[row + i * step] next. kStep: the step where it is known, which spares
// gathering elements one by one; else 0.
template <int32_t kStep, typename T>
PIPESHARD_INLINE void lookAt(const T* image, int32_t row, int32_t given_step, int32_t begin, int32_t end,
                             T* best, int32_t* place) {
  const int32_t step = kStep > 0 ? kStep : given_step;
#pragma omp simd
  for (int32_t i = begin; i < end; ++i) {
    const int32_t offset = row + i * step;
    const T element = image[offset];
    const bool larger = (place[i] < 0) | (element > best[i]);
    best[i] = larger ? element : best[i];
    place[i] = larger ? offset : place[i];
  }
}

// Of output positions [first, first + count) of the row (oz, oy): the first largest element in sight and its
// offset in the image, -1 when nothing is in sight.
template <typename T>
struct LargestOfRow {
  PIPESHARD_INLINE static void run(const Window* window, const T* image, int64_t oz, int64_t oy,
                                   int64_t first, int64_t count, T* best, int32_t* place) {
    const Window& w = *window;
    for (int64_t i = 0; i < count; ++i) {
      best[i] = std::numeric_limits<T>::lowest();
      place[i] = -1;
    }
    const int64_t stride = w.stride[2];
    for (int64_t line = 0; line < w.kernel[0] * w.kernel[1]; ++line) {
      const int64_t z = oz * w.stride[0] - w.pad[0] + line / w.kernel[1] * w.dilation[0];
      const int64_t y = oy * w.stride[1] - w.pad[1] + line % w.kernel[1] * w.dilation[1];
      if (z < 0 || z >= w.in[0] || y < 0 || y >= w.in[1]) continue;
      for (int64_t kx = 0; kx < w.kernel[2]; ++kx) {
        const int64_t x = first * stride - w.pad[2] + kx * w.dilation[2];
        const int64_t begin = x >= 0 ? 0 : (-x + stride - 1) / stride;
        const int64_t end = x >= w.in[2] ? 0 : std::min(count, (w.in[2] - x + stride - 1) / stride);
        const int64_t row = (z * w.in[1] + y) * w.in[2] + x;
        if (stride == 1)
          lookAt<1>(image, row, 1, begin, end, best, place);
        else if (stride == 2)
          lookAt<2>(image, row, 2, begin, end, best, place);
        else
          lookAt<0>(image, row, stride, begin, end, best, place);
      }
    }
  }
};

// body(output position, largest element, its offset or -1) for every output position of a plane, in order.
template <typename T, typename Body>
void forLargest(const Window& w, const T* image, const Body& body) {
  T best[kRowPart];
  int32_t place[kRowPart];
  for (int64_t row = 0; row < w.out[0] * w.out[1]; ++row) {
    for (int64_t first = 0; first < w.out[2]; first += kRowPart) {
      const int64_t count = std::min(kRowPart, w.out[2] - first);
      runVectorised<LargestOfRow<T>>(&w, image, row / w.out[1], row % w.out[1], first, count, best, place);
      for (int64_t i = 0; i < count; ++i) body(row * w.out[2] + first + i, best[i], place[i]);
    }
  }
}

// body(plane) for all planes, which threads share out.
template <typename Body>
void forPlanes(const Pool& pool, const Body& body) {
  forRows(pool.planes, pool.window.outSize() * pool.window.kernelSize(), [&](int64_t first, int64_t last) {
    for (int64_t plane = first; plane < last; ++plane) body(plane);
  });
}

}  // namespace

template <typename T>
LargestPooling<T> preparePoolLargest(const Pool& pool, bool column_major, bool) {
  return [pool, column_major](DeviceQueue*, const T* x, T* y, int64_t* indices) {
    const Window& w = pool.window;
    forPlanes(pool, [&](int64_t plane) {
      const T* image = x + plane * w.inSize();
      forLargest(w, image, [&](int64_t o, T best, int64_t place) {
        y[plane * w.outSize() + o] = best;
        if (indices != nullptr)
          indices[plane * w.outSize() + o] = numberOfPlace(w, plane, place, column_major);
      });
    });
  };
}

const bool kPlacesOfLargest = false;

template <typename T>
void poolLargestGrad(DeviceQueue*, const Pool& pool, const T* dy, const T* x, int32_t*, T* dx) {
  const Window& w = pool.window;
  forPlanes(pool, [&](int64_t plane) {
    T* image = dx + plane * w.inSize();
    std::fill_n(image, w.inSize(), T(0));
    forLargest(w, x + plane * w.inSize(), [&](int64_t o, T, int64_t place) {
      if (place >= 0) image[place] += dy[plane * w.outSize() + o];
    });
  });
}

template <typename T>
AveragePooling<T> preparePoolAverage(const Pool& pool, bool with_padding) {
  return [pool, with_padding](DeviceQueue*, const T* x, T* y) {
    const Window& w = pool.window;
    forPlanes(pool, [&](int64_t plane) {
      for (int64_t o = 0; o < w.outSize(); ++o)
        y[plane * w.outSize() + o] = averageAt(w, x + plane * w.inSize(), o, with_padding);
    });
  };
}

template <typename T>
void poolAverageGrad(DeviceQueue*, const Pool& pool, bool with_padding, const T* dy, T* dx) {
  const Window& w = pool.window;
  forPlanes(pool, [&](int64_t plane) {
    T* image = dx + plane * w.inSize();
    std::fill_n(image, w.inSize(), T(0));
    for (int64_t o = 0; o < w.outSize(); ++o) {
      const T share = dy[plane * w.outSize() + o] / static_cast<T>(averageCount(w, o, with_padding));
      Visible(w, o).forEach(w, [&](int64_t offset) { image[offset] += share; });
    }
  });
}

template <typename T>
void poolAll(DeviceQueue*, bool largest, int64_t planes, int64_t size, const T* x, T* y) {
  forRows(planes, size, [&](int64_t first, int64_t last) {
    for (int64_t plane = first; plane < last; ++plane) {
      const T* begin = x + plane * size;
      double sum = 0;
      for (int64_t i = 0; !largest && i < size; ++i) sum += static_cast<double>(begin[i]);
      y[plane] =
          largest ? *std::max_element(begin, begin + size) : static_cast<T>(sum / static_cast<double>(size));
    }
  });
}

PIPESHARD_POOLING_INSTANCES(float)
PIPESHARD_POOLING_INSTANCES(double)

}  // namespace pipeshard::kernels
