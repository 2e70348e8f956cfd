// Graph to protobuf messages: the inverse of proto_to_graph.h. Internal to onnx_import.
#pragma once

#include <onnx/onnx_pb.h>

#include "ir/graph/graph.h"

namespace pipeshard {

enum class WeightForm {
  kExternalData,  // weight references as external data
  kInputs,        // weight references as graph inputs: for checks that must not look at files
};

// Whether the node stands for an initializer (proto_to_graph.h): it is written as one, without what else the
// node carries.
bool isMarkedInitializer(const Node& node);

// A file has one version per domain; a node may carry another one only if the operator did not change in
// between. Throws Error(kBadModel) naming the node otherwise. To be called before modelToProto.
void checkVersions(const Graph& graph);

void modelToProto(const Graph& graph, WeightForm form, onnx::ModelProto& model);

// A graph inside of another, which may read values of that one.
void graphToProto(const Graph& graph, onnx::GraphProto& proto);

void functionToProto(const Function& function, onnx::FunctionProto& proto);

// What a node carries that Node has no field for: its bytes (Node::opaque) as a message again.
onnx::NodeProto residueOf(const Node& node);

// `graph` gives the names of the values.
void nodeToProto(const Graph& graph, const Node& node, onnx::NodeProto& proto);

void attributeToProto(const std::string& name, const Attribute& attribute, onnx::AttributeProto& proto);

}  // namespace pipeshard
