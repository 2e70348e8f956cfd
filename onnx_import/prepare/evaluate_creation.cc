// Operators that make constants out of attributes and shapes.
#include <cmath>
#include <cstring>

#include "ir/base/error.h"
#include "onnx_import/prepare/evaluate_families.h"
#include "onnx_import/prepare/evaluator.h"

namespace pipeshard {
namespace {

using Result = std::optional<std::vector<Constant>>;

// Attributes that are opaque here (sparse, external, string tensors) stay nodes.
Result constantNode(const Node& node) {
  if (node.attributes.size() != 1) return std::nullopt;
  const auto& [name, attribute] = *node.attributes.begin();
  if (const auto* constant = std::get_if<Constant>(&attribute)) return Result{{*constant}};
  if (const auto* i = std::get_if<int64_t>(&attribute)) return Result{{makeConstant<int64_t>({}, {*i})}};
  if (const auto* f = std::get_if<float>(&attribute)) return Result{{makeConstant<float>({}, {*f})}};
  if (const auto* ints = std::get_if<std::vector<int64_t>>(&attribute)) {
    return Result{{makeConstant<int64_t>({std::ssize(*ints)}, *ints)}};
  }
  if (const auto* floats = std::get_if<std::vector<float>>(&attribute)) {
    return Result{{makeConstant<float>({static_cast<int64_t>(floats->size())}, *floats)}};
  }
  return std::nullopt;
}

Result constantOfShape(const Node& node, const ConstantInputs& inputs) {
  const Shape shape = integerElements(*inputs.at(0));
  Constant value = makeScalar(DataType::kFloat32, 0);
  const auto it = node.attributes.find("value");
  if (it != node.attributes.end()) {
    const auto* given = std::get_if<Constant>(&it->second);
    if (given == nullptr) return std::nullopt;
    value = *given;
  }
  if (elementCount(value.shape) != 1)
    fail(ErrorCode::kBadModel, "attribute 'value' should have one element, found the shape {}",
         shapeToString(value.shape));
  return Result{{copyStrided(value, shape, 0, std::vector<int64_t>(shape.size(), 0))}};
}

Result range(const ConstantInputs& inputs) {
  if (inputs.size() != 3 || inputs[0]->data_type != inputs[1]->data_type ||
      inputs[0]->data_type != inputs[2]->data_type)
    return std::nullopt;
  for (const Constant* input : inputs) {
    if (elementCount(input->shape) != 1) return std::nullopt;
  }
  Result result;
  withElementType(inputs[0]->data_type, [&](auto tag) {
    using T = decltype(tag);
    const T start = *elementsOf<T>(*inputs[0]);
    const T limit = *elementsOf<T>(*inputs[1]);
    const T delta = *elementsOf<T>(*inputs[2]);
    if (delta == T{0}) return;
    const double steps =
        std::ceil((static_cast<double>(limit) - static_cast<double>(start)) / static_cast<double>(delta));
    if (!(steps < 1e9)) return;
    std::vector<T> elements(steps > 0 ? static_cast<size_t>(steps) : 0);
    for (size_t i = 0; i < elements.size(); ++i)
      elements[i] = static_cast<T>(start + static_cast<T>(i) * delta);
    Constant constant = makeZeros(inputs[0]->data_type, {std::ssize(elements)});
    if (!elements.empty()) std::memcpy(constant.bytes.data(), elements.data(), constant.bytes.size());
    result = std::vector<Constant>{std::move(constant)};
  });
  return result;
}

Result nonZero(const Constant& input) {
  std::vector<int64_t> found;
  const bool known =
      withElementType(input.data_type == DataType::kBool ? DataType::kUint8 : input.data_type, [&](auto tag) {
        using T = decltype(tag);
        for (int64_t i = 0; i < elementCount(input.shape); ++i) {
          if (elementsOf<T>(input)[i] != T{0}) found.push_back(i);
        }
      });
  if (!known) return std::nullopt;
  const Shape strides = rowMajorStrides(input.shape);
  const int64_t count = found.size();
  Constant result = makeZeros(DataType::kInt64, {std::ssize(input.shape), count});
  auto* out = elementsOf<int64_t>(result);
  for (size_t axis = 0; axis < input.shape.size(); ++axis) {
    for (int64_t flat : found) *out++ = flat / strides[axis] % input.shape[axis];
  }
  return Result{{std::move(result)}};
}

}  // namespace

std::optional<std::vector<Constant>> evaluateCreation(const Node& node, const ConstantInputs& inputs) {
  if (node.is("Constant")) return constantNode(node);
  if (inputs.empty() || inputs[0] == nullptr) return std::nullopt;
  if (node.is("ConstantOfShape") && inputs[0]->data_type == DataType::kInt64)
    return constantOfShape(node, inputs);
  if (node.is("Range") && inputs.size() == 3 && inputs[1] != nullptr && inputs[2] != nullptr)
    return range(inputs);
  if (node.is("NonZero")) return nonZero(*inputs[0]);
  return std::nullopt;
}

}  // namespace pipeshard
