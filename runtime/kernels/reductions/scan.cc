#include <algorithm>

#include "runtime/kernels/base/columns.h"
#include "runtime/kernels/base/families.h"

namespace pipeshard::kernels {
namespace {

// The position of the greatest (least) element along the middle axis; NaN counts as greatest (least), as in
// numpy.
template <typename T>
void runArgExtreme(const AxisSplit& split, bool greatest, bool take_last, const T* x, int64_t* y) {
  forColumns(split, [&](int64_t outer, int64_t column, int64_t width) {
    for (int64_t c = column; c < column + width; ++c) {
      const T* line = x + outer * split.size * split.inner + c;
      T best = line[0];
      int64_t at = 0;
      for (int64_t i = 1; i < split.size; ++i) {
        const T value = line[i * split.inner];
        const bool better = best == best && (value != value || (greatest ? value > best : value < best));
        if (better || (take_last && value == best)) {
          best = value;
          at = i;
        }
      }
      y[outer * split.inner + c] = at;
    }
  });
}

std::unique_ptr<Kernel> argExtreme(const KernelSpec& spec, bool greatest) {
  checkArity(spec, 1, 1);
  const Shape& shape = spec.inputs[0].shape;
  const size_t axis = axisAttribute(spec, 0);
  Shape expected = shape;
  if (spec.node->intAttribute("keepdims", 1) != 0)
    expected[axis] = 1;
  else
    expected.erase(expected.begin() + axis);
  checkOutputShape(spec, 0, expected);
  checkOutputType(spec, 0, DataType::kInt64);
  if (shape[axis] == 0) refuse(spec, "axis {} has no elements", axis);
  const AxisSplit split = splitAtAxis(shape, axis);
  const bool take_last = spec.node->intAttribute("select_last_index", 0) != 0;
  return withType<float, double, int32_t, int64_t, int8_t, uint8_t>(
      spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
        using T = decltype(zero);
        return makeKernel([=](const KernelArguments& arguments) {
          runArgExtreme<T>(split, greatest, take_last, input<T>(arguments, 0), output<int64_t>(arguments, 0));
        });
      });
}

// The k greatest (least) elements along the middle axis, best first; of equal ones the earlier first; NaN
// counts as greatest (least).
template <typename T>
void runTopK(const AxisSplit& split, int64_t k, bool greatest, const T* x, T* values, int64_t* places) {
  const auto better = [greatest](T a, T b) { return b == b && (a != a || (greatest ? a > b : a < b)); };
  forColumns(split, [&](int64_t outer, int64_t column, int64_t width) {
    for (int64_t c = column; c < column + width; ++c) {
      const T* line = x + outer * split.size * split.inner + c;
      T* best = values + outer * k * split.inner + c;
      int64_t* place = places + outer * k * split.inner + c;
      for (int64_t i = 0; i < split.size; ++i) {
        const T value = line[i * split.inner];
        int64_t at = std::min(i, k);
        if (at == k && (k == 0 || !better(value, best[(k - 1) * split.inner]))) continue;
        for (at = std::min(at, k - 1); at > 0 && better(value, best[(at - 1) * split.inner]); --at) {
          best[at * split.inner] = best[(at - 1) * split.inner];
          place[at * split.inner] = place[(at - 1) * split.inner];
        }
        best[at * split.inner] = value;
        place[at * split.inner] = i;
      }
    }
  });
}

// Sorted even where the model does not ask for it: so results do not depend on who computes them.
std::unique_ptr<Kernel> topK(const KernelSpec& spec) {
  checkArity(spec, 1, 2);
  const Shape& shape = spec.inputs[0].shape;
  const size_t axis = axisAttribute(spec, -1);
  const int64_t k = hasInput(spec, 1) ? static_cast<int64_t>(constantNumber(spec, 1, "K"))
                                      : spec.node->intAttribute("k", -1);
  if (k < 0 || k > shape[axis]) refuse(spec, "K is {}; axis {} has {} elements", k, axis, shape[axis]);
  Shape expected = shape;
  expected[axis] = k;
  for (size_t o : {0, 1}) checkOutputShape(spec, o, expected);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  checkOutputType(spec, 1, DataType::kInt64);
  if (!hasOutput(spec, 1)) refuse(spec, "output 1 is missing");
  const AxisSplit split = splitAtAxis(shape, axis);
  const bool greatest = spec.node->intAttribute("largest", 1) != 0;
  return withType<float, double, int32_t, int64_t>(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel([=](const KernelArguments& arguments) {
      runTopK<T>(split, k, greatest, input<T>(arguments, 0), output<T>(arguments, 0),
                 output<int64_t>(arguments, 1));
    });
  });
}

template <typename T>
void runCumulativeSum(const AxisSplit& split, bool exclusive, bool reverse, const T* x, T* y) {
  forColumns(split, [&](int64_t outer, int64_t column, int64_t width) {
    T sums[kColumns] = {};
    for (int64_t step = 0; step < split.size; ++step) {
      const int64_t i = reverse ? split.size - 1 - step : step;
      const int64_t at = (outer * split.size + i) * split.inner + column;
      for (int64_t c = 0; c < width; ++c) {
        const T before = sums[c];
        sums[c] += x[at + c];
        y[at + c] = exclusive ? before : sums[c];
      }
    }
  });
}

std::unique_ptr<Kernel> cumulativeSum(const KernelSpec& spec) {
  checkArity(spec, 2, 2);
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  checkOutputShape(spec, 0, spec.inputs[0].shape);
  const int64_t axis = constantNumber(spec, 1, "axis");
  const AxisSplit split =
      splitAtAxis(spec.inputs[0].shape, checkedAxis(spec, axis, spec.inputs[0].shape.size()));
  const bool exclusive = spec.node->intAttribute("exclusive", 0) != 0;
  const bool reverse = spec.node->intAttribute("reverse", 0) != 0;
  return withType<float, double, int32_t, int64_t>(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    return makeKernel(
        [=](const KernelArguments& arguments) {
          runCumulativeSum<T>(split, exclusive, reverse, input<T>(arguments, 0), output<T>(arguments, 0));
        },
        inPlaceTraits(spec, {0}));
  });
}

}  // namespace

void addScanKernels(KernelRegistry& registry) {
  registry.add("", "ArgMax", [](const KernelSpec& spec) { return argExtreme(spec, true); });
  registry.add("", "ArgMin", [](const KernelSpec& spec) { return argExtreme(spec, false); });
  registry.add("", "CumSum", cumulativeSum);
  registry.add("", "TopK", topK);
}

}  // namespace pipeshard::kernels
