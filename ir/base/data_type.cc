#include "ir/base/data_type.h"

#include <array>

namespace pipeshard {
namespace {

struct TypeFacts {
  DataType type;
  size_t size;
  std::string_view name;
};

constexpr std::array<TypeFacts, 25> kTypes = {{
    {DataType::kUndefined, 0, "undefined"},
    {DataType::kFloat32, 4, "float32"},
    {DataType::kUint8, 1, "uint8"},
    {DataType::kInt8, 1, "int8"},
    {DataType::kUint16, 2, "uint16"},
    {DataType::kInt16, 2, "int16"},
    {DataType::kInt32, 4, "int32"},
    {DataType::kInt64, 8, "int64"},
    {DataType::kString, 0, "string"},
    {DataType::kBool, 1, "bool"},
    {DataType::kFloat16, 2, "float16"},
    {DataType::kFloat64, 8, "float64"},
    {DataType::kUint32, 4, "uint32"},
    {DataType::kUint64, 8, "uint64"},
    {DataType::kComplex64, 8, "complex64"},
    {DataType::kComplex128, 16, "complex128"},
    {DataType::kBfloat16, 2, "bfloat16"},
    {DataType::kFloat8E4M3FN, 1, "float8_e4m3fn"},
    {DataType::kFloat8E4M3FNUZ, 1, "float8_e4m3fnuz"},
    {DataType::kFloat8E5M2, 1, "float8_e5m2"},
    {DataType::kFloat8E5M2FNUZ, 1, "float8_e5m2fnuz"},
    {DataType::kUint4, 1, "uint4"},
    {DataType::kInt4, 1, "int4"},
    {DataType::kFloat4E2M1, 1, "float4_e2m1"},
    {DataType::kFloat8E8M0, 1, "float8_e8m0"},
}};

const TypeFacts& facts(DataType type) {
  const auto index = static_cast<size_t>(type);
  return index < kTypes.size() ? kTypes[index] : kTypes[0];
}

}  // namespace

size_t dataTypeSize(DataType type) { return facts(type).size; }

std::string_view dataTypeName(DataType type) { return facts(type).name; }

DataType dataTypeFromName(std::string_view name) {
  for (const TypeFacts& entry : kTypes) {
    if (entry.name == name) return entry.type;
  }
  return DataType::kUndefined;
}

bool isFloatingPoint(DataType type) {
  return type == DataType::kFloat16 || type == DataType::kBfloat16 || type == DataType::kFloat32 ||
         type == DataType::kFloat64;
}

bool isInteger(DataType type) {
  switch (type) {
    case DataType::kUint8:
    case DataType::kInt8:
    case DataType::kUint16:
    case DataType::kInt16:
    case DataType::kInt32:
    case DataType::kInt64:
    case DataType::kUint32:
    case DataType::kUint64: return true;
    default: return false;
  }
}

}  // namespace pipeshard
