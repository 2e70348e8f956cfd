#include "onnx_import/prepare/evaluator.h"

#include <cstring>

#include "ir/base/error.h"
#include "onnx_import/prepare/evaluate_families.h"

namespace pipeshard {

Constant makeZeros(DataType type, const Shape& shape) {
  return Constant{type, shape, std::vector<std::byte>(byteCount(type, shape))};
}

Constant copyStrided(const Constant& input, const Shape& shape, int64_t base,
                     const std::vector<int64_t>& strides) {
  Constant result = makeZeros(input.data_type, shape);
  const size_t size = dataTypeSize(input.data_type);
  const int64_t count = elementCount(shape);
  std::vector<int64_t> coordinate(shape.size(), 0);
  int64_t offset = base;
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(result.bytes.data() + i * size, input.bytes.data() + offset * size, size);
    for (size_t axis = shape.size(); axis-- > 0;) {
      offset += strides[axis];
      if (++coordinate[axis] < shape[axis]) break;
      offset -= strides[axis] * shape[axis];
      coordinate[axis] = 0;
    }
  }
  return result;
}

std::optional<std::vector<int64_t>> integersOf(const Node& node, const ConstantInputs& inputs, size_t index,
                                               const char* attribute) {
  if (index < inputs.size() && inputs[index] != nullptr) {
    const DataType type = inputs[index]->data_type;
    if (type != DataType::kInt64 && type != DataType::kInt32) {
      fail(ErrorCode::kBadModel, "input {} should hold integers, found {}", index, dataTypeName(type));
    }
    return integerElements(*inputs[index]);
  }
  if (attribute != nullptr && node.hasAttribute(attribute)) return node.intsAttribute(attribute);
  return std::nullopt;
}

std::optional<std::vector<Constant>> evaluateNode(const Node& node, const ConstantInputs& inputs) {
  if (!node.domain.empty()) return std::nullopt;
  try {
    for (const auto part : {evaluateCreation, evaluateMovement, evaluateElementwise, evaluateReduction}) {
      if (std::optional<std::vector<Constant>> result = part(node, inputs)) return result;
    }
  } catch (Error& error) {
    error.addContext(describeNode(node));
    throw;
  }
  return std::nullopt;
}

}  // namespace pipeshard
