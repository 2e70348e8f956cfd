
#include <gtest/gtest.h>

#include "ir/graph/graph_print.h"
#include "onnx_import/format/reader.h"
#include "onnx_import/format/writer.h"
#include "onnx_import/prepare/inference.h"
#include "onnx_import/prepare/inline_functions.h"
#include "onnx_import/prepare/prepare.h"
#include "tests/onnx_import/check_model.h"
#include "tests/onnx_import/model_files.h"

namespace pipeshard {
namespace {

using testing::graphFromText;

constexpr uint64_t kLimit = 1000;

std::vector<std::string> operatorsOf(const Graph& graph) {
  std::vector<std::string> operators;
  for (const Node& node : graph.nodes) operators.push_back(node.op_type);
  return operators;
}

using Operators = std::vector<std::string>;

TEST(InlineFunctions, ReplacesNestedCallsByUniqueNames) {
  Graph graph = graphFromText(R"(<ir_version: 10, opset_import: ["" : 18, "local" : 1]>
    g (float[2] x) => (float[2] y) { a = local.outer(x)  y = local.outer(a) }
    <domain: "local", opset_import: ["" : 18, "local" : 1]> outer (v) => (w) { t = local.inner(v)  w = Neg(t) }
    <domain: "local", opset_import: ["" : 18]> inner (v) => (w) { t = Relu(v)  w = Abs(t) })");
  inlineFunctions(graph, kLimit);
  EXPECT_EQ(operatorsOf(graph), (Operators{"Relu", "Abs", "Neg", "Relu", "Abs", "Neg"}));
  EXPECT_TRUE(graph.functions.empty());
  verifyGraph(graph);
  inferShapes(graph);
  EXPECT_EQ(graph.shape(findValue(graph, "y")), Shape({2}));
  checkModel(graph);
}

TEST(InlineFunctions, FillsInAttributesAndTheirDefaults) {
  Graph graph = graphFromText(R"(<ir_version: 10, opset_import: ["" : 18, "local" : 1]>
    g (float[2,3] x) => (float[2,3] y, float[2,3] z) { y = local.soft <at = 0> (x)  z = local.soft(x) }
    <domain: "local", opset_import: ["" : 18]> soft <at: int = 1> (v) => (w) { w = Softmax <axis: int = @at> (v) })");
  inlineFunctions(graph, kLimit);
  EXPECT_EQ(graph.nodes[0].intAttribute("axis", -9), 0);
  EXPECT_EQ(graph.nodes[1].intAttribute("axis", -9), 1);
}

TEST(InlineFunctions, AnAttributeWithoutValueIsLeftOut) {
  Graph graph = graphFromText(R"(<ir_version: 10, opset_import: ["" : 18, "local" : 1]>
    g (float[2,3] x) => (float[2,3] y) { y = local.soft(x) }
    <domain: "local", opset_import: ["" : 18]> soft <at> (v) => (w) { w = Softmax <axis: int = @at> (v) })");
  inlineFunctions(graph, kLimit);
  EXPECT_FALSE(graph.nodes[0].hasAttribute("axis"));
}

TEST(InlineFunctions, KeepsTheCallsMetadata) {
  Graph graph = graphFromText(R"(<ir_version: 10, opset_import: ["" : 18, "local" : 1]>
    g (float[2] x) => (float[2] y) { y = local.f(x) }
    <domain: "local", opset_import: ["" : 18]> f (v) => (w) { t = Relu(v)  w = Neg(t) })");
  graph.nodes[0].metadata = {{"namespace", "blocks.3"}};
  graph.nodes[0].name = "call";
  inlineFunctions(graph, kLimit);
  for (const Node& node : graph.nodes) {
    EXPECT_EQ(node.metadata, (Metadata{{"namespace", "blocks.3"}}));
    EXPECT_TRUE(node.name.starts_with("call/")) << node.name;
  }
}

TEST(InlineFunctions, OmittedInputsStayOmittedAndPassedThroughOnesAreCopied) {
  Graph graph = graphFromText(R"(<ir_version: 10, opset_import: ["" : 18, "local" : 1]>
    g (float[2] x, float high) => (float[2] y, float[2] same) { y, same = local.bound(x, , high) }
    <domain: "local", opset_import: ["" : 18]> bound (v, low, high) => (w, v) { w = Clip(v, low, high) })");
  inlineFunctions(graph, kLimit);
  EXPECT_EQ(operatorsOf(graph), (Operators{"Clip", "Identity"}));
  EXPECT_FALSE(graph.nodes[0].inputs[1].valid());
  checkModel(graph);
}

TEST(InlineFunctions, WorksInsideAndAroundSubgraphs) {
  Graph graph = graphFromText(R"(<ir_version: 10, opset_import: ["" : 18, "local" : 1]>
    g (float[2] x, bool c) => (float[2] y) { y = local.choose(x, c) }
    <domain: "local", opset_import: ["" : 18, "local" : 1]> choose (v, flag) => (w) {
      t = Neg(v)
      w = If (flag) <then_branch = yes () => (p) { p = local.twice(t) }, else_branch = no () => (q) { q = Identity(v) }> }
    <domain: "local", opset_import: ["" : 18]> twice (a) => (b) { b = Add(a, a) })");
  inlineFunctions(graph, kLimit);
  EXPECT_EQ(operatorsOf(graph), (Operators{"Neg", "If"}));
  verifyGraph(graph);
  checkModel(graph);
  EXPECT_EQ(graph.shape(findValue(graph, "y")), Shape({2}));
}

TEST(InlineFunctions, StopsAtTheNodeLimit) {
  Graph graph = graphFromText(R"(<ir_version: 10, opset_import: ["" : 18, "local" : 1]>
    g (float[2] x) => (float[2] y) { a = local.f(x)  y = local.f(a) }
    <domain: "local", opset_import: ["" : 18]> f (v) => (w) { t = Relu(v)  w = Neg(t) })");
  EXPECT_ERROR(inlineFunctions(graph, 3), ErrorCode::kBadModel, "limit of 3 nodes");
}

TEST(InlineFunctions, ACallWithTooManyInputsIsRefused) {
  Graph graph = graphFromText(R"(<ir_version: 10, opset_import: ["" : 18, "local" : 1]>
    g (float[2] x) => (float[2] y) { y = local.f(x, x) }
    <domain: "local", opset_import: ["" : 18]> f (v) => (w) { w = Relu(v) })");
  EXPECT_ERROR(inlineFunctions(graph, kLimit), ErrorCode::kBadModel, "local::f", "2 inputs");
}

// As emission does: calls of named functions in the pipeshard domain, written, read back, checked and
// inlined.
TEST(PipeshardFunctions, SurviveAFileAndInferThroughTheirBodies) {
  Graph body = graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    ReluGrad (float[N] dY, float[N] Y) => (float[N] dX) { zero = Constant <value_float: float = 0.0> ()
      shaped = CastLike(zero, Y)  positive = Greater(Y, shaped)  dX = Where(positive, dY, shaped) })");
  for (Value& value : body.values)
    value.data_type = DataType::kUndefined, value.shape.reset(), value.symbols.clear();
  Graph graph;
  graph.opset_imports = {{"", 18}, {std::string(kPipeshardDomain), 1}};
  GraphBuilder builder(graph);
  const ValueId dy = builder.addValue("dy", DataType::kFloat32, {4, 5});
  const ValueId y = builder.addValue("y", DataType::kFloat32, {4, 5});
  const ValueId dx = builder.addValue("dx", DataType::kUndefined, {});
  graph.value(dx).shape.reset();
  builder.addNode(kPipeshardDomain, "ReluGrad", {dy, y}, {dx});
  graph.inputs = {dy, y};
  graph.outputs = {dx};
  Function function;
  function.domain = kPipeshardDomain;
  function.name = "ReluGrad";
  function.body = std::make_shared<const Graph>(body);
  graph.functions.push_back(function);

  const testing::ModelFolder folder;
  writeModel(graph, folder.file("backward.onnx"));
  Graph read = readModel(folder.file("backward.onnx"));
  EXPECT_EQ(printGraph(read), printGraph(graph));
  checkModel(read);
  inferShapes(read);
  EXPECT_EQ(read.shape(findValue(read, "dx")), Shape({4, 5}));
  const Graph prepared = prepareModel(read, {});
  EXPECT_EQ(operatorsOf(prepared), (Operators{"ReluGrad"}));
  EXPECT_EQ(prepared.functions.size(), 1u);
  inlineFunctions(read, kLimit);
  inferShapes(read);
  EXPECT_EQ(operatorsOf(read), (Operators{"Constant", "CastLike", "Greater", "Where"}));
  checkModel(read);
}

}  // namespace
}  // namespace pipeshard
