// detach() in files of PyTorch's exporter: no gradient passes, or the file is refused.
#include "onnx_import/exporter/detached_values.h"

#include <gtest/gtest.h>

#include "ir/graph/exporter_marks.h"
#include "ir/graph/stopped_gradient.h"
#include "onnx_import/prepare/simplify.h"
#include "tests/expect_error.h"

namespace pipeshard {
namespace {

TEST(CallKind, IsTheNameWithoutItsNumber) {
  EXPECT_EQ(callKind("mul"), "mul");
  EXPECT_EQ(callKind("mul_12"), "mul");
  EXPECT_EQ(callKind("conv2d"), "conv2d");
  EXPECT_EQ(callKind("conv2d_3"), "conv2d");
  EXPECT_EQ(callKind("detach__1"), "detach_");
  EXPECT_EQ(callKind("_1"), "_1");
  EXPECT_EQ(callKind(""), "");
}

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
  ValueId parameter() {
    const std::vector<float> zeros(12);
    const ValueId id = GraphBuilder(graph).addConstant("w", makeConstant<float>({3, 4}, zeros));
    graph.value(id).metadata = {{"pkg.torch.export.graph_signature.InputSpec.kind", "PARAMETER"}};
    return id;
  }
  // Of the last node.
  void lineOfCode(const std::string& code) {
    graph.nodes.back().metadata.emplace_back("pkg.torch.onnx.stack_trace",
                                             "File \"module.py\", line 9, in forward\n    " + code);
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

TEST_F(DetachedValues, ThatWereDetachedInPlaceAreRefused) {
  const ValueId x = graph.inputs[0];
  for (const char* argument : {"detach_", "detach__1"}) {
    graph.nodes.clear();
    graph.outputs = {node("Sub", {x, x}, "sub", "sub", std::string("%x, %") + argument)};
    EXPECT_ERROR(stopAtDetachedValues(graph), ErrorCode::kBadModel,
                 std::string("computed from '") + argument + "'");
  }
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

// The merge removes what named the detach(): a line of code still tells of it.
TEST_F(DetachedValues, ThatTheOptimizerHasMergedAreRefused) {
  const ValueId half = node("Mul", {parameter(), graph.inputs[0]}, "mul", "mul", "%p_w, %x");
  graph.outputs = {node("Add", {half, half}, "add", "add", "%mul, %mul_1")};
  EXPECT_EQ(stopAtDetachedValues(graph), 0);
  lineOfCode("h = h * 0.5 + h.detach() * 0.5");
  EXPECT_ERROR(stopAtDetachedValues(graph), ErrorCode::kBadModel, "gives it 'mul_1'");
  graph.nodes.back().metadata.pop_back();
  lineOfCode("h = f(h.data_format)");
  EXPECT_EQ(stopAtDetachedValues(graph), 0);
}

// x / (x.detach() + 1e-8): a number that is nothing beside one is dropped.
TEST_F(DetachedValues, ThatTheOptimizerHasDroppedWithTheirReaderAreRefused) {
  const ValueId root = node("Sqrt", {parameter()}, "sqrt", "sqrt", "%p_w");
  graph.outputs = {node("Div", {graph.inputs[0], root}, "div", "div", "%x, %add")};
  lineOfCode("n = torch.sqrt(r).detach() + 1e-8; x = x / n");
  EXPECT_ERROR(stopAtDetachedValues(graph), ErrorCode::kBadModel, "put 'sqrt' in its place");
}

TEST_F(DetachedValues, MayBeMergedWhereNoParameterIs) {
  const ValueId half = node("Tanh", {graph.inputs[0]}, "tanh", "tanh", "%x");
  graph.outputs = {node("Add", {half, half}, "add", "add", "%tanh, %tanh_1")};
  lineOfCode("h = torch.tanh(x) + torch.tanh(x.detach())");
  EXPECT_EQ(stopAtDetachedValues(graph), 0);
}

}  // namespace
}  // namespace pipeshard
