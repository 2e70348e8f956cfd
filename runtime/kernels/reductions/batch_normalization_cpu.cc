// A channel is one thread's work from begin to end, so that bits do not depend on threads. One pass over a
// channel makes all sums; the next reads it from the cache.
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

// Over a channel, with d = x - shift: of d, d^2, dy and dy d.
struct ChannelSums {
  double shift = 0;
  double d = 0, square = 0, dy = 0, dot = 0;

  // With the shift an element of the channel, nothing cancels but what spreads far wider than the channel.
  Moments moments(double count) const {
    const double away = d / count, variance = square / count - away * away;
    return {shift + away, variance < 0 ? 0 : variance};  // NaN stays
  }
  // The sum of dy (x - mean).
  double centredDot(double count) const { return dot - d / count * dy; }
};

// One pass, in kLanes running sums each. kWithGradient: dy is read, too.
template <typename T, bool kWithGradient>
PIPESHARD_INLINE ChannelSums sumChannel(const ChannelPieces& c, const T* x, const T* dy) {
  double d_lanes[kLanes] = {}, square_lanes[kLanes] = {}, dy_lanes[kLanes] = {}, dot_lanes[kLanes] = {};
  const auto shift = static_cast<double>(x[c.first]);
  const auto add = [&](int64_t i, int lane) PIPESHARD_LAMBDA_INLINE {
    const double d = static_cast<double>(x[i]) - shift;
    d_lanes[lane] += d;
    square_lanes[lane] += d * d;
    if constexpr (kWithGradient) {
      const auto g = static_cast<double>(dy[i]);
      dy_lanes[lane] += g;
      dot_lanes[lane] += g * d;
    }
  };
  for (int64_t piece = 0; piece < c.pieces; ++piece) {
    const int64_t begin = c.first + piece * c.stride;
    const int64_t whole = c.inner / kLanes * kLanes;
    for (int64_t i = begin; i < begin + whole; i += kLanes) {
#pragma omp simd
      for (int lane = 0; lane < kLanes; ++lane) add(i + lane, lane);
    }
    for (int64_t i = whole; i < c.inner; ++i) add(begin + i, static_cast<int>(i - whole));
  }
  return {shift, sumLanes(d_lanes), sumLanes(square_lanes), sumLanes(dy_lanes), sumLanes(dot_lanes)};
}

template <typename T>
struct ChannelMoments {
  PIPESHARD_INLINE static void run(const ChannelPieces* c, const T* x, Moments* moments) {
    *moments = sumChannel<T, false>(*c, x, nullptr).moments(static_cast<double>(c->pieces * c->inner));
  }
};

template <typename T>
struct ChannelGradientSums {
  PIPESHARD_INLINE static void run(const ChannelPieces* c, const T* dy, const T* x, GradientSums* sums) {
    const auto count = static_cast<double>(c->pieces * c->inner);
    const ChannelSums all = sumChannel<T, true>(*c, x, dy);
    *sums = {all.moments(count), all.dy, all.centredDot(count)};
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
