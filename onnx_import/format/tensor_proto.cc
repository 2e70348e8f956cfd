#include "onnx_import/format/tensor_proto.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <charconv>
#include <cstring>

#include "ir/base/error.h"

namespace pipeshard {

static_assert(std::endian::native == std::endian::little, "raw tensor bytes are little-endian");

namespace {

using onnx::TensorProto;

bool isSubByte(int32_t type) {
  return type == TensorProto::UINT4 || type == TensorProto::INT4 || type == TensorProto::FLOAT4E2M1;
}

DataType dataTypeOfProto(int32_t type) {
  return type > 0 && type <= static_cast<int32_t>(DataType::kFloat8E8M0) ? static_cast<DataType>(type)
                                                                         : DataType::kUndefined;
}

[[noreturn]] void failPayload(const std::string& what, size_t found, int64_t expected, const char* unit) {
  fail(ErrorCode::kBadModel,
       "{} holds {} {}, but its type and shape need {}; the file is damaged or was edited", what, found, unit,
       expected);
}

// Copies the elements of a typed field, narrowed to the element type of the tensor.
template <typename To, typename Field>
void copyElements(const Field& field, Constant& constant, const std::string& what) {
  const int64_t count = elementCount(constant.shape);
  if (field.size() != count) failPayload(what, field.size(), count, "elements");
  auto* out = constant.bytes.data();
  for (const auto element : field) {
    const To value = static_cast<To>(element);
    std::memcpy(out, &value, sizeof(To));
    out += sizeof(To);
  }
}

// float32 pairs (complex64) and double pairs (complex128).
template <typename To, typename Field>
void copyComplex(const Field& field, Constant& constant, const std::string& what) {
  const int64_t count = 2 * elementCount(constant.shape);
  if (field.size() != count) failPayload(what, field.size(), count, "numbers");
  std::copy_n(reinterpret_cast<const std::byte*>(field.data()), count * sizeof(To), constant.bytes.data());
}

void copyTypedField(const TensorProto& tensor, Constant& constant, const std::string& what) {
  switch (tensor.data_type()) {
    case TensorProto::FLOAT: return copyElements<float>(tensor.float_data(), constant, what);
    case TensorProto::COMPLEX64: return copyComplex<float>(tensor.float_data(), constant, what);
    case TensorProto::DOUBLE: return copyElements<double>(tensor.double_data(), constant, what);
    case TensorProto::COMPLEX128: return copyComplex<double>(tensor.double_data(), constant, what);
    case TensorProto::INT64: return copyElements<int64_t>(tensor.int64_data(), constant, what);
    case TensorProto::UINT64: return copyElements<uint64_t>(tensor.uint64_data(), constant, what);
    case TensorProto::UINT32: return copyElements<uint32_t>(tensor.uint64_data(), constant, what);
    case TensorProto::INT32: return copyElements<int32_t>(tensor.int32_data(), constant, what);
    case TensorProto::INT16: return copyElements<int16_t>(tensor.int32_data(), constant, what);
    case TensorProto::UINT16:
    case TensorProto::FLOAT16:
    case TensorProto::BFLOAT16: return copyElements<uint16_t>(tensor.int32_data(), constant, what);
    case TensorProto::BOOL:
    case TensorProto::INT8:
    case TensorProto::UINT8:
    case TensorProto::FLOAT8E4M3FN:
    case TensorProto::FLOAT8E4M3FNUZ:
    case TensorProto::FLOAT8E5M2:
    case TensorProto::FLOAT8E5M2FNUZ: return copyElements<uint8_t>(tensor.int32_data(), constant, what);
    default:
      fail(ErrorCode::kBadModel, "{} has the element type {}, which pipeshard cannot hold", what,
           tensor.data_type());
  }
}

// Of any element type: ONNX's inference counts with the sizes of those that are not known here, too.
void checkSizes(const onnx::TensorShapeProto& shape, uint64_t rank_limit, const std::string& what) {
  if (static_cast<uint64_t>(shape.dim_size()) > rank_limit)
    fail(ErrorCode::kBadModel, "{} has rank {}; the limit is {}", what, shape.dim_size(), rank_limit);
  for (int axis = 0; axis < shape.dim_size(); ++axis) {
    // Some exporters write -1 for "unknown".
    if (shape.dim(axis).has_dim_value() && shape.dim(axis).dim_value() < kUnknownSize)
      fail(ErrorCode::kBadModel, "{} has the size {} at axis {}", what, shape.dim(axis).dim_value(), axis);
  }
}

}  // namespace

bool isPlainTensor(const TensorProto& tensor) {
  return tensor.data_location() != TensorProto::EXTERNAL && !tensor.has_segment() &&
         dataTypeSize(dataTypeOfProto(tensor.data_type())) > 0;
}

Shape shapeOfTensor(const TensorProto& tensor, uint64_t rank_limit, uint64_t element_limit,
                    const std::string& what) {
  if (static_cast<uint64_t>(tensor.dims_size()) > rank_limit) {
    fail(ErrorCode::kBadModel, "{} has rank {}; the limit is {}", what, tensor.dims_size(), rank_limit);
  }
  Shape shape(tensor.dims().begin(), tensor.dims().end());
  uint64_t count = 1;
  for (int64_t size : shape) {
    if (size < 0)
      fail(ErrorCode::kBadModel, "{} has a negative size in its shape {}", what, shapeToString(shape));
    const uint64_t factor = size;
    if (factor != 0 && count > element_limit / factor) {
      fail(ErrorCode::kBadModel, "{} has the shape {}, more than the limit of {} elements", what,
           shapeToString(shape), element_limit);
    }
    count *= factor;
  }
  return shape;
}

uint64_t rawByteCount(int32_t proto_type, const Shape& shape, const std::string& what) {
  const uint64_t count = elementCount(shape);
  if (isSubByte(proto_type)) return (count + 1) / 2;
  if (proto_type == TensorProto::FLOAT8E8M0) return count;
  const size_t size = dataTypeSize(dataTypeOfProto(proto_type));
  if (size == 0) {
    fail(ErrorCode::kBadModel, "{} has the element type {} ({}), which has no raw form", what, proto_type,
         dataTypeName(dataTypeOfProto(proto_type)));
  }
  return byteCount(dataTypeOfProto(proto_type), shape);
}

namespace {

// Two elements of 4 bits share a byte, the first in its low half.
Constant unpacked(const TensorProto& tensor, const Shape& shape, const std::string& what) {
  Constant constant{dataTypeOfProto(tensor.data_type()), shape, {}};
  const int64_t count = elementCount(shape);
  const int64_t stored = tensor.has_raw_data() ? std::ssize(tensor.raw_data()) : tensor.int32_data_size();
  if (stored != (count + 1) / 2) failPayload(what, stored, (count + 1) / 2, "bytes");
  constant.bytes.resize(count);
  for (int64_t i = 0; i < count; ++i) {
    const int byte = tensor.has_raw_data() ? tensor.raw_data()[i / 2] : tensor.int32_data(int(i / 2));
    int element = i % 2 == 0 ? byte & 0xf : byte >> 4 & 0xf;
    if (constant.data_type == DataType::kInt4 && element > 7) element -= 16;
    constant.bytes[i] = static_cast<std::byte>(element);
  }
  return constant;
}

std::string packed(const Constant& constant) {
  std::string bytes((constant.bytes.size() + 1) / 2, '\0');
  for (size_t i = 0; i < constant.bytes.size(); ++i) {
    const int element = std::to_integer<int>(constant.bytes[i]) & 0xf;
    bytes[i / 2] = static_cast<char>(bytes[i / 2] | (i % 2 == 0 ? element : element << 4));
  }
  return bytes;
}

}  // namespace

Constant constantFromTensor(const TensorProto& tensor, const Shape& shape, const std::string& what) {
  if (isSubByte(tensor.data_type())) return unpacked(tensor, shape, what);
  Constant constant;
  constant.data_type = dataTypeOfProto(tensor.data_type());
  constant.shape = shape;
  const int64_t bytes = byteCount(constant.data_type, shape);
  // Before anything is allocated: a small file may claim a huge shape.
  if (tensor.has_raw_data()) {
    if (std::ssize(tensor.raw_data()) != bytes) failPayload(what, tensor.raw_data().size(), bytes, "bytes");
    constant.bytes.resize(bytes);
    std::copy_n(reinterpret_cast<const std::byte*>(tensor.raw_data().data()), constant.bytes.size(),
                constant.bytes.data());
    return constant;
  }
  const int64_t stored = int64_t{tensor.float_data_size()} + tensor.double_data_size() +
                         tensor.int32_data_size() + tensor.int64_data_size() + tensor.uint64_data_size();
  if (stored < elementCount(shape)) failPayload(what, stored, elementCount(shape), "elements");
  constant.bytes.resize(bytes);
  copyTypedField(tensor, constant, what);
  return constant;
}

void constantToTensor(const Constant& constant, TensorProto& tensor) {
  tensor.set_data_type(static_cast<int32_t>(constant.data_type));
  for (int64_t size : constant.shape) tensor.add_dims(size);
  if (isSubByte(tensor.data_type())) {
    tensor.set_raw_data(packed(constant));
  } else {
    tensor.set_raw_data(constant.bytes.data(), constant.bytes.size());
  }
}

namespace {

// torch.onnx.dynamo_export writes a fixed size as a name: "12".
int64_t sizeOfAxis(const onnx::TensorShapeProto::Dimension& dim) {
  if (dim.has_dim_value()) return dim.dim_value();
  const std::string& name = dim.dim_param();
  int64_t size = kUnknownSize;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), size);
  return error == std::errc() && end == name.data() + name.size() && size > 0 ? size : kUnknownSize;
}

// "?" is what converters write of any axis of unknown size: no two of these are one dimension.
bool isAxisName(const std::string& text) {
  return std::any_of(text.begin(), text.end(),
                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c >= 0x80; });
}

}  // namespace

void valueTypeFromProto(const onnx::TypeProto& type, uint64_t rank_limit, uint64_t element_limit,
                        const std::string& what, Value& value) {
  if (type.value_case() == onnx::TypeProto::VALUE_NOT_SET) return;
  const DataType data_type =
      type.has_tensor_type() ? dataTypeOfProto(type.tensor_type().elem_type()) : DataType::kUndefined;
  if (!type.has_tensor_type() || (data_type == DataType::kUndefined && type.tensor_type().elem_type() != 0)) {
    onnx::TypeProto kept = type;
    if (kept.has_tensor_type() && kept.tensor_type().has_shape()) {
      checkSizes(kept.tensor_type().shape(), rank_limit, what);
      for (auto& dim : *kept.mutable_tensor_type()->mutable_shape()->mutable_dim()) {
        if (dim.dim_value() == kUnknownSize) dim.clear_value();
      }
    }
    kept.SerializeToString(&value.opaque_type);
    return;
  }
  value.data_type = data_type;
  if (!type.tensor_type().has_shape()) return;
  checkSizes(type.tensor_type().shape(), rank_limit, what);
  const auto& dims = type.tensor_type().shape().dim();
  Shape shape;
  std::vector<std::string> symbols(dims.size());
  bool symbolic = false;
  uint64_t count = 1;
  for (const auto& dim : dims) {
    const int64_t size = sizeOfAxis(dim);
    if (size > 0) {
      if (count > element_limit / static_cast<uint64_t>(size)) {
        fail(ErrorCode::kBadModel, "{} has a shape of more than the limit of {} elements", what,
             element_limit);
      }
      count *= static_cast<uint64_t>(size);
    }
    if (size == kUnknownSize && isAxisName(dim.dim_param())) {
      symbols[shape.size()] = dim.dim_param();
      symbolic = true;
    }
    shape.push_back(size);
  }
  value.shape = std::move(shape);
  if (symbolic) value.symbols = std::move(symbols);
}

bool valueTypeToProto(const Value& value, onnx::TypeProto& type) {
  if (!value.opaque_type.empty()) return type.ParseFromString(value.opaque_type);
  if (value.data_type == DataType::kUndefined && !value.shape) return false;
  auto* tensor = type.mutable_tensor_type();
  tensor->set_elem_type(static_cast<int32_t>(value.data_type));
  if (!value.shape) return true;
  auto* shape = tensor->mutable_shape();
  for (size_t axis = 0; axis < value.shape->size(); ++axis) {
    auto* dim = shape->add_dim();
    if ((*value.shape)[axis] >= 0) {
      dim->set_dim_value((*value.shape)[axis]);
    } else if (axis < value.symbols.size() && !value.symbols[axis].empty()) {
      dim->set_dim_param(value.symbols[axis]);
    }
  }
  return true;
}

}  // namespace pipeshard
