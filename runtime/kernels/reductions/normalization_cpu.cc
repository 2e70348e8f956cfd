#include <algorithm>
#include <cmath>

#include "runtime/kernels/base/columns.h"
#include "runtime/kernels/base/lanes.h"
#include "runtime/kernels/base/parallel.h"
#include "runtime/kernels/reductions/normalization.h"

namespace pipeshard::kernels {
namespace {

// LayerNormalization: X is [rows, size]. Rows are independent of each other, in the forward pass and in the
// input's gradient, and are shared out among threads.
//   x' = (x - mean) inverse, inverse = 1 / sqrt(variance + epsilon), y = x' scale + bias
// T: elements; S: the saved mean and inverse standard deviation. Not kCentred: the mean counts as 0, as in an
// RMSNormalization.
template <typename T, typename S, bool kCentred>
struct LayerNormRow {
  PIPESHARD_INLINE static void run(const T* x, const T* scale, const T* bias, T* y, S* mean_out,
                                   S* inverse_out, int64_t size, T epsilon) {
    T mean = 0;
    if constexpr (kCentred)
      mean = sumOf<T>(size, [x](int64_t i) PIPESHARD_LAMBDA_INLINE { return x[i]; }) / static_cast<T>(size);
    const T variance = sumOf<T>(size, [x, mean](int64_t i)
                                          PIPESHARD_LAMBDA_INLINE { return (x[i] - mean) * (x[i] - mean); }) /
                       static_cast<T>(size);
    const T inverse = T(1) / std::sqrt(variance + epsilon);
    if (bias != nullptr) {
#pragma omp simd
      for (int64_t i = 0; i < size; ++i) y[i] = (x[i] - mean) * inverse * scale[i] + bias[i];
    } else {
#pragma omp simd
      for (int64_t i = 0; i < size; ++i) y[i] = (x[i] - mean) * inverse * scale[i];
    }
    if (mean_out != nullptr) *mean_out = static_cast<S>(mean);
    if (inverse_out != nullptr) *inverse_out = static_cast<S>(inverse);
  }
};

// dx = inverse (g - mean(g) - x' mean(g x')), g = dy scale, means over the row.
template <typename T, typename S, bool kCentred>
struct LayerNormInputGradRow {
  PIPESHARD_INLINE static void run(const T* dy, const T* x, const T* scale, const S* mean_in,
                                   const S* inverse_in, T* dx, int64_t size) {
    const T mean = kCentred ? static_cast<T>(*mean_in) : T(0);
    const T inverse = static_cast<T>(*inverse_in);
    const T share = T(1) / static_cast<T>(size);
    T sum = 0;
    if constexpr (kCentred)
      sum = sumOf<T>(size, [=](int64_t i) PIPESHARD_LAMBDA_INLINE { return dy[i] * scale[i]; }) * share;
    const T dot =
        sumOf<T>(size, [=](int64_t i)
                           PIPESHARD_LAMBDA_INLINE { return dy[i] * scale[i] * ((x[i] - mean) * inverse); }) *
        share;
#pragma omp simd
    for (int64_t i = 0; i < size; ++i)
      dx[i] = inverse * (dy[i] * scale[i] - sum - (x[i] - mean) * inverse * dot);
  }
};

constexpr int64_t kWeightColumns = 128;
constexpr int64_t kRowChunk = 64;  // rows summed in T before they are added up in double

// dscale = sum over rows of dy x', dbias = sum over rows of dy, for up to kWeightColumns columns. Here
// columns are shared out among threads, each with all rows, so the order of a sum does not depend on threads.
template <typename T, typename S, bool kCentred>
struct LayerNormWeightGrad {
  PIPESHARD_INLINE static void run(const T* dy, const T* x, const S* mean, const S* inverse, T* dscale,
                                   T* dbias, int64_t rows, int64_t size, int64_t width) {
    double scale_total[kWeightColumns] = {};
    double bias_total[kWeightColumns] = {};
    for (int64_t begin = 0; begin < rows; begin += kRowChunk) {
      T scale_sum[kWeightColumns] = {};
      T bias_sum[kWeightColumns] = {};
      for (int64_t row = begin; row < std::min(rows, begin + kRowChunk); ++row) {
        const T m = kCentred ? static_cast<T>(mean[row]) : T(0);
        const T s = static_cast<T>(inverse[row]);
        const T* g = dy + row * size;
        const T* v = x + row * size;
#pragma omp simd
        for (int64_t c = 0; c < width; ++c) {
          scale_sum[c] += g[c] * ((v[c] - m) * s);
          bias_sum[c] += g[c];
        }
      }
      for (int64_t c = 0; c < width; ++c) {
        scale_total[c] += scale_sum[c];
        bias_total[c] += bias_sum[c];
      }
    }
    for (int64_t c = 0; c < width; ++c) {
      if (dscale != nullptr) dscale[c] = static_cast<T>(scale_total[c]);
      if (dbias != nullptr) dbias[c] = static_cast<T>(bias_total[c]);
    }
  }
};

}  // namespace

template <typename T, typename S>
void layerNorm(DeviceQueue*, int64_t rows, int64_t size, T epsilon, const T* x, const T* scale, const T* bias,
               T* y, S* mean, S* inverse) {
  forRows(rows, size, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      runVectorised<LayerNormRow<T, S, true>>(x + row * size, scale, bias, y + row * size,
                                              mean == nullptr ? nullptr : mean + row,
                                              inverse == nullptr ? nullptr : inverse + row, size, epsilon);
    }
  });
}

template <typename T, typename S>
void layerNormInputGrad(DeviceQueue*, int64_t rows, int64_t size, const T* dy, const T* x, const T* scale,
                        const S* mean, const S* inverse, T* dx) {
  forRows(rows, size, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      runVectorised<LayerNormInputGradRow<T, S, true>>(dy + row * size, x + row * size, scale, mean + row,
                                                       inverse + row, dx + row * size, size);
    }
  });
}

namespace {

template <typename T, typename S, bool kCentred>
void weightGrad(int64_t rows, int64_t size, const T* dy, const T* x, const S* mean, const S* inverse,
                T* dscale, T* dbias) {
  const bool tiny = rows * size < kBlockElements;
  forEachBlock((size + kWeightColumns - 1) / kWeightColumns, !tiny, [&](int64_t group) {
    const int64_t column = group * kWeightColumns;
    runVectorised<LayerNormWeightGrad<T, S, kCentred>>(
        dy + column, x + column, mean, inverse, dscale == nullptr ? nullptr : dscale + column,
        dbias == nullptr ? nullptr : dbias + column, rows, size, std::min(kWeightColumns, size - column));
  });
}

}  // namespace

template <typename T, typename S>
void layerNormWeightGrad(DeviceQueue*, int64_t rows, int64_t size, const T* dy, const T* x, const S* mean,
                         const S* inverse, T* dscale, T* dbias) {
  weightGrad<T, S, true>(rows, size, dy, x, mean, inverse, dscale, dbias);
}

template <typename T>
void rmsNorm(DeviceQueue*, int64_t rows, int64_t size, T epsilon, const T* x, const T* scale, T* y,
             T* inverse) {
  constexpr T* kNone = nullptr;
  forRows(rows, size, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      runVectorised<LayerNormRow<T, T, false>>(x + row * size, scale, kNone, y + row * size, kNone,
                                               inverse == nullptr ? nullptr : inverse + row, size, epsilon);
    }
  });
}

template <typename T>
void rmsNormInputGrad(DeviceQueue*, int64_t rows, int64_t size, const T* dy, const T* x, const T* scale,
                      const T* inverse, T* dx) {
  constexpr T* kNone = nullptr;
  forRows(rows, size, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      runVectorised<LayerNormInputGradRow<T, T, false>>(dy + row * size, x + row * size, scale, kNone,
                                                        inverse + row, dx + row * size, size);
    }
  });
}

template <typename T>
void rmsNormWeightGrad(DeviceQueue*, int64_t rows, int64_t size, const T* dy, const T* x, const T* inverse,
                       T* dscale) {
  weightGrad<T, T, false>(rows, size, dy, x, static_cast<const T*>(nullptr), inverse, dscale,
                          static_cast<T*>(nullptr));
}

// x / norm along the middle axis; NaN where the norm is 0, as in the conformance data. Sums are float64, so
// that squares of float32 do not overflow.
template <typename T>
void lpNormalize(DeviceQueue*, const AxisSplit& split, int64_t p, const T* x, T* y) {
  forColumns(split, [&](int64_t outer, int64_t column, int64_t width) {
    const int64_t start = outer * split.size * split.inner + column;
    double norms[kColumns] = {};
    for (int64_t i = 0; i < split.size; ++i) {
      for (int64_t c = 0; c < width; ++c) {
        const auto element = static_cast<double>(x[start + i * split.inner + c]);
        norms[c] += p == 1 ? std::abs(element) : element * element;
      }
    }
    for (int64_t c = 0; p == 2 && c < width; ++c) norms[c] = std::sqrt(norms[c]);
    for (int64_t i = 0; i < split.size; ++i) {
      for (int64_t c = 0; c < width; ++c) {
        const int64_t at = start + i * split.inner + c;
        y[at] = static_cast<T>(static_cast<double>(x[at]) / norms[c]);
      }
    }
  });
}

template void layerNorm(DeviceQueue*, int64_t, int64_t, float, const float*, const float*, const float*,
                        float*, float*, float*);
template void layerNormInputGrad(DeviceQueue*, int64_t, int64_t, const float*, const float*, const float*,
                                 const float*, const float*, float*);
template void layerNormWeightGrad(DeviceQueue*, int64_t, int64_t, const float*, const float*, const float*,
                                  const float*, float*, float*);
template void layerNorm(DeviceQueue*, int64_t, int64_t, double, const double*, const double*, const double*,
                        double*, double*, double*);
template void layerNormInputGrad(DeviceQueue*, int64_t, int64_t, const double*, const double*, const double*,
                                 const double*, const double*, double*);
template void layerNormWeightGrad(DeviceQueue*, int64_t, int64_t, const double*, const double*, const double*,
                                  const double*, double*, double*);
template void layerNorm(DeviceQueue*, int64_t, int64_t, double, const double*, const double*, const double*,
                        double*, float*, float*);
template void layerNormInputGrad(DeviceQueue*, int64_t, int64_t, const double*, const double*, const double*,
                                 const float*, const float*, double*);
template void layerNormWeightGrad(DeviceQueue*, int64_t, int64_t, const double*, const double*, const float*,
                                  const float*, double*, double*);
template void lpNormalize(DeviceQueue*, const AxisSplit&, int64_t, const float*, float*);
template void lpNormalize(DeviceQueue*, const AxisSplit&, int64_t, const double*, double*);

PIPESHARD_RMS_NORM_INSTANCE(float)
PIPESHARD_RMS_NORM_INSTANCE(double)

}  // namespace pipeshard::kernels
