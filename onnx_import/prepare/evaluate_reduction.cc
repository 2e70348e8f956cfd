// Reductions and running sums.
#include <algorithm>
#include <string_view>
#include <type_traits>

#include "ir/base/error.h"
#include "onnx_import/prepare/evaluate_families.h"
#include "onnx_import/prepare/evaluator.h"

namespace pipeshard {
namespace {

using Result = std::optional<std::vector<Constant>>;

enum class Reduction { kSum, kProd, kMin, kMax };

template <typename T>
T combine(Reduction reduction, T a, T b) {
  switch (reduction) {
    case Reduction::kMin: return std::min(a, b);
    case Reduction::kMax: return std::max(a, b);
    default: break;
  }
  if constexpr (std::is_floating_point_v<T>) {
    return reduction == Reduction::kSum ? a + b : a * b;
  } else {
    const uint64_t x = a;
    const uint64_t y = b;
    return static_cast<T>(reduction == Reduction::kSum ? x + y : x * y);
  }
}

Result reduce(Reduction reduction, const Node& node, const ConstantInputs& inputs) {
  const Constant& x = *inputs[0];
  const std::vector<int64_t> axes = integersOf(node, inputs, 1, "axes").value_or(std::vector<int64_t>{});
  if (axes.empty() && node.intAttribute("noop_with_empty_axes", 0) != 0) return Result{{x}};
  std::vector<bool> reduced(x.shape.size(), axes.empty());
  for (int64_t axis : axes) reduced[normalizeAxis(axis, x.shape.size())] = true;
  Shape kept = x.shape;
  Shape dropped;
  for (size_t axis = 0; axis < kept.size(); ++axis) {
    if (reduced[axis]) {
      kept[axis] = 1;
    } else {
      dropped.push_back(kept[axis]);
    }
  }
  // The minimum of nothing has no value.
  if (elementCount(x.shape) == 0 && reduction != Reduction::kSum && reduction != Reduction::kProd)
    return std::nullopt;
  Constant result = makeZeros(x.data_type, kept);
  Shape strides = rowMajorStrides(kept);
  for (size_t axis = 0; axis < kept.size(); ++axis) strides[axis] = reduced[axis] ? 0 : strides[axis];
  const Shape own = rowMajorStrides(x.shape);
  const bool known = withElementType(x.data_type, [&](auto tag) {
    using T = decltype(tag);
    T* out = elementsOf<T>(result);
    std::vector<bool> started(elementCount(kept), false);
    if (reduction == Reduction::kProd) std::fill_n(out, started.size(), T{1});
    for (int64_t i = 0; i < elementCount(x.shape); ++i) {
      int64_t target = 0;
      for (size_t axis = 0; axis < kept.size(); ++axis)
        target += i / own[axis] % x.shape[axis] * strides[axis];
      const size_t t = target;
      out[t] = started[t] ? combine(reduction, out[t], elementsOf<T>(x)[i]) : elementsOf<T>(x)[i];
      started[t] = true;
    }
  });
  if (!known) return std::nullopt;
  if (node.intAttribute("keepdims", 1) == 0) result.shape = std::move(dropped);
  return Result{{std::move(result)}};
}

Result runningSum(const Node& node, const ConstantInputs& inputs) {
  const Constant& x = *inputs[0];
  const auto axes = integersOf(node, inputs, 1, nullptr);
  if (!axes || axes->size() != 1) return std::nullopt;
  const size_t axis = normalizeAxis(axes->front(), x.shape.size());
  const bool exclusive = node.intAttribute("exclusive", 0) != 0;
  const bool reverse = node.intAttribute("reverse", 0) != 0;
  const int64_t stride = rowMajorStrides(x.shape)[axis];
  const int64_t size = x.shape[axis];
  Constant result = makeZeros(x.data_type, x.shape);
  const bool known = withElementType(x.data_type, [&](auto tag) {
    using T = decltype(tag);
    for (int64_t start = 0; start < elementCount(x.shape); ++start) {
      if (start / stride % size != 0) continue;
      T sum{};
      for (int64_t k = 0; k < size; ++k) {
        const int64_t i = start + (reverse ? size - 1 - k : k) * stride;
        const T next = combine(Reduction::kSum, sum, elementsOf<T>(x)[i]);
        elementsOf<T>(result)[i] = exclusive ? sum : next;
        sum = next;
      }
    }
  });
  return known ? Result{{std::move(result)}} : std::nullopt;
}

}  // namespace

std::optional<std::vector<Constant>> evaluateReduction(const Node& node, const ConstantInputs& inputs) {
  if (inputs.empty() || inputs[0] == nullptr) return std::nullopt;
  if (node.op_type == "ReduceSum") return reduce(Reduction::kSum, node, inputs);
  if (node.op_type == "ReduceProd") return reduce(Reduction::kProd, node, inputs);
  if (node.op_type == "ReduceMin") return reduce(Reduction::kMin, node, inputs);
  if (node.op_type == "ReduceMax") return reduce(Reduction::kMax, node, inputs);
  if (node.op_type == "CumSum") return runningSum(node, inputs);
  return std::nullopt;
}

}  // namespace pipeshard
