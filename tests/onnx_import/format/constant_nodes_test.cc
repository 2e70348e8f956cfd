#include "onnx_import/format/constant_nodes.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "onnx_import/format/reader.h"
#include "onnx_import/format/writer.h"
#include "tests/onnx_import/model_files.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;
using testing::elementsOf;
using testing::floatTensor;
using testing::ModelFolder;
using testing::parseText;

Graph lifted(const onnx::ModelProto& model) {
  ReadOptions options;
  options.lift_constant_nodes = true;
  return parseModel(model.SerializeAsString(), "", "m", options);
}

bool isInitializer(const Graph& graph, const std::string& name) {
  const ValueId id = findValue(graph, name);
  return id.valid() && graph.initializers.contains(id) && isOfConstantNode(graph.value(id));
}

std::vector<std::string> operators(const Graph& graph) {
  std::vector<std::string> types;
  for (const Node& node : graph.nodes) types.push_back(node.op_type);
  return types;
}

TEST(ConstantNodes, HoldInitializers) {
  const onnx::ModelProto model = parseText(R"(<ir_version: 8, opset_import: ["": 17]>
    g (float[N, 2] x) => (float[M] y) {
      w = Constant <value = float[2, 2] {1, 2, 3, 4}> ()
      b = Constant <value_floats: floats = [5, 6]> ()
      half = Constant <value_float: float = 0.5> ()
      shape = Constant <value = int64[1] {-1}> ()
      m = MatMul(x, w)
      a = Add(m, b)
      h = Mul(a, half)
      y = Reshape(h, shape)
    })");
  const Graph graph = lifted(model);
  EXPECT_TRUE(isInitializer(graph, "w"));
  EXPECT_EQ(graph.shape(findValue(graph, "w")), Shape({2, 2}));
  EXPECT_THAT(elementsOf(graph, "w"), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(elementsOf(graph, "b"), ElementsAre(5, 6));
  EXPECT_THAT(operators(graph), ElementsAre("Constant", "Constant", "MatMul", "Add", "Mul", "Reshape"));
  verifyGraph(graph);
  // without the option the graph is as the file has it
  EXPECT_TRUE(parseModel(model.SerializeAsString(), "", "m").initializers.empty());
}

TEST(ConstantNodes, AnOutputOfTheGraphStaysOne) {
  const Graph graph = lifted(parseText(R"(<ir_version: 8, opset_import: ["": 17]>
    g (float[2] x) => (float[2] y, float[2] c) {
      c = Constant <value = float[2] {1, 2}> ()
      y = Add(x, c)
    })"));
  EXPECT_TRUE(graph.initializers.empty());
  verifyGraph(graph);
}

TEST(ConstantNodes, LargeOnesStayInTheFile) {
  onnx::ModelProto model = parseText(R"(<ir_version: 8, opset_import: ["": 17]>
    g (float[2, 1000] x) => (float[2, 1000] y) {
      big = Constant <value = float[1] {0}> ()
      mask = Constant <value = float[1] {0}> ()
      a = Add(x, big)
      y = Add(a, mask)
    })");
  const std::vector<float> numbers(1000, 2);
  for (const int node : {0, 1}) {
    onnx::TensorProto& tensor = *model.mutable_graph()->mutable_node(node)->mutable_attribute(0)->mutable_t();
    tensor = floatTensor("", {1000}, {});
    tensor.set_raw_data(std::string(reinterpret_cast<const char*>(numbers.data()), 4000));
  }
  const float low = -1e9F;
  onnx::TensorProto& mask = *model.mutable_graph()->mutable_node(1)->mutable_attribute(0)->mutable_t();
  mask.mutable_raw_data()->replace(0, 4, reinterpret_cast<const char*>(&low), 4);
  const ModelFolder folder;
  const std::string path = folder.write("m.onnx", model);
  ReadOptions options;
  options.lift_constant_nodes = true;
  options.inline_weight_bytes = 1024;
  const Graph graph = readModel(path, options);
  const auto* reference = std::get_if<WeightReference>(&graph.initializers.at(findValue(graph, "big")));
  ASSERT_NE(reference, nullptr);
  EXPECT_EQ(reference->location, "m.onnx");
  ASSERT_EQ(reference->length, 4000U);
  std::ifstream file(path, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(reference->offset));
  std::vector<float> found(1000);
  file.read(reinterpret_cast<char*>(found.data()), 4000);
  EXPECT_EQ(found, numbers);
  EXPECT_NE(graph.constant(findValue(graph, "mask")), nullptr);  // known by its numbers
}

// Both calls of Outer read the one matrix that Inner has.
TEST(ConstantNodes, OfFunctionsAreSharedByTheirCalls) {
  const Graph graph = lifted(parseText(R"(<ir_version: 8, opset_import: ["": 17, "my": 1]>
    g (float[N, 2] x) => (float[N, 2] y) {
      a = my.Outer(x)
      b = my.Outer(a)
      y = my.Plain(b)
    }
    <domain: "my", opset_import: ["": 17, "my": 1]>
    Outer (X) => (Y) {
      S = Constant <value = float[2] {7, 8}> ()
      M = my.Inner(X)
      Y = Mul(M, S)
    }
    <domain: "my", opset_import: ["": 17]>
    Inner (X) => (Y) {
      W = Constant <value = float[2, 2] {1, 2, 3, 4}> ()
      Y = MatMul(X, W)
    }
    <domain: "my", opset_import: ["": 17]>
    Plain (X) => (Y) {
      one = Constant <value = float[1] {1}> ()
      Y = Add(X, one)
    })"));
  EXPECT_THAT(elementsOf(graph, "Inner.W"), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(elementsOf(graph, "Outer.S"), ElementsAre(7, 8));
  EXPECT_EQ(graph.initializers.size(), 2U);
  const ValueId scale = findValue(graph, "Outer.S"), matrix = findValue(graph, "Inner.W");
  EXPECT_THAT(graph.nodes[0].inputs, ElementsAre(findValue(graph, "x"), scale, matrix));
  EXPECT_THAT(graph.nodes[1].inputs, ElementsAre(findValue(graph, "a"), scale, matrix));
  EXPECT_THAT(graph.nodes[2].inputs, ElementsAre(findValue(graph, "b")));
  const Function* outer = graph.findFunction("my", "Outer");
  ASSERT_NE(outer, nullptr);
  EXPECT_EQ(outer->body->inputs.size(), 3U);
  EXPECT_THAT(operators(*outer->body), ElementsAre("Inner", "Mul"));
  verifyGraph(graph);
  const Graph again = parseModel(serializeModel(graph), "", "again");  // valid as a file
  EXPECT_THAT(elementsOf(again, "Inner.W"), ElementsAre(1, 2, 3, 4));
}

TEST(ConstantNodes, OfBranchesAreTheMainGraphsWhereNamesAreTheirOwn) {
  const Graph graph = lifted(parseText(R"(<ir_version: 8, opset_import: ["": 17]>
    g (bool c, float[2] x) => (float[2] y) {
      y = If (c) <
        then_branch = t () => (float[2] p) {
          w = Constant <value = float[2] {1, 2}> ()
          s = Constant <value = float[2] {3, 4}> ()
          q = Mul(x, w)
          p = Add(q, s)
        },
        else_branch = e () => (float[2] r) {
          s = Constant <value = float[2] {5, 6}> ()
          r = Add(x, s)
        }>
    })"));
  EXPECT_THAT(elementsOf(graph, "w"), ElementsAre(1, 2));
  EXPECT_EQ(graph.initializers.size(), 1U);
  verifyGraph(graph);
  const Graph again = parseModel(serializeModel(graph), "", "again");
  EXPECT_THAT(elementsOf(again, "w"), ElementsAre(1, 2));
}

}  // namespace
}  // namespace pipeshard
