// Between protobuf's tensors and types and ours. Internal to onnx_import.
#pragma once

#include <cstdint>
#include <string>

#include <onnx/onnx_pb.h>

#include "ir/graph/graph.h"

namespace pipeshard {

// True when a Constant can hold the tensor: inline, dense, of a type with a whole-byte size that DataType
// knows. Strings, external and segmented tensors are carried as serialised bytes instead.
bool isPlainTensor(const onnx::TensorProto& tensor);

// The dims as a Shape. Throws Error(kBadModel) for negative sizes, a rank above `rank_limit` or more than
// `element_limit` elements. `what` names the tensor in the message.
Shape shapeOfTensor(const onnx::TensorProto& tensor, uint64_t rank_limit, uint64_t element_limit,
                    const std::string& what);

// Bytes that the elements take in raw little-endian form (4-bit types packed). Throws Error(kBadModel) for
// strings and types that pipeshard does not know.
uint64_t rawByteCount(int32_t proto_type, const Shape& shape, const std::string& what);

// An inline tensor (isPlainTensor) as row-major little-endian bytes, whichever field holds them. Throws
// Error(kBadModel) when the payload does not match type and shape.
Constant constantFromTensor(const onnx::TensorProto& tensor, const Shape& shape, const std::string& what);

// The inverse: raw_data, dims and data_type; no name.
void constantToTensor(const Constant& constant, onnx::TensorProto& tensor);

// Type, shape and symbols of `value`; a symbol without a letter or digit ("?") is none. What is no dense
// tensor becomes opaque_type. `what` as above.
void valueTypeFromProto(const onnx::TypeProto& type, uint64_t rank_limit, uint64_t element_limit,
                        const std::string& what, Value& value);

// False (and `type` untouched) when nothing is known about the value.
bool valueTypeToProto(const Value& value, onnx::TypeProto& type);

}  // namespace pipeshard
