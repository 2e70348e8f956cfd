// A graph with the marks that PyTorch's exporter and its optimizer leave, for tests.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ir/graph/graph.h"
#include "ir/graph/weight_role.h"
#include "onnx_import/exporter/module_parameters.h"

namespace pipeshard {

// Values are small; what counts is their marks.
class ExportedModule : public ::testing::Test {
 protected:
  ExportedModule() { begin(); }

  // An empty graph.
  void begin() {
    graph = Graph();
    signature.clear();
    graph.opset_imports = {{"", 20}};
    graph.inputs = {GraphBuilder(graph).addValue("x", DataType::kFloat32, {3, 5, 4})};
    last = graph.inputs[0];
  }

  // A line of the signature, and the parameter itself if the file still has it.
  void parameter(const std::string& name, const Shape& shape = {}) {
    std::string argument = "p_" + name;
    std::replace(argument.begin(), argument.end(), '.', '_');
    signature += argument + ": PARAMETER target='" + name + "'\n";
    if (!shape.empty()) graph.value(weight(name, shape)).metadata = {{kKind, "PARAMETER"}};
  }
  ValueId weight(const std::string& name, const Shape& shape, const std::string& folded_from = "") {
    GraphBuilder builder(graph);
    const ValueId id =
        builder.addConstant(name, makeConstant<float>(shape, std::vector<float>(elementCount(shape), 0.5F)));
    if (!folded_from.empty())
      graph.value(id).metadata = {{"pkg.onnxscript.optimizer.folded_from", folded_from}};
    return id;
  }
  // A node of a call; the first input is what the node before has given, unless `from` says another.
  ValueId node(const std::string& op_type, const std::vector<ValueId>& weights, const std::string& call,
               const std::string& function, const std::string& arguments) {
    GraphBuilder builder(graph);
    std::vector<ValueId> inputs = {last};
    inputs.insert(inputs.end(), weights.begin(), weights.end());
    last = builder.addValue(call + "_out", DataType::kFloat32, {3, 5, 4});
    builder.addNode("", op_type, inputs, {last});
    graph.nodes.back().metadata = {
        {"pkg.torch.onnx.fx_node", "%" + call + " : [num_users=1] = call_function[target=torch.ops." +
                                       function + "](args = (" + arguments + "), kwargs = {})"}};
    return last;
  }

  // The module that the last node's call is of.
  void scope(const std::string& module) {
    graph.nodes.back().metadata.emplace_back("pkg.torch.onnx.name_scopes", "['', '" + module + "', 'call']");
  }

  ModuleParameters restore() {
    graph.metadata = {{"pkg.torch.export.ExportedProgram.graph_signature", "\n# inputs\n" + signature}};
    return restoreParameters(graph);
  }
  std::string read(size_t node, size_t input) const {
    return graph.value(graph.nodes.at(node).inputs.at(input)).name;
  }
  bool isParameter(const std::string& name) const {
    const ValueId id = findValue(graph, name);
    return id.valid() && isMarkedParameter(graph.value(id));
  }

  static constexpr const char* kKind = "pkg.torch.export.graph_signature.InputSpec.kind";
  Graph graph;
  ValueId last;
  std::string signature;
};

}  // namespace pipeshard
