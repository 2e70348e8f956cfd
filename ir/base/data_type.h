// Element types of tensors. The numbers are those of onnx.TensorProto.DataType, so that files and memory
// agree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace pipeshard {

enum class DataType : int32_t {
  kUndefined = 0,
  kFloat32 = 1,
  kUint8 = 2,
  kInt8 = 3,
  kUint16 = 4,
  kInt16 = 5,
  kInt32 = 6,
  kInt64 = 7,
  kString = 8,
  kBool = 9,
  kFloat16 = 10,
  kFloat64 = 11,
  kUint32 = 12,
  kUint64 = 13,
  kComplex64 = 14,
  kComplex128 = 15,
  kBfloat16 = 16,
  kFloat8E4M3FN = 17,
  kFloat8E4M3FNUZ = 18,
  kFloat8E5M2 = 19,
  kFloat8E5M2FNUZ = 20,
  kUint4 = 21,
  kInt4 = 22,
  kFloat4E2M1 = 23,
  kFloat8E8M0 = 24,
};

// Bytes of one element in memory (4-bit types have one each, in files two share one); 0: no fixed size.
size_t dataTypeSize(DataType type);

// "float32", "int64", ...: the names of numpy and safetensors' long forms, used in messages, JSON and
// printers.
std::string_view dataTypeName(DataType type);

// The inverse of dataTypeName; kUndefined for an unknown name.
DataType dataTypeFromName(std::string_view name);

// float16, bfloat16, float32 or float64.
bool isFloatingPoint(DataType type);

// float16 or bfloat16.
constexpr bool isHalf(DataType type) { return type == DataType::kFloat16 || type == DataType::kBfloat16; }

// A signed or unsigned integer of 8 to 64 bits (not bool).
bool isInteger(DataType type);

// The DataType of a C++ element type: dataTypeOf<float>() is kFloat32.
template <typename T>
constexpr DataType dataTypeOf();
template <>
constexpr DataType dataTypeOf<float>() {
  return DataType::kFloat32;
}
template <>
constexpr DataType dataTypeOf<double>() {
  return DataType::kFloat64;
}
template <>
constexpr DataType dataTypeOf<int64_t>() {
  return DataType::kInt64;
}
template <>
constexpr DataType dataTypeOf<int32_t>() {
  return DataType::kInt32;
}
template <>
constexpr DataType dataTypeOf<uint8_t>() {
  return DataType::kUint8;
}
template <>
constexpr DataType dataTypeOf<int8_t>() {
  return DataType::kInt8;
}
template <>
constexpr DataType dataTypeOf<bool>() {
  return DataType::kBool;
}

}  // namespace pipeshard
