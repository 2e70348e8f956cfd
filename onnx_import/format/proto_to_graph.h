// Protobuf messages to Graph. Internal to onnx_import.
//
// What a Graph has no field for travels as serialised messages and is written back: Graph::opaque is a
// ModelProto (model fields and, in its `graph`, graph fields), Node::opaque a NodeProto. An initializer that
// no Constant can hold (sparse, strings, 4-bit) becomes a Constant node with an OpaqueAttribute, marked by
// kInitializerMark in its metadata.
#pragma once

#include <map>
#include <string>
#include <utility>

#include <onnx/onnx_pb.h>

#include "ir/graph/graph.h"
#include "onnx_import/format/external_data.h"
#include "onnx_import/format/reader.h"

namespace pipeshard {

inline constexpr const char* kInitializerMark = "pipeshard.initializer";

// Where the .onnx file has the elements of an initializer, as raw data has them.
struct InlineWeight {
  uint64_t offset = 0;  // in the file
  uint64_t length = 0;  // bytes
  int field = 0;        // of TensorProto: raw_data; float_data or double_data, which are packed
};
// By position in graph.initializer.
using InlineWeights = std::map<int, InlineWeight>;

struct ProtoSource {
  const ImportLimits& limits;
  ExternalData* external = nullptr;  // null: no external data is allowed
  std::string file;                  // location of inline weights
  InlineWeights inline_weights;      // their elements were taken out of the message
};

// Takes the message's big fields apart, hence the mutable argument.
Graph graphFromModel(onnx::ModelProto& model, const ProtoSource& source);

// A graph that may read the values of `outer`, whose operators are of the same versions.
Graph graphInside(onnx::GraphProto& proto, const Graph& outer, const ProtoSource& source);

Function functionFromProto(const onnx::FunctionProto& function, const ProtoSource& source);

Attribute attributeFromProto(const onnx::AttributeProto& attribute, const ProtoSource& source);

}  // namespace pipeshard
