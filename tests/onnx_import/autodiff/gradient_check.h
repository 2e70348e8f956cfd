// Checks a gradient rule: what buildTrainingGraph emits against central differences of the forward graph, in
// float64.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph/graph.h"
#include "ir/graph/training_graph.h"
#include "tests/onnx_import/autodiff/interpreter.h"

namespace pipeshard::testing {

// Builds a small float64 graph: parameters, constants, nodes whose output shapes are inferred.
class TestGraph {
 public:
  TestGraph();
  // A trained initializer with random content in [low, high).
  ValueId parameter(const std::string& name, const Shape& shape, double low = -1, double high = 1);
  ValueId parameter(const std::string& name, Constant content);
  // A graph input (batch axis 0), not trained.
  ValueId input(const std::string& name, Constant content);
  ValueId constant(const Constant& constant);
  // Of a graph input that a rewrite has added.
  void giveContent(const std::string& name, Constant content) { contents_[name] = std::move(content); }
  ValueId integers(const std::vector<int64_t>& elements);
  ValueId op(std::string_view op_type, std::vector<ValueId> inputs,
             std::map<std::string, Attribute> attributes = {});
  std::vector<ValueId> ops(std::string_view op_type, std::vector<ValueId> inputs, size_t outputs,
                           std::map<std::string, Attribute> attributes = {});
  // sum(value * fixed random weights) over all values of the list: a scalar that depends on every element.
  ValueId weightedSum(const std::vector<ValueId>& values);

  Graph& graph() { return graph_; }
  GraphBuilder& builder() { return builder_; }
  const Tensors& contents() const { return contents_; }

 private:
  Graph graph_;
  GraphBuilder builder_;
  Tensors contents_;
  uint64_t seed_ = 1;
};

// The contents of weights that a rewrite has divided get their new shapes.
void giveDivided(TestGraph& test);

struct CheckedTraining {
  TrainingGraph training;
  std::map<std::string, Constant> gradients;  // by parameter name: the sum of its parts
};

// Builds the training graph of `loss` with plain SGD and runs it.
CheckedTraining trainAndRun(TestGraph& test, ValueId loss);

// Compares the gradients of all parameters with central differences (EXPECT, relative error 1e-6), after
// weightedSum.
void checkGradients(TestGraph& test, const std::vector<ValueId>& outputs);
// The same for a graph that already has its scalar loss.
void checkLossGradients(TestGraph& test, ValueId loss);

}  // namespace pipeshard::testing
