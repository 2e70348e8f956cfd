// What ONNX's schema functions see of a node. Internal to onnx_import.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <onnx/defs/schema.h>
#include <onnx/defs/shape_inference.h>
#include <onnx/onnx_pb.h>

#include "ir/graph/graph.h"
#include "onnx_import/prepare/inference.h"

namespace pipeshard {

// A node with empty graphs in the place of its subgraphs and without the content of big tensors.
void shallowNode(const Graph& graph, const Node& node, onnx::NodeProto& proto);

// The type of a value, not set when it is not known.
onnx::TypeProto knownType(const Value& value);

class NodeContext : public onnx::InferenceContext {
 public:
  NodeContext(Inference& inference, Node& node, const onnx::NodeProto& proto);
  ~NodeContext() override;

  const onnx::AttributeProto* getAttribute(const std::string& name) const override;
  size_t getNumInputs() const override { return input_types_.size(); }
  const onnx::TypeProto* getInputType(size_t index) const override;
  bool hasInput(size_t index) const override;
  const onnx::TensorProto* getInputData(size_t index) const override;
  size_t getNumOutputs() const override { return node_.outputs.size(); }
  onnx::TypeProto* getOutputType(size_t index) override;
  onnx::GraphInferencer* getGraphAttributeInferencer(const std::string& name) override;
  const onnx::SparseTensorProto* getInputSparseData(size_t) const override { return nullptr; }
  // nullopt where it is not known, or the input is no tensor.
  std::optional<int64_t> inputRank(size_t index) const;
  const onnx::TensorShapeProto* getSymbolicInput(size_t) const override { return nullptr; }

 private:
  std::string branchTaken(const std::string& attribute_name) const;

  Inference& inference_;
  Node& node_;
  const onnx::NodeProto& proto_;
  std::vector<onnx::TypeProto> input_types_;
  std::vector<onnx::TypeProto> output_types_;
  mutable std::map<size_t, onnx::TensorProto> input_data_;
  std::map<std::string, std::unique_ptr<onnx::GraphInferencer>> inferencers_;
};

// What a check of a node refuses, Error(kBadModel), is a contradiction of that kind.
void checkAs(Contradiction::Of of, const std::function<void()>& check);

// Gives the outputs in the context their types by the operator's schema. Contradiction where that refuses the
// node.
void applySchema(const onnx::OpSchema& schema, const Node& node, const onnx::NodeProto& proto,
                 NodeContext& context);

}  // namespace pipeshard
