#include <limits>

#include "runtime/kernels/base/columns.h"
#include "runtime/kernels/base/lanes.h"
#include "runtime/kernels/base/parallel.h"
#include "runtime/kernels/base/vector_math.h"
#include "runtime/kernels/reductions/softmax.h"

namespace pipeshard::kernels {
namespace {

template <typename T>
struct SoftmaxRow {
  PIPESHARD_INLINE static void run(const T* x, T* y, int64_t size) {
    const T most = maxOf<T>(size, -std::numeric_limits<T>::infinity(),
                            [x](int64_t i) PIPESHARD_LAMBDA_INLINE { return x[i]; });
    const T scale = T(1) / sumOf<T>(size, [x, y, most](int64_t i) PIPESHARD_LAMBDA_INLINE {
                      return y[i] = fastExp(x[i] - most);
                    });
#pragma omp simd
    for (int64_t i = 0; i < size; ++i) y[i] *= scale;
  }
};

template <typename T>
struct LogSoftmaxRow {
  PIPESHARD_INLINE static void run(const T* x, T* y, int64_t size) {
    const T most = maxOf<T>(size, -std::numeric_limits<T>::infinity(),
                            [x](int64_t i) PIPESHARD_LAMBDA_INLINE { return x[i]; });
    const T sum =
        sumOf<T>(size, [x, most](int64_t i) PIPESHARD_LAMBDA_INLINE { return fastExp(x[i] - most); });
    const T log_sum = std::log(sum);
#pragma omp simd
    for (int64_t i = 0; i < size; ++i) y[i] = (x[i] - most) - log_sum;
  }
};

template <typename T>
struct SoftmaxGradRow {
  PIPESHARD_INLINE static void run(const T* dy, const T* y, T* dx, int64_t size) {
    const T dot = sumOf<T>(size, [dy, y](int64_t i) PIPESHARD_LAMBDA_INLINE { return dy[i] * y[i]; });
#pragma omp simd
    for (int64_t i = 0; i < size; ++i) dx[i] = y[i] * (dy[i] - dot);
  }
};

template <typename T>
struct LogSoftmaxGradRow {
  PIPESHARD_INLINE static void run(const T* dy, const T* y, T* dx, int64_t size) {
    const T sum = sumOf<T>(size, [dy](int64_t i) PIPESHARD_LAMBDA_INLINE { return dy[i]; });
#pragma omp simd
    for (int64_t i = 0; i < size; ++i) dx[i] = dy[i] - fastExp(y[i]) * sum;
  }
};

template <typename T>
struct SoftmaxColumns {
  PIPESHARD_INLINE static void run(const T* x, T* y, int64_t size, int64_t stride, int64_t width, bool log) {
    T most[kColumns];
    T sum[kColumns] = {};
    for (int64_t c = 0; c < width; ++c) most[c] = -std::numeric_limits<T>::infinity();
    for (int64_t i = 0; i < size; ++i)
      for (int64_t c = 0; c < width; ++c)
        most[c] = most[c] < x[i * stride + c] || x[i * stride + c] != x[i * stride + c] ? x[i * stride + c]
                                                                                        : most[c];
    for (int64_t i = 0; i < size; ++i)
      for (int64_t c = 0; c < width; ++c) sum[c] += fastExp(x[i * stride + c] - most[c]);
    for (int64_t c = 0; c < width; ++c) sum[c] = log ? std::log(sum[c]) : T(1) / sum[c];
    for (int64_t i = 0; i < size; ++i) {
      for (int64_t c = 0; c < width; ++c) {
        const T shifted = x[i * stride + c] - most[c];
        y[i * stride + c] = log ? shifted - sum[c] : fastExp(shifted) * sum[c];
      }
    }
  }
};

template <typename T>
struct SoftmaxGradColumns {
  PIPESHARD_INLINE static void run(const T* dy, const T* y, T* dx, int64_t size, int64_t stride,
                                   int64_t width, bool log) {
    T sum[kColumns] = {};
    for (int64_t i = 0; i < size; ++i)
      for (int64_t c = 0; c < width; ++c)
        sum[c] += log ? dy[i * stride + c] : dy[i * stride + c] * y[i * stride + c];
    for (int64_t i = 0; i < size; ++i) {
      for (int64_t c = 0; c < width; ++c) {
        const T d = dy[i * stride + c];
        const T v = y[i * stride + c];
        dx[i * stride + c] = log ? d - fastExp(v) * sum[c] : v * (d - sum[c]);
      }
    }
  }
};

template <typename Row, typename... Pointers>
void forAxisRows(const AxisSplit& split, Pointers... pointers) {
  forRows(split.outer, split.size, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row)
      runVectorised<Row>((pointers + row * split.size)..., split.size);
  });
}

// Rows where the axis is the last one, columns elsewhere.
template <typename Row, typename Columns, bool log, typename... Pointers>
void alongAxis(const AxisSplit& split, Pointers... pointers) {
  if (split.inner == 1) return forAxisRows<Row>(split, pointers...);
  forColumns(split, [&](int64_t outer, int64_t column, int64_t width) {
    const int64_t at = outer * split.size * split.inner + column;
    runVectorised<Columns>((pointers + at)..., split.size, split.inner, width, log);
  });
}

}  // namespace

template <typename T>
void softmax(DeviceQueue*, const AxisSplit& split, const T* x, T* y) {
  alongAxis<SoftmaxRow<T>, SoftmaxColumns<T>, false>(split, x, y);
}

template <typename T>
void logSoftmax(DeviceQueue*, const AxisSplit& split, const T* x, T* y) {
  alongAxis<LogSoftmaxRow<T>, SoftmaxColumns<T>, true>(split, x, y);
}

template <typename T>
void softmaxGrad(DeviceQueue*, const AxisSplit& split, const T* dy, const T* y, T* dx) {
  alongAxis<SoftmaxGradRow<T>, SoftmaxGradColumns<T>, false>(split, dy, y, dx);
}

template <typename T>
void logSoftmaxGrad(DeviceQueue*, const AxisSplit& split, const T* dy, const T* y, T* dx) {
  alongAxis<LogSoftmaxGradRow<T>, SoftmaxGradColumns<T>, true>(split, dy, y, dx);
}

template void softmax(DeviceQueue*, const AxisSplit&, const float*, float*);
template void softmax(DeviceQueue*, const AxisSplit&, const double*, double*);
template void logSoftmax(DeviceQueue*, const AxisSplit&, const float*, float*);
template void logSoftmax(DeviceQueue*, const AxisSplit&, const double*, double*);
template void softmaxGrad(DeviceQueue*, const AxisSplit&, const float*, const float*, float*);
template void softmaxGrad(DeviceQueue*, const AxisSplit&, const double*, const double*, double*);
template void logSoftmaxGrad(DeviceQueue*, const AxisSplit&, const float*, const float*, float*);
template void logSoftmaxGrad(DeviceQueue*, const AxisSplit&, const double*, const double*, double*);

}  // namespace pipeshard::kernels
