// torch.no_grad() in files of PyTorch's exporter, by the lines of code beside the nodes.
#include "onnx_import/exporter/no_grad_regions.h"

#include <gtest/gtest.h>

#include "ir/graph/stopped_gradient.h"
#include "tests/expect_error.h"

namespace pipeshard {
namespace {

// A teacher: relu(x w), of a parameter; the loss compares it with x.
class NoGradRegionsTest : public ::testing::Test {
 protected:
  NoGradRegionsTest() {
    graph.opset_imports = {{"", 20}};
    GraphBuilder builder(graph);
    x = builder.addValue("x", DataType::kFloat32, {4, 4});
    graph.inputs = {x};
    w = builder.addConstant("a.weight", makeConstant<float>({4, 4}, std::vector<float>(16, 1)));
    graph.value(w).metadata = {{"pkg.torch.export.graph_signature.InputSpec.kind", "PARAMETER"}};
  }

  ValueId node(const std::string& op_type, const std::vector<ValueId>& inputs, const std::string& call,
               const std::string& arguments, const std::string& code) {
    GraphBuilder builder(graph);
    const ValueId output = builder.addValue(call, DataType::kFloat32, {4, 4});
    builder.addNode("", op_type, inputs, {output});
    graph.nodes.back().metadata = {
        {"pkg.torch.onnx.fx_node", "%" + call + " : [num_users=1] = call_function[target=torch.ops.aten." +
                                       call + ".default](args = (" + arguments + "), kwargs = {})"},
        {"pkg.torch.onnx.stack_trace", "File \"" + code}};
    return output;
  }
  ValueId teacher(const std::string& code) {
    const ValueId product = node("MatMul", {x, w}, "linear", "%x, %p_a_weight", code);
    return node("Relu", {product}, "relu", "%linear", code.substr(0, code.find('(')) + "(linear)");
  }

  Graph graph;
  ValueId x, w;
};

constexpr const char* kModule = "module.py\", line 9, in forward\n    return (b(x) - t)";
constexpr const char* kNoGrad =
    "<eval_with_key>.36\", line 5, in forward\n    linear = torch.ops.aten.linear.default(x, p_a_weight)";
constexpr const char* kAutocast =
    "<eval_with_key>.36\", line 5, in forward\n    linear = torch.ops.aten.linear.default(arg4_1, arg0_1)";

TEST_F(NoGradRegionsTest, NoGradientComesOutOfThem) {
  const ValueId target = teacher(kNoGrad);
  graph.outputs = {node("Sub", {x, target}, "sub", "%x, %relu", kModule)};
  EXPECT_EQ(stopAfterNoGrad(graph), 1);
  ASSERT_EQ(graph.nodes.size(), 4u);
  EXPECT_TRUE(stopsGradient(graph.nodes[2]));
  EXPECT_EQ(graph.nodes[1].inputs[0], graph.nodes[0].outputs[0]);  // inside, all is as it was
  EXPECT_EQ(graph.nodes[3].inputs[1], graph.nodes[2].outputs[0]);
  EXPECT_EQ(graph.shape(graph.nodes[2].outputs[0]), (Shape{4, 4}));
}

// --loss may be made of an output, by its name.
TEST_F(NoGradRegionsTest, OutputsAreStoppedAndKeepTheirNames) {
  const ValueId target = teacher(kNoGrad);
  graph.outputs = {node("Sub", {x, target}, "sub", "%x, %relu", kModule), target};
  EXPECT_EQ(stopAfterNoGrad(graph), 1);
  EXPECT_EQ(graph.outputs[1], graph.nodes[2].outputs[0]);
  EXPECT_TRUE(stopsGradient(graph.nodes[2]));
  EXPECT_EQ(graph.value(graph.outputs[1]).name, "relu");
  verifyGraph(graph);
}

// Nothing else reads what the region gives: a branch captures it by its name.
TEST_F(NoGradRegionsTest, BranchesReadWhatIsStopped) {
  const ValueId target = teacher(kNoGrad);
  Graph branch;
  GraphBuilder inside(branch);
  const ValueId captured = inside.addValue("relu", DataType::kFloat32, {4, 4});
  const ValueId result = inside.addValue("result", DataType::kFloat32, {4, 4});
  inside.addNode("", "Neg", {captured}, {result});
  branch.outputs = {result};
  graph.outputs = {node("If", {x}, "cond", "%x", kModule)};
  graph.nodes.back().attributes["then_branch"] = std::make_shared<const Graph>(branch);
  EXPECT_EQ(stopAfterNoGrad(graph), 1);
  EXPECT_TRUE(stopsGradient(graph.nodes[2]));
  EXPECT_EQ(graph.value(graph.nodes[2].outputs[0]).name, "relu");
  EXPECT_NE(graph.value(target).name, "relu");
}

TEST_F(NoGradRegionsTest, OfOtherRegionsItDoes) {
  for (const char* code : {kAutocast, kModule}) {
    graph.nodes.clear();
    graph.outputs = {node("Sub", {x, teacher(code)}, "sub", "%x, %relu", kModule)};
    EXPECT_EQ(stopAfterNoGrad(graph), 0) << code;
    EXPECT_EQ(graph.nodes.size(), 3u);
  }
}

TEST_F(NoGradRegionsTest, WithoutParametersThereIsNothingToStop) {
  graph.value(w).metadata.clear();
  graph.outputs = {node("Sub", {x, teacher(kNoGrad)}, "sub", "%x, %relu", kModule)};
  EXPECT_EQ(stopAfterNoGrad(graph), 0);
}

// Angles of rotary positions: computed beforehand of a buffer, and read by calls that name another.
TEST_F(NoGradRegionsTest, ConstantsOfBuffersAreNoParameters) {
  graph.metadata = {{"pkg.torch.export.ExportedProgram.graph_signature",
                     "p_other: PARAMETER target='other'\nb_frequencies: BUFFER target='frequencies'\n"}};
  graph.value(w).metadata = {{"pkg.onnxscript.optimizer.folded_from", "['frequencies', 'val_3']"}};
  const ValueId target = teacher(kNoGrad);
  const ValueId student = node("Tanh", {target}, "tanh", "%relu_1", kModule);
  graph.outputs = {node("Sub", {student, target}, "sub", "%tanh, %relu", kModule)};
  EXPECT_EQ(stopAfterNoGrad(graph), 0);
  graph.value(w).metadata = {{"pkg.onnxscript.optimizer.folded_from", "['other', 'val_3']"}};
  EXPECT_ERROR(stopAfterNoGrad(graph), ErrorCode::kBadModel, "computes under torch.no_grad()");
}

TEST_F(NoGradRegionsTest, MergedValuesAreRefused) {
  const ValueId target = teacher(kNoGrad);
  const ValueId student = node("Tanh", {target}, "tanh", "%relu_1", kModule);
  graph.outputs = {node("Sub", {student, target}, "sub", "%tanh, %relu", kModule)};
  EXPECT_ERROR(stopAfterNoGrad(graph), ErrorCode::kBadModel, "computes under torch.no_grad()");
}

// relu(h) + t, where t is relu(h) under torch.no_grad(): the call names one of the two operands.
TEST_F(NoGradRegionsTest, MergedValuesAreFoundByOperand) {
  const ValueId target = teacher(kNoGrad);
  graph.outputs = {node("Add", {target, target}, "add", "%relu_1, %relu", kModule)};
  EXPECT_ERROR(stopAfterNoGrad(graph), ErrorCode::kBadModel, "computes under torch.no_grad()");
  graph.nodes.pop_back();
  graph.outputs = {node("Mul", {target, target}, "pow_1", "%relu, 2", kModule)};
  EXPECT_EQ(stopAfterNoGrad(graph), 1);
}

// max(1).values: calls name the result, not the call.
TEST_F(NoGradRegionsTest, ResultsOfACallWithSeveralAreNamed) {
  const ValueId product = node("MatMul", {x, w}, "linear", "%x, %p_a_weight", kNoGrad);
  const ValueId best = node("ReduceMax", {product}, "max_1", "%linear, 1", kNoGrad);
  graph.value(best).name = "getitem";
  graph.outputs = {node("Mul", {best}, "mul", "%getitem, 0.99", kModule)};
  Graph other = graph;
  EXPECT_EQ(stopAfterNoGrad(graph), 1);
  EXPECT_TRUE(stopsGradient(graph.nodes[2]));
  other.nodes.back().metadata[0].second =
      "%mul : [num_users=1] = call_function[target=torch.ops.aten.mul.default](args = (%getitem_2, 0.99), "
      "kwargs = {})";
  EXPECT_ERROR(stopAfterNoGrad(other), ErrorCode::kBadModel, "computes under torch.no_grad()");
}

}  // namespace
}  // namespace pipeshard
