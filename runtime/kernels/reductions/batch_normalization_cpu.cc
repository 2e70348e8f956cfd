// A channel is one thread's work from begin to end, so that bits do not depend on threads. Several passes
// over a channel read it from the cache.
#include "runtime/kernels/base/lanes.h"
#include "runtime/kernels/base/parallel.h"
#include "runtime/kernels/reductions/batch_normalization.h"

namespace pipeshard::kernels {
namespace {

// The contiguous pieces of a channel, `inner` elements each.
struct ChannelPieces {
  int64_t first;
  int64_t stride;
  int64_t pieces;
  int64_t inner;

  ChannelPieces(const BatchNorm& plan, int64_t channel)
      : first(channel * plan.inner),
        stride(plan.channels * plan.inner),
        pieces(plan.batch),
        inner(plan.inner) {}
};

struct Sums {
  double a = 0;
  double b = 0;
};

// Sums of a(i) and b(i) over a channel, in kLanes running sums each.
template <typename A, typename B>
PIPESHARD_INLINE Sums sumChannel(const ChannelPieces& c, const A& a, const B& b) {
  double a_lanes[kLanes] = {};
  double b_lanes[kLanes] = {};
  for (int64_t piece = 0; piece < c.pieces; ++piece) {
    const int64_t begin = c.first + piece * c.stride;
    const int64_t whole = c.inner / kLanes * kLanes;
    for (int64_t i = begin; i < begin + whole; i += kLanes) {
#pragma omp simd
      for (int lane = 0; lane < kLanes; ++lane) {
        a_lanes[lane] += a(i + lane);
        b_lanes[lane] += b(i + lane);
      }
    }
    for (int64_t i = whole; i < c.inner; ++i) {
      a_lanes[i - whole] += a(begin + i);
      b_lanes[i - whole] += b(begin + i);
    }
  }
  return {sumLanes(a_lanes), sumLanes(b_lanes)};
}

template <typename T>
struct ChannelMoments {
  PIPESHARD_INLINE static void run(const ChannelPieces* c, const T* x, Moments* moments) {
    const auto count = static_cast<double>(c->pieces * c->inner);
    const auto zero = [](int64_t) PIPESHARD_LAMBDA_INLINE { return 0.0; };
    const double mean =
        sumChannel(
            *c, [x](int64_t i) PIPESHARD_LAMBDA_INLINE { return static_cast<double>(x[i]); }, zero)
            .a /
        count;
    const auto square = [x, mean](int64_t i) PIPESHARD_LAMBDA_INLINE {
      const double d = static_cast<double>(x[i]) - mean;
      return d * d;
    };
    *moments = {mean, sumChannel(*c, square, zero).a / count};
  }
};

template <typename T>
struct ChannelGradientSums {
  PIPESHARD_INLINE static void run(const ChannelPieces* c, const T* dy, const T* x, GradientSums* sums) {
    const auto count = static_cast<double>(c->pieces * c->inner);
    const Sums first = sumChannel(
        *c, [x](int64_t i) PIPESHARD_LAMBDA_INLINE { return static_cast<double>(x[i]); },
        [dy](int64_t i) PIPESHARD_LAMBDA_INLINE { return static_cast<double>(dy[i]); });
    const double mean = first.a / count;
    const Sums second = sumChannel(
        *c,
        [x, mean](int64_t i) PIPESHARD_LAMBDA_INLINE {
          const double d = static_cast<double>(x[i]) - mean;
          return d * d;
        },
        [dy, x, mean](int64_t i) PIPESHARD_LAMBDA_INLINE {
          return static_cast<double>(dy[i]) * (static_cast<double>(x[i]) - mean);
        });
    *sums = {{mean, second.a / count}, first.b, second.b};
  }
};

template <typename T>
struct NormalizeChannel {
  PIPESHARD_INLINE static void run(const ChannelPieces* c, const T* x, NormalizeTerms<T> terms, T* y) {
    for (int64_t piece = 0; piece < c->pieces; ++piece) {
      const int64_t begin = c->first + piece * c->stride;
#pragma omp simd
      for (int64_t i = begin; i < begin + c->inner; ++i) y[i] = terms.apply(x[i]);
    }
  }
};

template <typename T>
struct InputGradChannel {
  PIPESHARD_INLINE static void run(const ChannelPieces* c, const T* dy, const T* x, InputGradTerms<T> terms,
                                   T* dx) {
    for (int64_t piece = 0; piece < c->pieces; ++piece) {
      const int64_t begin = c->first + piece * c->stride;
#pragma omp simd
      for (int64_t i = begin; i < begin + c->inner; ++i) dx[i] = terms.apply(dy[i], x[i]);
    }
  }
};

// body(channel) for all channels, which threads share out.
template <typename Body>
void forChannels(const BatchNorm& plan, const Body& body) {
  forRows(plan.channels, plan.count(), [&](int64_t begin, int64_t end) {
    for (int64_t channel = begin; channel < end; ++channel) body(channel);
  });
}

template <typename T>
void normalizeChannels(const BatchNorm& plan, bool training, double momentum, const T* x,
                       const BatchNormTensors<T>& of, T* y) {
  forChannels(plan, [&](int64_t c) {
    const ChannelPieces pieces(plan, c);
    Moments moments{static_cast<double>(of.mean[c]), static_cast<double>(of.variance[c])};
    if (training) {
      runVectorised<ChannelMoments<T>>(&pieces, x, &moments);
      if (of.mean_out != nullptr) of.mean_out[c] = runningAverage(of.mean[c], moments.mean, momentum);
      if (of.variance_out != nullptr)
        of.variance_out[c] = runningAverage(of.variance[c], moments.variance, momentum);
    }
    runVectorised<NormalizeChannel<T>>(&pieces, x, NormalizeTerms<T>(plan, moments, of.scale[c], of.bias[c]),
                                       y);
  });
}

template <typename T>
void channelsInputGrad(const BatchNorm& plan, const T* dy, const T* x, const T* scale, T* dx) {
  forChannels(plan, [&](int64_t c) {
    const ChannelPieces pieces(plan, c);
    GradientSums sums;
    runVectorised<ChannelGradientSums<T>>(&pieces, dy, x, &sums);
    runVectorised<InputGradChannel<T>>(&pieces, dy, x, InputGradTerms<T>(plan, sums, scale[c]), dx);
  });
}

}  // namespace

template <typename T>
PreparedBatchNorm<T> prepareBatchNorm(const BatchNorm& plan, bool training, double momentum) {
  return {0, [=](DeviceQueue*, const T* x, const BatchNormTensors<T>& of, T* y, void*) {
            normalizeChannels(plan, training, momentum, x, of, y);
          }};
}

template <typename T>
PreparedBatchNormGrad<T> prepareBatchNormInputGrad(const BatchNorm& plan) {
  return {0, [plan](DeviceQueue*, const T* dy, const T* x, const T* scale, T* dx, void*) {
            channelsInputGrad(plan, dy, x, scale, dx);
          }};
}

template <typename T>
void channelsWeightGrad(DeviceQueue*, const BatchNorm& plan, const T* dy, const T* x, T* dscale, T* dbias) {
  forChannels(plan, [&](int64_t c) {
    const ChannelPieces pieces(plan, c);
    GradientSums sums;
    runVectorised<ChannelGradientSums<T>>(&pieces, dy, x, &sums);
    if (dscale != nullptr) dscale[c] = scaleGrad<T>(plan, sums);
    if (dbias != nullptr) dbias[c] = static_cast<T>(sums.dy);
  });
}

PIPESHARD_BATCH_NORM_INSTANCES(float)
PIPESHARD_BATCH_NORM_INSTANCES(double)

}  // namespace pipeshard::kernels
