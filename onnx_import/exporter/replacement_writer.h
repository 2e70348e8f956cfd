// New nodes in the place of one of a graph as read, where types are known in part. Internal to onnx_import.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ir/graph/exact_number.h"
#include "ir/graph/graph.h"
#include "ir/graph/weight_role.h"

namespace pipeshard {

// Reductions take their axes as an input from this opset on.
constexpr int kAxesAreInputs = 18;

// Writes the nodes that take the place of one node of a graph as read: of its opset, with its metadata.
// Shapes are found when the graph is prepared.
class ReplacementWriter {
 public:
  ReplacementWriter(Graph& graph, GraphBuilder& builder, const Node& replaced)
      : graph_(graph), builder_(builder), replaced_(replaced) {}

  // Names begin with the name of what the node gives.
  ValueId add(const char* op_type, std::vector<ValueId> inputs, DataType type,
              std::map<std::string, Attribute> attributes = {}) {
    const ValueId made = value(op_type, type);
    addTo(made, op_type, std::move(inputs), std::move(attributes));
    return made;
  }
  // Gives what the node gave.
  void addLast(const char* op_type, std::vector<ValueId> inputs,
               std::map<std::string, Attribute> attributes = {}) {
    addTo(replaced_.outputs[0], op_type, std::move(inputs), std::move(attributes));
  }
  void addTo(ValueId output, const char* op_type, std::vector<ValueId> inputs,
             std::map<std::string, Attribute> attributes = {}) {
    Node node;
    node.op_type = op_type;
    node.opset_version = replaced_.opset_version;
    node.name = graph_.value(output).name;
    node.metadata = replaced_.metadata;
    node.inputs = std::move(inputs);
    node.outputs = {output};
    node.attributes = std::move(attributes);
    nodes_.push_back(std::move(node));
  }
  ValueId number(DataType type, double number) {
    const ValueId made = constant("number", makeScalar(type, number));
    markExactNumber(graph_.value(made), number);
    return made;
  }
  ValueId integers(const std::vector<int64_t>& numbers) {
    return constant("integers", makeConstant<int64_t>({std::ssize(numbers)}, numbers));
  }
  std::vector<Node> take() { return std::move(nodes_); }

 private:
  std::string prefixed(const char* name) const {
    return graph_.value(replaced_.outputs[0]).name + "_" + name;
  }
  ValueId value(const char* op_type, DataType type) {
    const ValueId made = builder_.addValue(prefixed(op_type), type, {});
    graph_.value(made).shape.reset();
    return made;
  }
  ValueId constant(const char* name, Constant content) {
    const ValueId id = builder_.addConstant(prefixed(name), std::move(content));
    markMade(graph_.value(id));
    return id;
  }

  Graph& graph_;
  GraphBuilder& builder_;
  const Node& replaced_;
  std::vector<Node> nodes_;
};

}  // namespace pipeshard
