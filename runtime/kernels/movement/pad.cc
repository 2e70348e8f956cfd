#include "runtime/kernels/movement/pad.h"

#include <bit>

#include "runtime/kernels/base/families.h"
#include "runtime/kernels/base/support.h"

namespace pipeshard::kernels {
namespace {

// Per output position of one axis, the source position, or kOutside for the constant.
std::vector<int64_t> padMap(const KernelSpec& spec, PadMode mode, int64_t size, int64_t before,
                            int64_t after) {
  std::vector<int64_t> map;
  if (size + before + after < 0)
    refuse(spec, "pads of {} and {} leave nothing of an axis of size {}", before, after, size);
  if (mode != PadMode::kConstant && size == 0 && before + after > 0)
    refuse(spec, "mode '{}' cannot pad an axis of size 0", spec.node->stringAttribute("mode", "constant"));
  for (int64_t i = -before; i < size + after; ++i) map.push_back(paddedFrom(mode, i, size));
  return map;
}

PadPlan planPad(const KernelSpec& spec, PadMode mode) {
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
  plan.mode = mode;
  plan.in_strides = rowMajorStrides(shape);
  plan.input = shape;
  for (size_t i = 0; i < shape.size(); ++i) {
    plan.maps.push_back(padMap(spec, mode, shape[i], amounts[i].first, amounts[i].second));
    plan.output.push_back(std::ssize(plan.maps.back()));
    plan.before.push_back(amounts[i].first);
  }
  checkOutputShape(spec, 0, plan.output);
  if (plan.output.empty()) {
    plan.output = {1};
    plan.in_strides = {1};
    plan.maps = {{0}};
    plan.input = {1};
    plan.before = {0};
  }
  for (size_t i = 0; i + 1 < plan.output.size(); ++i) plan.rows *= plan.output[i];
  return plan;
}

PadMode modeOf(const KernelSpec& spec) {
  const std::string mode = spec.node->stringAttribute("mode", "constant");
  if (mode == "constant") return PadMode::kConstant;
  if (mode == "edge") return PadMode::kEdge;
  if (mode == "wrap") return PadMode::kWrap;
  if (mode == "reflect") return PadMode::kReflect;
  refuse(spec, "attribute mode is '{}'; the kernel supports 'constant', 'edge', 'reflect' and 'wrap'", mode);
}

std::unique_ptr<Kernel> pad(const KernelSpec& spec) {
  checkArity(spec, 1, 4);
  const PadMode mode = modeOf(spec);
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
      padElements<T>(arguments.queue, plan, input<T>(arguments, 0), value, input<T>(arguments, 2),
                     output<T>(arguments, 0));
    });
  });
}

}  // namespace

void addPadKernels(KernelRegistry& registry) { registry.add("", "Pad", pad); }

}  // namespace pipeshard::kernels
