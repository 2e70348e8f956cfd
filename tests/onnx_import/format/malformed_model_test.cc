// One broken model per error; the message is checked.

#include <ctime>

#include <gtest/gtest.h>

#include "onnx_import/format/reader.h"
#include "tests/onnx_import/model_files.h"

namespace pipeshard {
namespace {

using testing::floatTensor;
using testing::ModelFolder;
using testing::parseText;
using testing::reluModel;

constexpr auto kBadModel = ErrorCode::kBadModel;

#define EXPECT_REFUSED(model, ...)                                                                   \
  EXPECT_ERROR(parseModel((model).SerializeAsString(), "", "broken.onnx"), kBadModel, "broken.onnx", \
               __VA_ARGS__)

TEST(MalformedModel, AMissingFileIsMissingInput) {
  EXPECT_ERROR(readModel("/nonexistent/model.onnx"), ErrorCode::kMissingInput, "/nonexistent/model.onnx",
               "No such file");
}

TEST(MalformedModel, ADirectoryIsMissingInput) {
  const ModelFolder folder;
  EXPECT_ERROR(readModel(folder.file("")), ErrorCode::kMissingInput, "is a directory");
}

TEST(MalformedModel, AnEmptyFileIsRefused) {
  const ModelFolder folder;
  EXPECT_ERROR(readModel(folder.write("empty.onnx", std::string())), kBadModel, "empty.onnx", "is empty");
}

TEST(MalformedModel, ATextFileIsNamedAsSuch) {
  const ModelFolder folder;
  EXPECT_ERROR(readModel(folder.write("notes.onnx", std::string("This is not a model.\n"))), kBadModel,
               "notes.onnx", "text file");
}

TEST(MalformedModel, AGitLfsPointerIsNamedAsSuch) {
  const ModelFolder folder;
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
  EXPECT_ERROR(readModel(folder.write("model.onnx", pointer)), kBadModel, "git lfs pull");
}

TEST(MalformedModel, ATruncatedFileIsRefusedAtEveryLength) {
  const std::string bytes = reluModel().SerializeAsString();
  const ModelFolder folder;
  for (size_t length = 1; length < bytes.size(); ++length) {
    const std::string path = folder.write("cut.onnx", bytes.substr(0, length));
    EXPECT_ERROR(readModel(path), kBadModel, "cut.onnx");
    ReadOptions without_weights;
    without_weights.inline_weight_bytes = 8;
    EXPECT_ERROR(readModel(path, without_weights), kBadModel, "cut.onnx");
  }
}

TEST(MalformedModel, AFileAboveTheLimitIsRefusedBeforeItIsRead) {
  const ModelFolder folder;
  const std::string path = folder.write("huge.onnx", std::string("x"));
  std::filesystem::resize_file(path, uint64_t{1} << 31);  // sparse
  EXPECT_ERROR(readModel(path), kBadModel, "huge.onnx", "2147483648 bytes", "external data");
}

TEST(MalformedModel, AModelWithoutGraphIsRefused) {
  onnx::ModelProto model = reluModel();
  model.clear_graph();
  EXPECT_REFUSED(model, "has no graph");
}

TEST(MalformedModel, ANewerIrVersionIsRefused) {
  onnx::ModelProto model = reluModel();
  model.set_ir_version(99);
  EXPECT_REFUSED(model, "IR version 99");
}

TEST(MalformedModel, AnUnlistedDomainIsRefused) {
  onnx::ModelProto model = reluModel();
  model.mutable_graph()->mutable_node(0)->set_domain("com.example");
  EXPECT_REFUSED(model, "com.example", "opset_import", "Relu");
}

TEST(MalformedModel, AContradictingOpsetImportIsRefused) {
  onnx::ModelProto model = reluModel();
  model.add_opset_import()->set_version(19);
  EXPECT_REFUSED(model, "18 and 19");
}

TEST(MalformedModel, AnUndefinedInputIsRefused) {
  onnx::ModelProto model = reluModel();
  model.mutable_graph()->mutable_node(0)->set_input(0, "nowhere");
  EXPECT_REFUSED(model, "reads 'nowhere'", "nothing defines", "not valid ONNX", "optimize=False");
}

TEST(MalformedModel, ACycleIsRefused) {
  EXPECT_REFUSED(parseText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[2] x) => (float[2] y) { y = Add(x, z)  z = Relu(y) })"),
                 "cycle", "'z'");
}

TEST(MalformedModel, AWrongOrderIsRefused) {
  EXPECT_REFUSED(parseText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[2] x) => (float[2] y) { y = Relu(z)  z = Relu(x) })"),
                 "topological order", "'z'");
}

TEST(MalformedModel, AValueDefinedTwiceIsRefused) {
  EXPECT_REFUSED(parseText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[2] x) => (float[2] y) { y = Relu(x)  y = Neg(x) })"),
                 "'y'", "already defined");
}

TEST(MalformedModel, AnUndefinedOutputIsRefused) {
  onnx::ModelProto model = reluModel();
  model.mutable_graph()->mutable_output(0)->set_name("lost");
  EXPECT_REFUSED(model, "'lost'");
}

TEST(MalformedModel, ARepeatedGraphInputIsRefused) {
  onnx::ModelProto model = reluModel();
  *model.mutable_graph()->add_input() = model.graph().input(0);
  EXPECT_REFUSED(model, "'x'", "already defined");
}

TEST(MalformedModel, ARepeatedAttributeIsRefused) {
  onnx::ModelProto model = reluModel();
  for (int i = 0; i < 2; ++i) {
    auto* attribute = model.mutable_graph()->mutable_node(0)->add_attribute();
    attribute->set_name("alpha");
    attribute->set_type(onnx::AttributeProto::FLOAT);
  }
  EXPECT_REFUSED(model, "'alpha' occurs twice", "Relu");
}

TEST(MalformedModel, AnInitializerWithTooFewElementsIsRefused) {
  onnx::ModelProto model = reluModel();
  *model.mutable_graph()->add_initializer() = floatTensor("w", {2, 2}, {1, 2, 3});
  EXPECT_REFUSED(model, "'w'", "3 elements", "need 4");
}

TEST(MalformedModel, RawDataOfTheWrongSizeIsRefused) {
  onnx::ModelProto model = reluModel();
  onnx::TensorProto tensor = floatTensor("w", {2}, {});
  tensor.set_raw_data("12345");
  *model.mutable_graph()->add_initializer() = tensor;
  EXPECT_REFUSED(model, "'w'", "5 bytes", "need 8");
}

TEST(MalformedModel, AHugeShapeInASmallFileIsRefused) {
  onnx::ModelProto model = reluModel();
  *model.mutable_graph()->add_initializer() = floatTensor("w", {int64_t{1} << 20, int64_t{1} << 20}, {});
  EXPECT_REFUSED(model, "'w'", "elements");
}

TEST(MalformedModel, AnOverflowingShapeIsRefused) {
  onnx::ModelProto model = reluModel();
  *model.mutable_graph()->add_initializer() = floatTensor("w", {int64_t{1} << 40, int64_t{1} << 40, 0}, {});
  EXPECT_REFUSED(model, "'w'", "elements");
}

TEST(MalformedModel, ANegativeSizeIsRefused) {
  onnx::ModelProto model = reluModel();
  *model.mutable_graph()->add_initializer() = floatTensor("w", {-3}, {});
  EXPECT_REFUSED(model, "'w'", "negative");
}

TEST(MalformedModel, AHugeShapeOfAnInputIsRefused) {
  onnx::ModelProto model = reluModel();
  model.mutable_graph()
      ->mutable_input(0)
      ->mutable_type()
      ->mutable_tensor_type()
      ->mutable_shape()
      ->mutable_dim(0)
      ->set_dim_value(int64_t{1} << 50);
  EXPECT_REFUSED(model, "'x'", "elements");
}

TEST(MalformedModel, ARankAboveTheLimitIsRefused) {
  onnx::ModelProto model = reluModel();
  *model.mutable_graph()->add_initializer() = floatTensor("w", std::vector<int64_t>(100, 1), {1});
  EXPECT_REFUSED(model, "'w'", "rank 100", "64");
}

TEST(MalformedModel, AHugeTensorInAnAttributeIsRefused) {
  onnx::ModelProto model = reluModel();
  auto* attribute = model.mutable_graph()->mutable_node(0)->add_attribute();
  attribute->set_name("value");
  attribute->set_type(onnx::AttributeProto::TENSOR);
  *attribute->mutable_t() = floatTensor("", {int64_t{1} << 45}, {});
  EXPECT_REFUSED(model, "attribute 'value'", "elements");
}

TEST(MalformedModel, ANameAboveTheLimitIsRefused) {
  onnx::ModelProto model = reluModel();
  model.mutable_graph()->mutable_node(0)->set_name(std::string(100'000, 'n'));
  EXPECT_REFUSED(model, "100000 bytes", "65536");
}

TEST(MalformedModel, TooManyNodesAreRefused) {
  ReadOptions options;
  options.limits.nodes = 2;
  onnx::ModelProto model = parseText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[2] x) => (float[2] y) { a = Relu(x)  b = Relu(a)  y = Relu(b) })");
  EXPECT_ERROR(parseModel(model.SerializeAsString(), "", "m", options), kBadModel, "limit of 2 nodes");
}

TEST(MalformedModel, TooManyInitializersAreRefused) {
  ReadOptions options;
  options.limits.initializers = 1;
  onnx::ModelProto model = reluModel();
  *model.mutable_graph()->add_initializer() = floatTensor("a", {1}, {1});
  *model.mutable_graph()->add_initializer() = floatTensor("b", {1}, {1});
  EXPECT_ERROR(parseModel(model.SerializeAsString(), "", "m", options), kBadModel, "limit of 1 initializers");
}

TEST(MalformedModel, SubgraphsNestedTooDeeplyAreRefused) {
  onnx::GraphProto graph;
  graph.set_name("innermost");
  for (int depth = 0; depth < 20; ++depth) {
    onnx::GraphProto outer;
    outer.set_name("nested");
    auto* node = outer.add_node();
    node->set_op_type("If");
    auto* attribute = node->add_attribute();
    attribute->set_name("then_branch");
    attribute->set_type(onnx::AttributeProto::GRAPH);
    *attribute->mutable_g() = graph;
    graph = outer;
  }
  onnx::ModelProto model = reluModel();
  *model.mutable_graph() = graph;
  EXPECT_REFUSED(model, "16 subgraphs");
}

TEST(MalformedModel, AFunctionThatCallsItselfIsRefused) {
  EXPECT_REFUSED(parseText(R"(<ir_version: 10, opset_import: ["" : 18, "local" : 1]>
    g (float[2] x) => (float[2] y) { y = local.f(x) }
    <domain: "local", opset_import: ["" : 18, "local" : 1]> f (a) => (b) { b = local.f(a) })"),
                 "local:f", "calls itself");
}

TEST(MalformedModel, RecursionThroughASubgraphIsRefused) {
  EXPECT_REFUSED(parseText(R"(<ir_version: 10, opset_import: ["" : 18, "local" : 1]>
    g (float[2] x, bool c) => (float[2] y) { y = local.f(x, c) }
    <domain: "local", opset_import: ["" : 18, "local" : 1]> f (a, c) => (b) {
      b = If (c) <then_branch = t () => (p) { p = local.f(a, c) }, else_branch = e () => (q) { q = Identity(a) }> })"),
                 "calls itself");
}

TEST(MalformedModel, AnExponentialExpansionOfFunctionsIsRefusedInTime) {
  onnx::ModelProto model = parseText(R"(<ir_version: 10, opset_import: ["" : 18, "local" : 1]>
    g (float[2] x) => (float[2] y) { y = local.f0(x) })");
  for (int level = 0; level < 40; ++level) {
    auto* function = model.add_functions();
    function->set_domain("local");
    function->set_name("f" + std::to_string(level));
    function->add_input("a");
    function->add_output("c");
    for (const char* domain : {"", "local"}) {
      auto* import = function->add_opset_import();
      import->set_domain(domain);
      import->set_version(domain[0] == '\0' ? 18 : 1);
    }
    for (int call = 0; call < 2; ++call) {
      auto* node = function->add_node();
      node->set_op_type(level == 39 ? "Relu" : "f" + std::to_string(level + 1));
      if (level != 39) node->set_domain("local");
      node->add_input(call == 0 ? "a" : "b");
      node->add_output(call == 0 ? "b" : "c");
    }
  }
  const std::clock_t start = std::clock();
  EXPECT_REFUSED(model, "2000000 nodes", "functions are expanded");
  EXPECT_LT(std::clock() - start, 10 * CLOCKS_PER_SEC);
}

TEST(MalformedModel, AFunctionDefinedTwiceIsRefused) {
  EXPECT_REFUSED(parseText(R"(<ir_version: 10, opset_import: ["" : 18, "local" : 1]>
    g (float[2] x) => (float[2] y) { y = local.f(x) }
    <domain: "local", opset_import: ["" : 18]> f (a) => (b) { b = Relu(a) }
    <domain: "local", opset_import: ["" : 18]> f (a) => (b) { b = Neg(a) })"),
                 "local::f", "twice");
}

TEST(MalformedModel, ALongChainOfNodesIsReadInTime) {
  onnx::ModelProto model = reluModel();
  model.mutable_graph()->clear_node();
  constexpr int kNodes = 200'000;
  for (int i = 0; i < kNodes; ++i) {
    auto* node = model.mutable_graph()->add_node();
    node->set_op_type("Relu");
    node->add_input(i == 0 ? "x" : "v" + std::to_string(i - 1));
    node->add_output(i == kNodes - 1 ? "y" : "v" + std::to_string(i));
  }
  const std::clock_t start = std::clock();
  EXPECT_EQ(parseModel(model.SerializeAsString(), "", "chain").nodes.size(), static_cast<size_t>(kNodes));
  EXPECT_LT(std::clock() - start, 10 * CLOCKS_PER_SEC);
}

}  // namespace
}  // namespace pipeshard
