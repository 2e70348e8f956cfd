// detach() in files of PyTorch's exporter: no gradient passes, or the file is refused.
#include "onnx_import/exporter/detached_values.h"

#include <gtest/gtest.h>

#include "ir/graph/stopped_gradient.h"
#include "onnx_import/prepare/simplify.h"
#include "tests/expect_error.h"

namespace pipeshard {
namespace {

class DetachedValues : public ::testing::Test {
 protected:
  DetachedValues() {
    graph.opset_imports = {{"", 20}};
    graph.inputs = {GraphBuilder(graph).addValue("x", DataType::kFloat32, {3, 4})};
  }

  ValueId node(const std::string& op_type, const std::vector<ValueId>& inputs, const std::string& call,
               const std::string& function, const std::string& arguments) {
    GraphBuilder builder(graph);
    const ValueId output = builder.addValue(call, DataType::kFloat32, {3, 4});
    builder.addNode("", op_type, inputs, {output});
    graph.nodes.back().metadata = {
        {"pkg.torch.onnx.fx_node", "%" + call + " : [num_users=1] = call_function[target=torch.ops.aten." +
                                       function + ".default](args = (" + arguments + "), kwargs = {})"}};
    return output;
  }

  Graph graph;
};

TEST_F(DetachedValues, StopTheGradientAndStay) {
  const ValueId x = graph.inputs[0];
  const ValueId detached = node("Identity", {x}, "detach", "detach", "%x");
  const ValueId copy = node("Identity", {detached}, "clone", "clone", "%detach");
  graph.outputs = {node("Mul", {x, copy}, "mul", "mul", "%x, %clone")};
  EXPECT_EQ(stopAtDetachedValues(graph), 1);
  EXPECT_TRUE(stopsGradient(graph.nodes[0]));
  EXPECT_FALSE(stopsGradient(graph.nodes[1]));
  simplify(graph);
  ASSERT_EQ(graph.nodes.size(), 2u);
  EXPECT_TRUE(stopsGradient(graph.nodes[0]));
  EXPECT_EQ(graph.nodes[1].inputs[1], graph.nodes[0].outputs[0]);
}

TEST_F(DetachedValues, ThatTheOptimizerHasRemovedAreRefused) {
  const ValueId x = graph.inputs[0];
  graph.outputs = {node("Sub", {x, x}, "sub", "sub", "%x, %detach_1")};
  EXPECT_ERROR(stopAtDetachedValues(graph), ErrorCode::kBadModel, "computed from 'detach_1'");
  EXPECT_ERROR(stopAtDetachedValues(graph), ErrorCode::kBadModel, "optimize=False");
}

TEST_F(DetachedValues, ThatABranchReadsAreRefused) {
  const ValueId x = graph.inputs[0];
  graph.outputs = {node("Sub", {x, x}, "sub", "sub", "%x, %detach")};
  const auto branch = std::make_shared<const Graph>(graph);
  graph.nodes.clear();
  graph.outputs = {node("If", {x}, "cond", "cond", "%x")};
  graph.nodes.back().attributes["then_branch"] = branch;
  EXPECT_ERROR(stopAtDetachedValues(graph), ErrorCode::kBadModel, "computed from 'detach'");
}

TEST_F(DetachedValues, AreNotWhatMerelyHasTheirName) {
  const ValueId x = graph.inputs[0];
  const ValueId scaled = node("Relu", {x}, "detach_1", "relu", "%x");  // the name of a detached output
  graph.outputs = {node("Mul", {scaled, scaled}, "mul", "mul", "%relu, %detachable")};
  EXPECT_EQ(stopAtDetachedValues(graph), 0);
  node("Sub", {scaled, x}, "sub", "sub", "%detach_1, %x");
  graph.nodes[0].metadata[0].second.replace(0, 9, "%relu");
  EXPECT_ERROR(stopAtDetachedValues(graph), ErrorCode::kBadModel, "computed from 'detach_1'");
}

}  // namespace
}  // namespace pipeshard
