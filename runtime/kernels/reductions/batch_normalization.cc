// Batch normalisation over [batch, channels, spatial..]. A channel is one thread's work from begin to end,
// and its sums are in float64, so that bits do not depend on threads. Several passes over a channel read it
// from the cache.
#include <cmath>

#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/lanes.h"
#include "runtime/kernels/base/parallel.h"
#include "runtime/kernels/base/support.h"

namespace pipeshard::kernels {
namespace {

struct BatchNorm {
  int64_t batch = 1;
  int64_t channels = 1;
  int64_t inner = 1;
  double epsilon = 1e-5;

  int64_t count() const { return batch * inner; }
};

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

struct Moments {
  double mean;
  double variance;
};

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

// What the gradients need of a channel: moments of x, the sum of dy, and the sum of dy * (x - mean).
struct GradientSums {
  Moments moments;
  double dy = 0;
  double dot = 0;
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
  PIPESHARD_INLINE static void run(const ChannelPieces* c, const T* x, T mean, T factor, T bias, T* y) {
    for (int64_t piece = 0; piece < c->pieces; ++piece) {
      const int64_t begin = c->first + piece * c->stride;
#pragma omp simd
      for (int64_t i = begin; i < begin + c->inner; ++i) y[i] = (x[i] - mean) * factor + bias;
    }
  }
};

template <typename T>
struct InputGradChannel {
  PIPESHARD_INLINE static void run(const ChannelPieces* c, const T* dy, const T* x, T dy_mean, T x_mean,
                                   T slope, T factor, T* dx) {
    for (int64_t piece = 0; piece < c->pieces; ++piece) {
      const int64_t begin = c->first + piece * c->stride;
#pragma omp simd
      for (int64_t i = begin; i < begin + c->inner; ++i)
        dx[i] = factor * (dy[i] - dy_mean - (x[i] - x_mean) * slope);
    }
  }
};

BatchNorm planBatchNorm(const KernelSpec& spec, const Shape& x) {
  if (x.empty()) refuse(spec, "X is a scalar; it needs a batch axis");
  BatchNorm plan;
  plan.batch = x[0];
  plan.channels = x.size() > 1 ? x[1] : 1;
  for (size_t a = 2; a < x.size(); ++a) plan.inner *= x[a];
  plan.epsilon = static_cast<double>(spec.node->floatAttribute("epsilon", 1e-5f));
  if (elementCount(x) == 0) refuse(spec, "X has shape {} without elements", shapeToString(x));
  return plan;
}

template <typename T>
std::unique_ptr<Kernel> makeBatchNorm(const BatchNorm& plan, bool training, double momentum) {
  return makeKernel([plan, training, momentum](const KernelArguments& a) {
    const T* x = input<T>(a, 0);
    const T* mean_in = input<T>(a, 3);
    const T* variance_in = input<T>(a, 4);
    T* mean_out = output<T>(a, 1);
    T* variance_out = output<T>(a, 2);
    forRows(plan.channels, plan.count(), [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        const ChannelPieces pieces(plan, c);
        Moments moments{static_cast<double>(mean_in[c]), static_cast<double>(variance_in[c])};
        if (training) {
          const Moments running = moments;
          runVectorised<ChannelMoments<T>>(&pieces, x, &moments);
          if (mean_out != nullptr)
            mean_out[c] = static_cast<T>(running.mean * momentum + moments.mean * (1 - momentum));
          if (variance_out != nullptr)
            variance_out[c] = static_cast<T>(running.variance * momentum + moments.variance * (1 - momentum));
        }
        const T factor = static_cast<T>(1 / std::sqrt(moments.variance + plan.epsilon)) * input<T>(a, 1)[c];
        runVectorised<NormalizeChannel<T>>(&pieces, x, static_cast<T>(moments.mean), factor,
                                           input<T>(a, 2)[c], output<T>(a, 0));
      }
    });
  });
}

std::unique_ptr<Kernel> batchNormalization(const KernelSpec& spec) {
  checkArity(spec, 5, 5);
  if (spec.node->opset_version > 0 && spec.node->opset_version < 14)
    refuse(spec, "opset {} means something else by its outputs; export the model with opset 14 or later",
           spec.node->opset_version);
  const BatchNorm plan = planBatchNorm(spec, spec.inputs[0].shape);
  const DataType type = spec.inputs[0].data_type;
  const bool training = spec.node->intAttribute("training_mode", 0) != 0;
  for (size_t i = 1; i < 5; ++i) {
    checkInputType(spec, i, type);
    checkInputShape(spec, i, {plan.channels});
  }
  checkOutputShape(spec, 0, spec.inputs[0].shape);
  checkOutputType(spec, 0, type);
  for (size_t o : {1, 2}) {
    if (hasOutput(spec, o) && !training) refuse(spec, "running statistics are outputs in training mode only");
    checkOutputType(spec, o, type);
    checkOutputShape(spec, o, {plan.channels});
  }
  const auto momentum = static_cast<double>(spec.node->floatAttribute("momentum", 0.9f));
  return withType<float, double>(
      spec, type, "X", [&](auto zero) { return makeBatchNorm<decltype(zero)>(plan, training, momentum); });
}

// dY, X, Scale -> dX
template <typename T>
std::unique_ptr<Kernel> makeInputGrad(const BatchNorm& plan) {
  return makeKernel([plan](const KernelArguments& a) {
    const T* dy = input<T>(a, 0);
    const T* x = input<T>(a, 1);
    T* dx = output<T>(a, 0);
    forRows(plan.channels, plan.count(), [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        const ChannelPieces pieces(plan, c);
        GradientSums sums;
        runVectorised<ChannelGradientSums<T>>(&pieces, dy, x, &sums);
        const auto count = static_cast<double>(plan.count());
        const double inverse = 1 / std::sqrt(sums.moments.variance + plan.epsilon);
        const T factor = static_cast<T>(inverse * static_cast<double>(input<T>(a, 2)[c]));
        const T slope = static_cast<T>(sums.dot * inverse * inverse / count);
        runVectorised<InputGradChannel<T>>(&pieces, dy, x, static_cast<T>(sums.dy / count),
                                           static_cast<T>(sums.moments.mean), slope, factor, dx);
      }
    });
  });
}

// dY, X -> dScale, dBias
template <typename T>
std::unique_ptr<Kernel> makeWeightGrad(const BatchNorm& plan) {
  return makeKernel([plan](const KernelArguments& a) {
    const T* dy = input<T>(a, 0);
    const T* x = input<T>(a, 1);
    forRows(plan.channels, plan.count(), [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        const ChannelPieces pieces(plan, c);
        GradientSums sums;
        runVectorised<ChannelGradientSums<T>>(&pieces, dy, x, &sums);
        if (T* d_scale = output<T>(a, 0))
          d_scale[c] = static_cast<T>(sums.dot / std::sqrt(sums.moments.variance + plan.epsilon));
        if (T* d_bias = output<T>(a, 1)) d_bias[c] = static_cast<T>(sums.dy);
      }
    });
  });
}

BatchNorm planGradient(const KernelSpec& spec) {
  const BatchNorm plan = planBatchNorm(spec, spec.inputs[1].shape);
  checkInputShape(spec, 0, spec.inputs[1].shape);
  checkInputType(spec, 1, spec.inputs[0].data_type);
  return plan;
}

std::unique_ptr<Kernel> inputGrad(const KernelSpec& spec) {
  checkArity(spec, 3, 3);
  const BatchNorm plan = planGradient(spec);
  const DataType type = spec.inputs[0].data_type;
  checkInputType(spec, 2, type);
  checkInputShape(spec, 2, {plan.channels});
  checkOutputType(spec, 0, type);
  checkOutputShape(spec, 0, spec.inputs[1].shape);
  return withType<float, double>(spec, type, "dY",
                                 [&](auto zero) { return makeInputGrad<decltype(zero)>(plan); });
}

std::unique_ptr<Kernel> weightGrad(const KernelSpec& spec) {
  checkArity(spec, 2, 2);
  const BatchNorm plan = planGradient(spec);
  for (size_t o : {0, 1}) {
    checkOutputType(spec, o, spec.inputs[0].data_type);
    checkOutputShape(spec, o, {plan.channels});
  }
  return withType<float, double>(spec, spec.inputs[0].data_type, "dY",
                                 [&](auto zero) { return makeWeightGrad<decltype(zero)>(plan); });
}

}  // namespace

void addBatchNormalizationKernels(KernelRegistry& registry) {
  const std::string ours(kPipeshardDomain);
  registry.add("", "BatchNormalization", batchNormalization);
  registry.add(ours, "BatchNormalizationInputGrad", inputGrad);
  registry.add(ours, "BatchNormalizationWeightGrad", weightGrad);
}

}  // namespace pipeshard::kernels
