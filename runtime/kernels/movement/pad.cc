#include <bit>

#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/parallel.h"
#include "runtime/kernels/base/support.h"

namespace pipeshard::kernels {
namespace {

constexpr int64_t kOutside = -1;

// Per output position of one axis, the source position, or kOutside for the constant.
std::vector<int64_t> padMap(const KernelSpec& spec, const std::string& mode, int64_t size, int64_t before,
                            int64_t after) {
  std::vector<int64_t> map;
  if (size + before + after < 0)
    refuse(spec, "pads of {} and {} leave nothing of an axis of size {}", before, after, size);
  if (mode != "constant" && size == 0 && before + after > 0)
    refuse(spec, "mode '{}' cannot pad an axis of size 0", mode);
  for (int64_t i = -before; i < size + after; ++i) {
    if (i >= 0 && i < size) {
      map.push_back(i);
    } else if (mode == "constant") {
      map.push_back(kOutside);
    } else if (mode == "edge") {
      map.push_back(i < 0 ? 0 : size - 1);
    } else if (mode == "wrap") {
      map.push_back((i % size + size) % size);
    } else {  // reflect, without repeating the edge
      const int64_t period = std::max<int64_t>(1, 2 * (size - 1));
      const int64_t phase = (i % period + period) % period;
      map.push_back(phase < size ? phase : period - phase);
    }
  }
  return map;
}

struct PadPlan {
  Shape output;
  Shape in_strides;
  std::vector<std::vector<int64_t>> maps;
  int64_t rows = 1;
};

template <typename T>
void runPad(const PadPlan& plan, const T* in, T value, T* out) {
  const size_t outer = plan.output.size() - 1;
  const std::vector<int64_t>& inner = plan.maps[outer];
  const int64_t length = inner.size();
  forRows(plan.rows, length, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      int64_t rest = row, from = 0;
      bool outside = false;
      for (size_t a = outer; a-- > 0;) {
        const int64_t position = plan.maps[a][rest % plan.output[a]];
        rest /= plan.output[a];
        outside = outside || position == kOutside;
        from += position * plan.in_strides[a];
      }
      for (int64_t i = 0; i < length; ++i) {
        const int64_t position = inner[i];
        out[row * length + i] = outside || position == kOutside ? value : in[from + position];
      }
    }
  });
}

PadPlan planPad(const KernelSpec& spec, const std::string& mode) {
  Shape shape = spec.inputs[0].shape;
  const std::vector<int64_t> pads =
      integersFromAttributeOrInput(spec, spec.node->hasAttribute("paddings") ? "paddings" : "pads", 1);
  std::vector<size_t> axes;
  if (hasInput(spec, 3)) {
    for (int64_t axis : constantIntegers(spec, 3, "axes"))
      axes.push_back(checkedAxis(spec, axis, shape.size()));
  } else {
    for (size_t i = 0; i < shape.size(); ++i) axes.push_back(i);
  }
  if (pads.size() != 2 * axes.size())
    refuse(spec, "pads has {} entries for {} axes; it must have two per axis", pads.size(), axes.size());
  std::vector<std::pair<int64_t, int64_t>> amounts(shape.size());
  for (size_t i = 0; i < axes.size(); ++i) amounts[axes[i]] = {pads[i], pads[i + axes.size()]};
  PadPlan plan;
  plan.in_strides = rowMajorStrides(shape);
  for (size_t i = 0; i < shape.size(); ++i) {
    plan.maps.push_back(padMap(spec, mode, shape[i], amounts[i].first, amounts[i].second));
    plan.output.push_back(std::ssize(plan.maps.back()));
  }
  checkOutputShape(spec, 0, plan.output);
  if (plan.output.empty()) {
    plan.output = {1};
    plan.in_strides = {1};
    plan.maps = {{0}};
  }
  for (size_t i = 0; i + 1 < plan.output.size(); ++i) plan.rows *= plan.output[i];
  return plan;
}

std::unique_ptr<Kernel> pad(const KernelSpec& spec) {
  checkArity(spec, 1, 4);
  const std::string mode = spec.node->stringAttribute("mode", "constant");
  if (mode != "constant" && mode != "edge" && mode != "wrap" && mode != "reflect") {
    refuse(spec, "attribute mode is '{}'; the CPU kernel supports 'constant', 'edge', 'reflect' and 'wrap'",
           mode);
  }
  checkOutputType(spec, 0, spec.inputs[0].data_type);
  checkInputType(spec, 2, spec.inputs[0].data_type);
  if (hasInput(spec, 2) && elementCount(spec.inputs[2].shape) != 1)
    refuse(spec, "input 2 (constant_value) must be a scalar");
  const PadPlan plan = planPad(spec, mode);
  const float fill = spec.node->hasAttribute("value") ? spec.node->floatAttribute("value", 0) : 0.0f;
  if (fill != 0 && spec.inputs[0].data_type != DataType::kFloat32)
    refuse(spec, "attribute value is supported for float32 only");
  return withElementSize(spec, spec.inputs[0].data_type, "input 0", [&](auto zero) {
    using T = decltype(zero);
    T value{};
    if constexpr (sizeof(T) == sizeof(float)) value = std::bit_cast<T>(fill);
    return makeKernel([plan, value](const KernelArguments& arguments) {
      const T* given = input<T>(arguments, 2);
      runPad<T>(plan, input<T>(arguments, 0), given != nullptr ? *given : value, output<T>(arguments, 0));
    });
  });
}

}  // namespace

void addPadKernels(KernelRegistry& registry) { registry.add("", "Pad", pad); }

}  // namespace pipeshard::kernels
