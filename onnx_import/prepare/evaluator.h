// The small evaluator: operators of shape arithmetic, masks and casts on constants. Internal to onnx_import.
//
// Types: the integers of 8 to 64 bits, bool, float32, float64; moving data works for every type with whole
// bytes. Integer overflow wraps. Float results are computed in the type of the elements.
#pragma once

#include <optional>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// Inputs of a node; nullptr for an omitted optional one.
using ConstantInputs = std::vector<const Constant*>;

// The outputs of `node`, or nullopt when the evaluator does not compute it: an unknown operator, type or
// form, a division by zero, random numbers. Throws Error(kBadModel) when the inputs contradict each other (an
// index outside of its axis).
std::optional<std::vector<Constant>> evaluateNode(const Node& node, const ConstantInputs& inputs);

// ---- helpers
// ----------------------------------------------------------------------------------------------------

// A constant of that type and shape, zeroed.
Constant makeZeros(DataType type, const Shape& shape);

// Element i of the result is the input's element at base + sum of coordinate * stride over the axes of
// `shape`.
Constant copyStrided(const Constant& input, const Shape& shape, int64_t base,
                     const std::vector<int64_t>& strides);

// The integers of input `index` if it is there, else those of the attribute, else nullopt: operators moved
// their axes from attributes to inputs over the opsets.
std::optional<std::vector<int64_t>> integersOf(const Node& node, const ConstantInputs& inputs, size_t index,
                                               const char* attribute);

template <typename T>
const T* elementsOf(const Constant& constant) {
  return reinterpret_cast<const T*>(constant.bytes.data());
}
template <typename T>
T* elementsOf(Constant& constant) {
  return reinterpret_cast<T*>(constant.bytes.data());
}

// Calls f with a value of the element type (bool as uint8_t). False for types that the evaluator does not
// compute with.
template <typename F>
bool withElementType(DataType type, F&& f) {
  switch (type) {
    case DataType::kFloat32: f(float{}); return true;
    case DataType::kFloat64: f(double{}); return true;
    case DataType::kInt64: f(int64_t{}); return true;
    case DataType::kInt32: f(int32_t{}); return true;
    case DataType::kInt16: f(int16_t{}); return true;
    case DataType::kInt8: f(int8_t{}); return true;
    case DataType::kUint64: f(uint64_t{}); return true;
    case DataType::kUint32: f(uint32_t{}); return true;
    case DataType::kUint16: f(uint16_t{}); return true;
    case DataType::kUint8: f(uint8_t{}); return true;
    default: return false;
  }
}

}  // namespace pipeshard
