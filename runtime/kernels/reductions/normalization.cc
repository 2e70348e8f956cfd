#include <cmath>

#include "runtime/kernels/base/columns.h"
#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/lanes.h"
#include "runtime/kernels/base/parallel.h"
#include "runtime/kernels/base/support.h"

namespace pipeshard::kernels {
namespace {

// LayerNormalization: X is [rows, size]. Rows are independent of each other, in the forward pass and in the
// input's gradient, and are shared out among threads.
//   x' = (x - mean) inverse, inverse = 1 / sqrt(variance + epsilon), y = x' scale + bias
// T: elements; S: the saved mean and inverse standard deviation.
template <typename T, typename S>
struct LayerNormRow {
  PIPESHARD_INLINE static void run(const T* x, const T* scale, const T* bias, T* y, S* mean_out,
                                   S* inverse_out, int64_t size, T epsilon) {
    const T mean =
        sumOf<T>(size, [x](int64_t i) PIPESHARD_LAMBDA_INLINE { return x[i]; }) / static_cast<T>(size);
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
template <typename T, typename S>
struct LayerNormInputGradRow {
  PIPESHARD_INLINE static void run(const T* dy, const T* x, const T* scale, const S* mean_in,
                                   const S* inverse_in, T* dx, int64_t size) {
    const T mean = static_cast<T>(*mean_in);
    const T inverse = static_cast<T>(*inverse_in);
    const T share = T(1) / static_cast<T>(size);
    const T sum = sumOf<T>(size, [=](int64_t i) PIPESHARD_LAMBDA_INLINE { return dy[i] * scale[i]; }) * share;
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
template <typename T, typename S>
struct LayerNormWeightGrad {
  PIPESHARD_INLINE static void run(const T* dy, const T* x, const S* mean, const S* inverse, T* dscale,
                                   T* dbias, int64_t rows, int64_t size, int64_t width) {
    double scale_total[kWeightColumns] = {};
    double bias_total[kWeightColumns] = {};
    for (int64_t begin = 0; begin < rows; begin += kRowChunk) {
      T scale_sum[kWeightColumns] = {};
      T bias_sum[kWeightColumns] = {};
      for (int64_t row = begin; row < std::min(rows, begin + kRowChunk); ++row) {
        const T m = static_cast<T>(mean[row]);
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

// X seen as [rows, size]; the statistics have `rows` elements.
struct NormPlan {
  int64_t rows = 1;
  int64_t size = 1;
  Shape statistics;
};

NormPlan planNorm(const KernelSpec& spec, size_t x_input) {
  const Shape& shape = spec.inputs[x_input].shape;
  const size_t axis = axisAttribute(spec, -1, x_input);
  NormPlan plan;
  for (size_t i = 0; i < shape.size(); ++i) {
    (i < axis ? plan.rows : plan.size) *= shape[i];
    plan.statistics.push_back(i < axis ? shape[i] : 1);
  }
  return plan;
}

void checkElements(const KernelSpec& spec, size_t input, int64_t expected, std::string_view what) {
  if (!hasInput(spec, input) || elementCount(spec.inputs[input].shape) == expected) return;
  refuse(spec, "{} (input {}) has shape {}; the CPU kernel needs {} elements, one per normalised position",
         what, input, shapeToString(spec.inputs[input].shape), expected);
}

// Calls body(T{}, S{}) for the elements' type and that of the statistics (float32 or the elements' type).
template <typename Body>
std::unique_ptr<Kernel> withNormTypes(const KernelSpec& spec, DataType elements, DataType statistics,
                                      const Body& body) {
  return withType<float, double>(spec, elements, "input 0", [&](auto zero) {
    using T = decltype(zero);
    if (statistics == DataType::kFloat32) return body(T{}, float{});
    if (statistics != elements)
      refuse(spec, "Mean has type {}; it must be float32 or {}", dataTypeName(statistics),
             dataTypeName(elements));
    return body(T{}, T{});
  });
}

template <typename T, typename S>
std::unique_ptr<Kernel> makeLayerNorm(const KernelSpec& spec, const NormPlan& plan) {
  const T epsilon = static_cast<T>(spec.node->floatAttribute("epsilon", 1e-5f));
  return makeKernel([plan, epsilon](const KernelArguments& arguments) {
    const T* x = input<T>(arguments, 0);
    const T* scale = input<T>(arguments, 1);
    const T* bias = input<T>(arguments, 2);
    T* y = output<T>(arguments, 0);
    S* mean = output<S>(arguments, 1);
    S* inverse = output<S>(arguments, 2);
    forRows(plan.rows, plan.size, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        runVectorised<LayerNormRow<T, S>>(x + row * plan.size, scale, bias, y + row * plan.size,
                                          mean == nullptr ? nullptr : mean + row,
                                          inverse == nullptr ? nullptr : inverse + row, plan.size, epsilon);
      }
    });
  });
}

std::unique_ptr<Kernel> layerNormalization(const KernelSpec& spec) {
  checkArity(spec, 2, 3);
  const NormPlan plan = planNorm(spec, 0);
  const DataType type = spec.inputs[0].data_type;
  for (size_t i : {1, 2}) {
    checkInputType(spec, i, type);
    checkElements(spec, i, plan.size, i == 1 ? "Scale" : "B");
    checkOutputShape(spec, i, plan.statistics);
  }
  checkOutputType(spec, 0, type);
  checkOutputShape(spec, 0, spec.inputs[0].shape);
  DataType statistics = type;
  for (size_t i : {2, 1}) {
    if (hasOutput(spec, i)) statistics = spec.outputs[i].data_type;
  }
  checkOutputType(spec, 2, statistics);
  return withNormTypes(spec, type, statistics,
                       [&](auto t, auto s) { return makeLayerNorm<decltype(t), decltype(s)>(spec, plan); });
}

template <typename T, typename S>
std::unique_ptr<Kernel> makeInputGrad(const NormPlan& plan) {
  return makeKernel(
      [plan](const KernelArguments& arguments) {
        const T* dy = input<T>(arguments, 0);
        const T* x = input<T>(arguments, 1);
        T* dx = output<T>(arguments, 0);
        forRows(plan.rows, plan.size, [&](int64_t first, int64_t last) {
          for (int64_t row = first; row < last; ++row) {
            runVectorised<LayerNormInputGradRow<T, S>>(
                dy + row * plan.size, x + row * plan.size, input<T>(arguments, 2),
                input<S>(arguments, 3) + row, input<S>(arguments, 4) + row, dx + row * plan.size, plan.size);
          }
        });
      },
      {.in_place = {{0, 0}, {1, 0}}, .workspace_bytes = 0});
}

std::unique_ptr<Kernel> layerNormInputGrad(const KernelSpec& spec) {
  checkArity(spec, 5, 5);
  const NormPlan plan = planNorm(spec, 1);
  const DataType type = spec.inputs[0].data_type;
  checkInputType(spec, 1, type);
  checkInputType(spec, 2, type);
  checkInputShape(spec, 0, spec.inputs[1].shape);
  checkElements(spec, 2, plan.size, "Scale");
  checkInputShape(spec, 3, plan.statistics);
  checkInputShape(spec, 4, plan.statistics);
  checkInputType(spec, 4, spec.inputs[3].data_type);
  checkOutputType(spec, 0, type);
  checkOutputShape(spec, 0, spec.inputs[1].shape);
  return withNormTypes(spec, type, spec.inputs[3].data_type,
                       [&](auto t, auto s) { return makeInputGrad<decltype(t), decltype(s)>(plan); });
}

template <typename T, typename S>
std::unique_ptr<Kernel> makeWeightGrad(const NormPlan& plan) {
  return makeKernel([plan](const KernelArguments& arguments) {
    const T* dy = input<T>(arguments, 0);
    const T* x = input<T>(arguments, 1);
    T* dscale = output<T>(arguments, 0);
    T* dbias = output<T>(arguments, 1);
    const bool tiny = plan.rows * plan.size < kBlockElements;
    forEachBlock((plan.size + kWeightColumns - 1) / kWeightColumns, !tiny, [&](int64_t group) {
      const int64_t column = group * kWeightColumns;
      runVectorised<LayerNormWeightGrad<T, S>>(
          dy + column, x + column, input<S>(arguments, 2), input<S>(arguments, 3),
          dscale == nullptr ? nullptr : dscale + column, dbias == nullptr ? nullptr : dbias + column,
          plan.rows, plan.size, std::min(kWeightColumns, plan.size - column));
    });
  });
}

std::unique_ptr<Kernel> layerNormWeightGrad(const KernelSpec& spec) {
  checkArity(spec, 4, 4);
  const NormPlan plan = planNorm(spec, 1);
  const Shape& x = spec.inputs[1].shape;
  const DataType type = spec.inputs[0].data_type;
  checkInputType(spec, 1, type);
  checkInputShape(spec, 0, x);
  checkInputShape(spec, 2, plan.statistics);
  checkInputShape(spec, 3, plan.statistics);
  checkInputType(spec, 3, spec.inputs[2].data_type);
  const Shape weights(x.begin() + axisAttribute(spec, -1, 1), x.end());
  for (size_t i : {0, 1}) {
    checkOutputType(spec, i, type);
    checkOutputShape(spec, i, weights);
  }
  return withNormTypes(spec, type, spec.inputs[2].data_type,
                       [&](auto t, auto s) { return makeWeightGrad<decltype(t), decltype(s)>(plan); });
}

// x / norm along the middle axis; NaN where the norm is 0, as in the conformance data. Sums are float64, so
// that squares of float32 do not overflow.
template <typename T>
void runLpNormalization(const AxisSplit& split, int64_t p, const T* x, T* y) {
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

std::unique_ptr<Kernel> lpNormalization(const KernelSpec& spec) {
  checkArity(spec, 1, 1);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  checkOutputShape(spec, 0, spec.inputs[0].shape);
  const int64_t p = spec.node->intAttribute("p", 2);
  if (p != 1 && p != 2) refuse(spec, "attribute p is {}; ONNX knows 1 and 2", p);
  const AxisSplit split = splitAtAxis(spec.inputs[0].shape, axisAttribute(spec, -1));
  return withType<float, double>(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel(
        [=](const KernelArguments& arguments) {
          runLpNormalization<T>(split, p, input<T>(arguments, 0), output<T>(arguments, 0));
        },
        inPlaceTraits(spec, {0}));
  });
}

}  // namespace

void addNormalizationKernels(KernelRegistry& registry) {
  const std::string ours(kPipeshardDomain);
  registry.add("", "LayerNormalization", layerNormalization);
  registry.add("", "LpNormalization", lpNormalization);
  registry.add(ours, "LayerNormalizationInputGrad", layerNormInputGrad);
  registry.add(ours, "LayerNormalizationWeightGrad", layerNormWeightGrad);
}

}  // namespace pipeshard::kernels
