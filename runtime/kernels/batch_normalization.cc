// Batch normalisation over [batch, channels, spatial..]. A channel is one thread's work from begin to end, and its sums are in
// float64, so that bits do not depend on threads.
#include <cmath>

#include "runtime/kernels/families.h"
#include "runtime/kernels/parallel.h"
#include "runtime/kernels/support.h"

namespace pipeshard::kernels {
namespace {

struct BatchNorm {
  int64_t batch = 1;
  int64_t channels = 1;
  int64_t inner = 1;
  double epsilon = 1e-5;

  int64_t count() const { return batch * inner; }

  // body(first element, number of elements) for each contiguous run of a channel.
  template <typename Body>
  void forRuns(int64_t channel, const Body& body) const {
    for (int64_t n = 0; n < batch; ++n) body((n * channels + channel) * inner, inner);
  }

  template <typename Element>
  double sum(int64_t channel, const Element& element) const {
    double total = 0;
    forRuns(channel, [&](int64_t first, int64_t size) {
      for (int64_t i = first; i < first + size; ++i) total += element(i);
    });
    return total;
  }
};

struct Moments {
  double mean;
  double variance;
};

template <typename T>
Moments momentsOf(const BatchNorm& plan, int64_t channel, const T* x) {
  const auto count = static_cast<double>(plan.count());
  const double mean = plan.sum(channel, [&](int64_t i) { return static_cast<double>(x[i]); }) / count;
  const double squares = plan.sum(channel, [&](int64_t i) {
    const double d = static_cast<double>(x[i]) - mean;
    return d * d;
  });
  return {mean, squares / count};
}

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
void normalize(const BatchNorm& plan, int64_t channel, const T* x, double mean, double inverse, T scale, T bias, T* y) {
  const T m = static_cast<T>(mean);
  const T factor = static_cast<T>(inverse) * scale;
  plan.forRuns(channel, [&](int64_t first, int64_t size) {
    for (int64_t i = first; i < first + size; ++i) y[i] = (x[i] - m) * factor + bias;
  });
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
        Moments moments{static_cast<double>(mean_in[c]), static_cast<double>(variance_in[c])};
        if (training) {
          const Moments running = moments;
          moments = momentsOf(plan, c, x);
          if (mean_out != nullptr) mean_out[c] = static_cast<T>(running.mean * momentum + moments.mean * (1 - momentum));
          if (variance_out != nullptr) variance_out[c] = static_cast<T>(running.variance * momentum + moments.variance * (1 - momentum));
        }
        normalize(plan, c, x, moments.mean, 1 / std::sqrt(moments.variance + plan.epsilon), input<T>(a, 1)[c], input<T>(a, 2)[c],
                  output<T>(a, 0));
      }
    });
  });
}

std::unique_ptr<Kernel> batchNormalization(const KernelSpec& spec) {
  checkArity(spec, 5, 5);
  if (spec.node->opset_version > 0 && spec.node->opset_version < 14)
    refuse(spec, "opset {} means something else by its outputs; export the model with opset 14 or later", spec.node->opset_version);
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
  return withType<float, double>(spec, type, "X", [&](auto zero) { return makeBatchNorm<decltype(zero)>(plan, training, momentum); });
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
        const Moments moments = momentsOf(plan, c, x);
        const double inverse = 1 / std::sqrt(moments.variance + plan.epsilon);
        const auto count = static_cast<double>(plan.count());
        const double mean = plan.sum(c, [&](int64_t i) { return static_cast<double>(dy[i]); }) / count;
        const double dot = plan.sum(c, [&](int64_t i) { return static_cast<double>(dy[i]) * (static_cast<double>(x[i]) - moments.mean); });
        const T factor = static_cast<T>(inverse * static_cast<double>(input<T>(a, 2)[c]));
        const T slope = static_cast<T>(dot * inverse * inverse / count);
        const T dy_mean = static_cast<T>(mean);
        const T x_mean = static_cast<T>(moments.mean);
        plan.forRuns(c, [&](int64_t first, int64_t size) {
          for (int64_t i = first; i < first + size; ++i) dx[i] = factor * (dy[i] - dy_mean - (x[i] - x_mean) * slope);
        });
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
        if (T* d_scale = output<T>(a, 0)) {
          const Moments moments = momentsOf(plan, c, x);
          const double dot =
              plan.sum(c, [&](int64_t i) { return static_cast<double>(dy[i]) * (static_cast<double>(x[i]) - moments.mean); });
          d_scale[c] = static_cast<T>(dot / std::sqrt(moments.variance + plan.epsilon));
        }
        if (T* d_bias = output<T>(a, 1)) d_bias[c] = static_cast<T>(plan.sum(c, [&](int64_t i) { return static_cast<double>(dy[i]); }));
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
  return withType<float, double>(spec, type, "dY", [&](auto zero) { return makeInputGrad<decltype(zero)>(plan); });
}

std::unique_ptr<Kernel> weightGrad(const KernelSpec& spec) {
  checkArity(spec, 2, 2);
  const BatchNorm plan = planGradient(spec);
  for (size_t o : {0, 1}) {
    checkOutputType(spec, o, spec.inputs[0].data_type);
    checkOutputShape(spec, o, {plan.channels});
  }
  return withType<float, double>(spec, spec.inputs[0].data_type, "dY", [&](auto zero) { return makeWeightGrad<decltype(zero)>(plan); });
}

}  // namespace

void addBatchNormalizationKernels(KernelRegistry& registry) {
  const std::string ours(kPipeshardDomain);
  registry.add("", "BatchNormalization", batchNormalization);
  registry.add(ours, "BatchNormalizationInputGrad", inputGrad);
  registry.add(ours, "BatchNormalizationWeightGrad", weightGrad);
}

}  // namespace pipeshard::kernels
