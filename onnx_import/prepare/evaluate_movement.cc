// Operators that only move elements. Most of them are the same bytes under another shape (reshaped), or one
// walk over the input with other strides (copyStrided): element (c0, c1, ...) of the result is the input's
// element at base + c0 * stride0 + c1 * stride1 + ... . A stride of 0 repeats.
//   Tile of [2,3] by {1,2}: shape {1,2,2,3}, strides {0,3,0,1}, then seen as [2,6]
//   Slice of [5] from 4 backwards by 2 (elements 4, 2, 0): shape {3}, base 4, strides {-2}
#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <string_view>
#include <unordered_map>

#include "ir/base/error.h"
#include "onnx_import/prepare/evaluate_families.h"
#include "onnx_import/prepare/evaluator.h"

namespace pipeshard {
namespace {

using Result = std::optional<std::vector<Constant>>;

Constant reshaped(const Constant& input, Shape shape) {
  if (elementCount(shape) != elementCount(input.shape)) {
    fail(ErrorCode::kBadModel, "a tensor of shape {} cannot take the shape {}", shapeToString(input.shape),
         shapeToString(shape));
  }
  return Constant{input.data_type, std::move(shape), input.bytes};
}

Result identity(const Node&, const ConstantInputs& inputs) { return Result{{*inputs[0]}}; }

Result reshape(const Node& node, const ConstantInputs& inputs) {
  const auto target = integersOf(node, inputs, 1, "shape");
  if (!target) return std::nullopt;
  Shape shape = *target;
  const bool allow_zero = node.intAttribute("allowzero", 0) != 0;
  int64_t known = 1;
  size_t open = shape.size();
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] == 0 && !allow_zero) {
      if (axis >= inputs[0]->shape.size())
        fail(ErrorCode::kBadModel, "size 0 at axis {} copies an axis that the input does not have", axis);
      shape[axis] = inputs[0]->shape[axis];
    }
    if (shape[axis] == -1) {
      open = axis;
    } else if (shape[axis] < 0 || __builtin_mul_overflow(known, shape[axis], &known)) {
      fail(ErrorCode::kBadModel, "the target shape {} is no shape", shapeToString(shape));
    }
  }
  if (open < shape.size()) shape[open] = known == 0 ? 0 : elementCount(inputs[0]->shape) / known;
  return Result{{reshaped(*inputs[0], std::move(shape))}};
}

Result flatten(const Node& node, const ConstantInputs& inputs) {
  const Shape& shape = inputs[0]->shape;
  int64_t axis = node.intAttribute("axis", 1);
  if (axis < 0) axis += std::ssize(shape);
  if (axis < 0 || axis > std::ssize(shape))
    fail(ErrorCode::kBadModel, "axis {} is outside of {}", axis, shapeToString(shape));
  const Shape outer(shape.begin(), shape.begin() + axis);
  const Shape inner(shape.begin() + axis, shape.end());
  return Result{{reshaped(*inputs[0], {elementCount(outer), elementCount(inner)})}};
}

Result unsqueeze(const Node& node, const ConstantInputs& inputs) {
  const auto axes = integersOf(node, inputs, 1, "axes");
  if (!axes) return std::nullopt;
  const size_t rank = inputs[0]->shape.size() + axes->size();
  std::vector<bool> added(rank, false);
  for (int64_t axis : *axes) added[normalizeAxis(axis, rank)] = true;
  Shape shape(rank, 1);
  size_t next = 0;
  for (size_t axis = 0; axis < rank; ++axis) {
    if (added[axis]) continue;
    if (next == inputs[0]->shape.size()) fail(ErrorCode::kBadModel, "an axis is repeated");
    shape[axis] = inputs[0]->shape[next++];
  }
  return Result{{reshaped(*inputs[0], std::move(shape))}};
}

Result squeeze(const Node& node, const ConstantInputs& inputs) {
  const Shape& from = inputs[0]->shape;
  const auto axes = integersOf(node, inputs, 1, "axes");
  std::vector<bool> dropped(from.size(), false);
  for (size_t axis = 0; axis < from.size() && !axes; ++axis) dropped[axis] = from[axis] == 1;
  for (int64_t axis : axes.value_or(std::vector<int64_t>{})) dropped[normalizeAxis(axis, from.size())] = true;
  Shape shape;
  for (size_t axis = 0; axis < from.size(); ++axis) {
    if (!dropped[axis]) shape.push_back(from[axis]);
  }
  return Result{{reshaped(*inputs[0], std::move(shape))}};
}

Result transpose(const Node& node, const ConstantInputs& inputs) {
  const Shape& from = inputs[0]->shape;
  std::vector<int64_t> permutation(from.size());
  for (size_t i = 0; i < from.size(); ++i) permutation[i] = from.size() - 1 - i;
  permutation = node.intsAttribute("perm", permutation);
  std::vector<int64_t> sorted = permutation;
  std::sort(sorted.begin(), sorted.end());
  for (int64_t i = 0; i < std::ssize(sorted); ++i) {
    if (sorted.size() != from.size() || sorted[i] != i)
      fail(ErrorCode::kBadModel, "attribute 'perm' is no permutation of {} axes", from.size());
  }
  const Shape strides = rowMajorStrides(from);
  Shape shape;
  std::vector<int64_t> moved;
  for (int64_t axis : permutation) {
    shape.push_back(from[axis]);
    moved.push_back(strides[axis]);
  }
  return Result{{copyStrided(*inputs[0], shape, 0, moved)}};
}

Constant broadcastTo(const Constant& input, const Shape& shape) {
  const Shape own = rowMajorStrides(input.shape);
  std::vector<int64_t> strides(shape.size(), 0);
  const size_t skip = shape.size() - input.shape.size();
  for (size_t axis = 0; axis < input.shape.size(); ++axis)
    strides[skip + axis] = input.shape[axis] == 1 ? 0 : own[axis];
  return copyStrided(input, shape, 0, strides);
}

Result expand(const Node& node, const ConstantInputs& inputs) {
  const auto target = integersOf(node, inputs, 1, nullptr);
  if (!target) return std::nullopt;
  return Result{{broadcastTo(*inputs[0], broadcastShapes(inputs[0]->shape, *target))}};
}

// Every axis is two while it is copied: the repeats, with stride 0, and the axis itself.
Result tile(const Node& node, const ConstantInputs& inputs) {
  const auto repeats = integersOf(node, inputs, 1, nullptr);
  const Shape& from = inputs[0]->shape;
  if (!repeats || repeats->size() != from.size()) return std::nullopt;
  const Shape own = rowMajorStrides(from);
  Shape split;
  Shape shape;
  std::vector<int64_t> strides;
  for (size_t axis = 0; axis < from.size(); ++axis) {
    if ((*repeats)[axis] < 0) fail(ErrorCode::kBadModel, "negative repeats {}", (*repeats)[axis]);
    split.insert(split.end(), {(*repeats)[axis], from[axis]});
    strides.insert(strides.end(), {0, own[axis]});
    shape.push_back(elementCount({(*repeats)[axis], from[axis]}));
  }
  Constant result = copyStrided(*inputs[0], split, 0, strides);
  result.shape = std::move(shape);
  return Result{{std::move(result)}};
}

Result slice(const Node& node, const ConstantInputs& inputs) {
  const auto starts = integersOf(node, inputs, 1, "starts");
  const auto ends = integersOf(node, inputs, 2, "ends");
  if (!starts || !ends || starts->size() != ends->size()) return std::nullopt;
  std::vector<int64_t> all(starts->size());
  std::iota(all.begin(), all.end(), 0);
  const std::vector<int64_t> axes = integersOf(node, inputs, 3, "axes").value_or(all);
  const std::vector<int64_t> steps =
      integersOf(node, inputs, 4, nullptr).value_or(std::vector<int64_t>(starts->size(), 1));
  if (axes.size() != starts->size() || steps.size() != starts->size()) return std::nullopt;
  Shape shape = inputs[0]->shape;
  std::vector<int64_t> strides = rowMajorStrides(shape);
  int64_t base = 0;
  for (size_t i = 0; i < axes.size(); ++i) {
    const size_t axis = normalizeAxis(axes[i], shape.size());
    const int64_t size = inputs[0]->shape[axis];
    const int64_t step = steps[i];
    if (step == 0 || step == std::numeric_limits<int64_t>::min())
      fail(ErrorCode::kBadModel, "step {} is not allowed", step);
    // Where a start or end falls, as ONNX clamps it: into [0, size] forwards; backwards a start into
    // [0, size - 1], an end into [-1, size - 1], as -1 is the place before element 0.
    const auto place = [&](int64_t index, int64_t lowest_backwards) {
      if (index < 0) index = std::max(index, -size - 1) + size;
      return step > 0 ? std::clamp<int64_t>(index, 0, size)
                      : std::max(lowest_backwards, std::min(index, size - 1));
    };
    const int64_t start = place((*starts)[i], 0);
    const int64_t end = place((*ends)[i], -1);
    const int64_t span = step > 0 ? end - start : start - end;
    const int64_t width = step > 0 ? step : -step;
    shape[axis] = span <= 0 || size == 0 ? 0 : (span + width - 1) / width;
    base += start * strides[axis];
    strides[axis] *= shape[axis] > 1 ? step : 1;
  }
  return Result{{copyStrided(*inputs[0], shape, elementCount(shape) == 0 ? 0 : base, strides)}};
}

Result gather(const Node& node, const ConstantInputs& inputs) {
  const auto indices = integersOf(node, inputs, 1, nullptr);
  if (!indices) return std::nullopt;
  const Shape& data = inputs[0]->shape;
  const size_t axis = normalizeAxis(node.intAttribute("axis", 0), data.size());
  Shape shape(data.begin(), data.begin() + axis);
  const size_t outer = elementCount(shape);
  shape.insert(shape.end(), inputs[1]->shape.begin(), inputs[1]->shape.end());
  shape.insert(shape.end(), data.begin() + axis + 1, data.end());
  const size_t block = rowMajorStrides(data)[axis] * dataTypeSize(inputs[0]->data_type);
  Constant result = makeZeros(inputs[0]->data_type, shape);
  std::byte* out = result.bytes.data();
  for (size_t o = 0; o < outer; ++o) {
    for (int64_t index : *indices) {
      if (index < -data[axis] || index >= data[axis])
        fail(ErrorCode::kBadModel, "index {} is outside of an axis of size {}", index, data[axis]);
      if (index < 0) index += data[axis];
      std::copy_n(inputs[0]->bytes.data() + (o * data[axis] + index) * block, block, out);
      out += block;
    }
  }
  return Result{{std::move(result)}};
}

Result concat(const Node& node, const ConstantInputs& inputs) {
  const Constant& first = *inputs[0];
  const size_t axis =
      normalizeAxis(node.intAttribute("axis", node.opset_version < 4 ? 1 : 0), first.shape.size());
  Shape shape = first.shape;
  shape[axis] = 0;
  for (const Constant* input : inputs) {
    if (input == nullptr || input->data_type != first.data_type || input->shape.size() != shape.size())
      return std::nullopt;
    for (size_t i = 0; i < shape.size(); ++i) {
      if (i != axis && input->shape[i] != shape[i])
        fail(ErrorCode::kBadModel, "the inputs {} and {} differ beside axis {}", shapeToString(first.shape),
             shapeToString(input->shape), axis);
    }
    shape[axis] += input->shape[axis];
  }
  Constant result = makeZeros(first.data_type, shape);
  const Shape outer_shape(shape.begin(), shape.begin() + axis);
  const size_t outer = elementCount(outer_shape);
  std::byte* out = result.bytes.data();
  for (size_t o = 0; o < outer; ++o) {
    for (const Constant* input : inputs) {
      const size_t block = input->bytes.size() / outer;
      std::copy_n(input->bytes.data() + o * block, block, out);
      out += block;
    }
  }
  return Result{{std::move(result)}};
}

Result split(const Node& node, const ConstantInputs& inputs) {
  const Shape& from = inputs[0]->shape;
  const size_t axis = normalizeAxis(node.intAttribute("axis", 0), from.size());
  std::vector<int64_t> sizes;
  if (const auto given = integersOf(node, inputs, 1, "split")) {
    sizes = *given;
  } else {
    const int64_t parts = node.outputs.size();
    const int64_t each = (from[axis] + parts - 1) / parts;
    for (int64_t i = 0; i < parts; ++i) sizes.push_back(std::clamp<int64_t>(from[axis] - i * each, 0, each));
  }
  if (sizes.size() != node.outputs.size()) return std::nullopt;
  std::vector<Constant> results;
  const Shape strides = rowMajorStrides(from);
  int64_t start = 0;
  for (int64_t size : sizes) {
    Shape shape = from;
    shape[axis] = size;
    if (size < 0 || size > from[axis] - start)
      fail(ErrorCode::kBadModel, "the parts do not fit into the axis of size {}", from[axis]);
    results.push_back(
        copyStrided(*inputs[0], shape, elementCount(shape) == 0 ? 0 : start * strides[axis], strides));
    start += size;
  }
  return results;
}

Result trilu(const Node& node, const ConstantInputs& inputs) {
  const Shape& shape = inputs[0]->shape;
  if (shape.size() < 2) return std::nullopt;
  const auto k = integersOf(node, inputs, 1, nullptr).value_or(std::vector<int64_t>{0});
  if (k.size() != 1) return std::nullopt;
  const bool upper = node.intAttribute("upper", 1) != 0;
  const int64_t rows = shape[shape.size() - 2];
  const int64_t columns = shape.back();
  Constant result = *inputs[0];
  const size_t size = dataTypeSize(result.data_type);
  for (int64_t i = 0; i < elementCount(shape); ++i) {
    const int64_t distance = i % columns - i / columns % rows;
    if (upper ? distance < k[0] : distance > k[0]) std::memset(result.bytes.data() + i * size, 0, size);
  }
  return Result{{std::move(result)}};
}

Result where(const Node&, const ConstantInputs& inputs) {
  if (inputs.size() != 3 || inputs[1] == nullptr || inputs[2] == nullptr ||
      inputs[1]->data_type != inputs[2]->data_type)
    return std::nullopt;
  const Shape shape = broadcastShapes(broadcastShapes(inputs[0]->shape, inputs[1]->shape), inputs[2]->shape);
  const Constant condition = broadcastTo(*inputs[0], shape);
  Constant result = broadcastTo(*inputs[1], shape);
  const Constant other = broadcastTo(*inputs[2], shape);
  const size_t size = dataTypeSize(result.data_type);
  for (size_t i = 0; i < condition.bytes.size(); ++i) {
    if (condition.bytes[i] == std::byte{0})
      std::memcpy(result.bytes.data() + i * size, other.bytes.data() + i * size, size);
  }
  return Result{{std::move(result)}};
}

}  // namespace

std::optional<std::vector<Constant>> evaluateMovement(const Node& node, const ConstantInputs& inputs) {
  static const std::unordered_map<std::string_view, Result (*)(const Node&, const ConstantInputs&)>
      kOperators = {
          {"Identity", identity}, {"Reshape", reshape},     {"Flatten", flatten}, {"Unsqueeze", unsqueeze},
          {"Squeeze", squeeze},   {"Transpose", transpose}, {"Expand", expand},   {"Tile", tile},
          {"Slice", slice},       {"Gather", gather},       {"Concat", concat},   {"Split", split},
          {"Trilu", trilu},       {"Where", where},
      };
  const auto it = kOperators.find(node.op_type);
  if (it == kOperators.end() || inputs.empty() || inputs[0] == nullptr ||
      dataTypeSize(inputs[0]->data_type) == 0)
    return std::nullopt;
  return it->second(node, inputs);
}

}  // namespace pipeshard
