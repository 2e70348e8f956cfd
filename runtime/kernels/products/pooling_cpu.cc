#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "runtime/kernels/base/parallel.h"
#include "runtime/kernels/base/simd.h"
#include "runtime/kernels/elementwise/binary_functors.h"
#include "runtime/kernels/products/pooling.h"
#include "runtime/kernels/products/window_positions.h"

namespace pipeshard::kernels {
namespace {

constexpr int64_t kRowPart = 256;  // output positions of a row that are looked at together

// Of output positions [first, first + count) of the row (oz, oy): body(row, begin, end) for every kernel
// position that sees something; output i of [begin, end) sees element row + i * stride of the image. In
// row-major order of kernel positions; where kLastFirst, those of a line from the last to the first.
template <bool kLastFirst = false, typename Body>
PIPESHARD_INLINE void forSeen(const Window& w, int64_t oz, int64_t oy, int64_t first, int64_t count,
                              const Body& body) {
  const int64_t stride = w.stride[2];
  for (int64_t line = 0; line < w.kernel[0] * w.kernel[1]; ++line) {
    const int64_t z = oz * w.stride[0] - w.pad[0] + line / w.kernel[1] * w.dilation[0];
    const int64_t y = oy * w.stride[1] - w.pad[1] + line % w.kernel[1] * w.dilation[1];
    if (z < 0 || z >= w.in[0] || y < 0 || y >= w.in[1]) continue;
    for (int64_t k = 0; k < w.kernel[2]; ++k) {
      const int64_t kx = kLastFirst ? w.kernel[2] - 1 - k : k;
      const int64_t x = first * stride - w.pad[2] + kx * w.dilation[2];
      const int64_t begin = x >= 0 ? 0 : (-x + stride - 1) / stride;
      const int64_t end = x >= w.in[2] ? 0 : std::min(count, (w.in[2] - x + stride - 1) / stride);
      body(static_cast<int32_t>((z * w.in[1] + y) * w.in[2] + x), static_cast<int32_t>(begin),
           static_cast<int32_t>(end));
    }
  }
}

// body(output, element of the image) for outputs [begin, end) that see elements row + i * stride; steps that
// are known spare gathering elements one by one. No two elements are one.
template <typename Body>
PIPESHARD_INLINE void forOutputs(int64_t stride, int32_t row, int32_t begin, int32_t end, const Body& body) {
  if (stride == 1) {
#pragma omp simd
    for (int32_t i = begin; i < end; ++i) body(i, row + i);
  } else if (stride == 2) {
#pragma omp simd
    for (int32_t i = begin; i < end; ++i) body(i, row + 2 * i);
  } else {
    const int32_t step = static_cast<int32_t>(stride);
#pragma omp simd
    for (int32_t i = begin; i < end; ++i) body(i, row + step * i);
  }
}

// The first largest element in sight and, where kPlaced, its offset in the image, -1 when nothing is in
// sight. What is no number is larger than all numbers.
template <typename T, bool kPlaced>
struct LargestOfRow {
  PIPESHARD_INLINE static void run(const Window* window, const T* image, int64_t oz, int64_t oy,
                                   int64_t first, int64_t count, T* best, int32_t* place) {
    std::fill_n(best, count, -std::numeric_limits<T>::infinity());
    if constexpr (kPlaced) std::fill_n(place, count, -1);
    const int64_t stride = window->stride[2];
    forSeen(*window, oz, oy, first, count,
            [=](int32_t row, int32_t begin, int32_t end) PIPESHARD_LAMBDA_INLINE {
              forOutputs(stride, row, begin, end, [=](int32_t i, int32_t from) PIPESHARD_LAMBDA_INLINE {
                const T element = image[from];
                bool larger = (element > best[i]) | (element != element);
                if constexpr (kPlaced) larger |= place[i] < 0;
                best[i] = larger ? element : best[i];
                if constexpr (kPlaced) place[i] = larger ? from : place[i];
              });
            });
  }
};

// The sum of what is in sight, over `counts`.
template <typename T>
struct AverageOfRow {
  PIPESHARD_INLINE static void run(const Window* window, const T* image, int64_t oz, int64_t oy,
                                   int64_t first, int64_t count, const T* counts, T* average) {
    std::fill_n(average, count, T(0));
    const int64_t stride = window->stride[2];
    forSeen(*window, oz, oy, first, count,
            [=](int32_t row, int32_t begin, int32_t end) PIPESHARD_LAMBDA_INLINE {
              forOutputs(stride, row, begin, end,
                         [=](int32_t i, int32_t from) PIPESHARD_LAMBDA_INLINE { average[i] += image[from]; });
            });
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) average[i] /= counts[i];
  }
};

// The adjoint: dy over `counts` is added to what is in sight. Each element is added to by outputs in their
// order.
template <typename T>
struct SpreadOfRow {
  PIPESHARD_INLINE static void run(const Window* window, const T* dy, int64_t oz, int64_t oy, int64_t first,
                                   int64_t count, const T* counts, T* image) {
    T share[kRowPart];
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) share[i] = dy[i] / counts[i];
    const T* const given = share;
    const int64_t stride = window->stride[2];
    forSeen<true>(*window, oz, oy, first, count,
                  [=](int32_t row, int32_t begin, int32_t end) PIPESHARD_LAMBDA_INLINE {
                    forOutputs(stride, row, begin, end,
                               [=](int32_t i, int32_t to) PIPESHARD_LAMBDA_INLINE { image[to] += given[i]; });
                  });
  }
};

// body(row, first, count) for parts of the rows of output positions of a plane, in order.
template <typename Body>
void forRowParts(const Window& w, const Body& body) {
  for (int64_t row = 0; row < w.out[0] * w.out[1]; ++row)
    for (int64_t first = 0; first < w.out[2]; first += kRowPart)
      body(row, first, std::min(kRowPart, w.out[2] - first));
}

// body(output position, largest element, its offset or -1) for every output position of a plane, in order.
template <typename T, typename Body>
void forLargest(const Window& w, const T* image, const Body& body) {
  T best[kRowPart];
  int32_t place[kRowPart];
  forRowParts(w, [&](int64_t row, int64_t first, int64_t count) {
    runVectorised<LargestOfRow<T, true>>(&w, image, row / w.out[1], row % w.out[1], first, count, best,
                                         place);
    for (int64_t i = 0; i < count; ++i) body(row * w.out[2] + first + i, best[i], place[i]);
  });
}

// The largest element in sight of every output position of a plane.
template <typename T>
void writeLargest(const Window& w, const T* image, T* largest) {
  forRowParts(w, [&](int64_t row, int64_t first, int64_t count) {
    runVectorised<LargestOfRow<T, false>>(&w, image, row / w.out[1], row % w.out[1], first, count,
                                          largest + row * w.out[2] + first, static_cast<int32_t*>(nullptr));
  });
}

// By how many the average of each output position divides.
template <typename T>
std::vector<T> countsOf(const Window& w, bool with_padding) {
  std::vector<T> counts(w.outSize());
  for (int64_t o = 0; o < w.outSize(); ++o) counts[o] = static_cast<T>(averageCount(w, o, with_padding));
  return counts;
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
      if (indices == nullptr) return writeLargest(w, image, y + plane * w.outSize());
      forLargest(w, image, [&](int64_t o, T best, int64_t place) {
        y[plane * w.outSize() + o] = best;
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
  return [pool, counts = countsOf<T>(pool.window, with_padding)](DeviceQueue*, const T* x, T* y) {
    const Window& w = pool.window;
    forPlanes(pool, [&](int64_t plane) {
      forRowParts(w, [&](int64_t row, int64_t first, int64_t count) {
        const int64_t at = row * w.out[2] + first;
        runVectorised<AverageOfRow<T>>(&w, x + plane * w.inSize(), row / w.out[1], row % w.out[1], first,
                                       count, counts.data() + at, y + plane * w.outSize() + at);
      });
    });
  };
}

template <typename T>
void poolAverageGrad(DeviceQueue*, const Pool& pool, bool with_padding, const T* dy, T* dx) {
  const Window& w = pool.window;
  const std::vector<T> counts = countsOf<T>(w, with_padding);
  forPlanes(pool, [&](int64_t plane) {
    T* image = dx + plane * w.inSize();
    std::fill_n(image, w.inSize(), T(0));
    forRowParts(w, [&](int64_t row, int64_t first, int64_t count) {
      const int64_t at = row * w.out[2] + first;
      runVectorised<SpreadOfRow<T>>(&w, dy + plane * w.outSize() + at, row / w.out[1], row % w.out[1], first,
                                    count, counts.data() + at, image);
    });
  });
}

template <typename T>
void poolAll(DeviceQueue*, bool largest, int64_t planes, int64_t size, const T* x, T* y) {
  forRows(planes, size, [&](int64_t first, int64_t last) {
    for (int64_t plane = first; plane < last; ++plane) {
      const T* begin = x + plane * size;
      if (largest) {
        y[plane] = std::accumulate(begin, begin + size, begin[0], MaxOp::apply<T>);
      } else {
        y[plane] = static_cast<T>(std::accumulate(begin, begin + size, 0.0) / static_cast<double>(size));
      }
    }
  });
}

PIPESHARD_POOLING_INSTANCES(float)
PIPESHARD_POOLING_INSTANCES(double)

}  // namespace pipeshard::kernels
