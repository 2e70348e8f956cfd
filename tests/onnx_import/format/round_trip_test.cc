// Graph to .onnx and back: nothing is lost, nothing half-written stays.

#include <csignal>
#include <fstream>

#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include "ir/graph/graph_print.h"
#include "onnx_import/format/reader.h"
#include "onnx_import/format/writer.h"
#include "tests/onnx_import/check_model.h"
#include "tests/onnx_import/model_files.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;
using google::protobuf::util::MessageDifferencer;
using testing::floatTensor;
using testing::ModelFolder;
using testing::parseText;
using testing::reluModel;

void setMetadata(auto* entries, const std::string& key, const std::string& value) {
  auto* entry = entries->Add();
  entry->set_key(key);
  entry->set_value(value);
}

onnx::ModelProto parsed(const std::string& bytes) {
  onnx::ModelProto model;
  EXPECT_TRUE(model.ParseFromString(bytes));
  return model;
}

// Fields that are set to their default mean the same as absent ones, and some lists have no order.
std::string differences(const onnx::ModelProto& a, const onnx::ModelProto& b) {
  MessageDifferencer differencer;
  std::string report;
  differencer.ReportDifferencesToString(&report);
  differencer.set_message_field_comparison(MessageDifferencer::EQUIVALENT);
  differencer.TreatAsSet(onnx::NodeProto::descriptor()->FindFieldByName("attribute"));
  differencer.TreatAsSet(onnx::GraphProto::descriptor()->FindFieldByName("value_info"));
  differencer.TreatAsSet(onnx::ModelProto::descriptor()->FindFieldByName("opset_import"));
  differencer.TreatAsSet(onnx::FunctionProto::descriptor()->FindFieldByName("opset_import"));
  // A moved entry of a list without order is reported, but is no difference.
  return differencer.Compare(a, b) ? std::string() : report;
}

void expectLossless(const onnx::ModelProto& model) {
  const Graph graph = parseModel(model.SerializeAsString(), "", "first");
  const std::string bytes = serializeModel(graph);
  EXPECT_EQ(differences(model, parsed(bytes)), "");
  const Graph again = parseModel(bytes, "", "second");
  EXPECT_EQ(printGraph(again), printGraph(graph));
  EXPECT_EQ(serializeModel(again), bytes);
}

TEST(RoundTrip, KeepsEveryFieldOfAModel) {
  onnx::ModelProto model = parseText(
      R"(<ir_version: 11, opset_import: ["" : 18, "local" : 1], producer_name: "maker", producer_version: "7",
      domain: "models.example", model_version: 5, doc_string: "a model">
    main_graph (float[batch,3] x, bool c) => (float[batch,3] y) <float[batch,3] a, float[3] b> {
      a = local.scale <factor: float = 2.0> (x)
      b = Constant <value_floats: floats = [1.0, 2.0, 3.0]> ()
      d = If (c) <then_branch = yes () => (float[3] p) { p = Neg(b) }, else_branch = no () => (float[3] q) { q = Identity(b) }>
      y = Add(a, d) }
    <domain: "local", opset_import: ["" : 18], doc_string: "scales">
    scale <factor> (v) => (w) { f = Constant <value_float: float = @factor> ()  w = Mul(v, f) })");
  auto* graph = model.mutable_graph();
  graph->set_doc_string("the graph");
  setMetadata(graph->mutable_metadata_props(), "graph.key", "1");
  setMetadata(model.mutable_metadata_props(), "model.key", "2");
  setMetadata(graph->mutable_node(0)->mutable_metadata_props(), "namespace", "blocks.0");
  setMetadata(graph->mutable_input(0)->mutable_metadata_props(), "kind", "USER_INPUT");
  setMetadata(graph->mutable_value_info(0)->mutable_metadata_props(), "note", "n");
  setMetadata(model.mutable_functions(0)->mutable_metadata_props(), "f", "g");
  graph->mutable_node(0)->set_name("scale0");
  graph->mutable_node(0)->set_doc_string("first");
  graph->mutable_node(0)->mutable_attribute(0)->set_doc_string("why 2");
  graph->mutable_input(0)->set_doc_string("the input");
  graph->mutable_input(0)->mutable_type()->set_denotation("IMAGE");
  graph->mutable_input(0)
      ->mutable_type()
      ->mutable_tensor_type()
      ->mutable_shape()
      ->mutable_dim(1)
      ->set_denotation("DATA_CHANNEL");
  auto* configuration = model.add_configuration();
  configuration->set_name("two");
  configuration->set_num_devices(2);
  auto* placement = graph->mutable_node(0)->add_device_configurations();
  placement->set_configuration_id("two");
  placement->set_pipeline_stage(1);
  setMetadata(model.add_training_info()->mutable_update_binding(), "w", "y");
  auto* annotation = graph->add_quantization_annotation();
  annotation->set_tensor_name("y");
  setMetadata(annotation->mutable_quant_parameter_tensor_names(), "SCALE_TENSOR", "s");
  expectLossless(model);
}

TEST(RoundTrip, KeepsInitializersOfEveryKind) {
  onnx::ModelProto model = reluModel();
  auto* graph = model.mutable_graph();
  onnx::TensorProto plain = floatTensor("plain", {2}, {});
  plain.set_raw_data(std::string("\0\0\x80?\0\0\0@", 8));
  plain.set_doc_string("weights");
  setMetadata(plain.mutable_metadata_props(), "k", "v");
  onnx::TensorProto text;
  text.set_name("text");
  text.set_data_type(onnx::TensorProto::STRING);
  text.add_dims(1);
  text.add_string_data("hello");
  onnx::TensorProto nibbles;
  nibbles.set_name("nibbles");
  nibbles.set_data_type(onnx::TensorProto::INT4);
  nibbles.add_dims(3);
  nibbles.set_raw_data("\x21\x03");
  *graph->add_initializer() = plain;
  *graph->add_initializer() = nibbles;
  *graph->add_initializer() = text;
  auto* sparse = graph->add_sparse_initializer();
  *sparse->mutable_values() = floatTensor("sparse", {1}, {5});
  sparse->add_dims(10);
  sparse->mutable_indices()->set_data_type(onnx::TensorProto::INT64);
  sparse->mutable_indices()->add_dims(1);
  sparse->mutable_indices()->add_int64_data(3);
  expectLossless(model);
}

TEST(RoundTrip, KeepsTypesThatAreNoDenseTensors) {
  expectLossless(parseText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (seq(float[2]) s, optional(float[3]) o) => (float[2] y) { i = Constant <value_int: int = 0> ()  y = SequenceAt(s, i) })"));
}

TEST(RoundTrip, KeepsOmittedInputsAndOutputs) {
  expectLossless(parseText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[2] x, float high) => (float[2] y) { y = Clip(x, , high) })"));
}

TEST(RoundTrip, TypedFieldsBecomeRawBytes) {
  onnx::ModelProto model = reluModel();
  const auto add = [&](const char* name, int type, const auto& fill) {
    auto* tensor = model.mutable_graph()->add_initializer();
    tensor->set_name(name);
    tensor->set_data_type(type);
    tensor->add_dims(2);
    fill(tensor);
  };
  add("f64", onnx::TensorProto::DOUBLE, [](auto* t) { t->add_double_data(1.5), t->add_double_data(-2); });
  add("i32", onnx::TensorProto::INT32, [](auto* t) { t->add_int32_data(-7), t->add_int32_data(8); });
  add("i8", onnx::TensorProto::INT8, [](auto* t) { t->add_int32_data(-1), t->add_int32_data(127); });
  add("b", onnx::TensorProto::BOOL, [](auto* t) { t->add_int32_data(1), t->add_int32_data(0); });
  add("i64", onnx::TensorProto::INT64,
      [](auto* t) { t->add_int64_data(int64_t{1} << 40), t->add_int64_data(-1); });
  add("u32", onnx::TensorProto::UINT32,
      [](auto* t) { t->add_uint64_data(4294967295u), t->add_uint64_data(0); });
  add("f16", onnx::TensorProto::FLOAT16,
      [](auto* t) { t->add_int32_data(0x3c00), t->add_int32_data(0xc000); });
  const Graph graph = parseModel(model.SerializeAsString(), "", "typed");
  EXPECT_EQ(testing::elementsOf(graph, "f64"), (std::vector<double>{1.5, -2}));
  EXPECT_EQ(testing::elementsOf(graph, "i32"), (std::vector<double>{-7, 8}));
  EXPECT_EQ(testing::elementsOf(graph, "i8"), (std::vector<double>{-1, 127}));
  EXPECT_EQ(testing::elementsOf(graph, "b"), (std::vector<double>{1, 0}));
  EXPECT_EQ(testing::elementsOf(graph, "i64"), (std::vector<double>{1099511627776.0, -1}));
  EXPECT_EQ(testing::elementsOf(graph, "u32"), (std::vector<double>{4294967295.0, 0}));
  const std::vector<std::byte> halves = {std::byte{0}, std::byte{0x3c}, std::byte{0}, std::byte{0xc0}};
  EXPECT_EQ(graph.constant(findValue(graph, "f16"))->bytes, halves);
}

class ExampleTest : public ::testing::TestWithParam<const char*> {};

TEST_P(ExampleTest, RoundTripsWithoutLoss) {
  const std::string path = std::string(PIPESHARD_SOURCE_DIR) + "/examples/" + GetParam();
  const Graph graph = readModel(path);
  const std::string bytes = serializeModel(graph);
  EXPECT_EQ(printGraph(parseModel(bytes, graph.directory, "again")), printGraph(graph));
  checkModel(graph);

  onnx::ModelProto original;
  std::ifstream stream(path, std::ios::binary);
  ASSERT_TRUE(original.ParseFromIstream(&stream));
  // Written in a normal form: no empty fields, initializers' types only in the tensors, tensors raw and
  // without names.
  const auto normalize = [](onnx::ModelProto& model) {
    ReadOptions options;
    options.require_external_data = false;
    Graph normal = parseModel(model.SerializeAsString(), "", "normal", options);
    model = parsed(serializeModel(normal));
  };
  onnx::ModelProto written = parsed(bytes);
  ASSERT_EQ(written.graph().node_size(), original.graph().node_size());
  for (int i = 0; i < original.graph().node_size(); ++i) {
    MessageDifferencer differencer;
    differencer.TreatAsSet(onnx::NodeProto::descriptor()->FindFieldByName("attribute"));
    differencer.set_message_field_comparison(MessageDifferencer::EQUIVALENT);
    EXPECT_TRUE(differencer.Compare(original.graph().node(i), written.graph().node(i)))
        << original.graph().node(i).DebugString();
  }
  ASSERT_EQ(written.graph().initializer_size(), original.graph().initializer_size());
  EXPECT_EQ(written.metadata_props_size(), original.metadata_props_size());
  EXPECT_EQ(written.graph().metadata_props_size(), original.graph().metadata_props_size());
  normalize(original);
  EXPECT_EQ(differences(original, written), "");
}

INSTANTIATE_TEST_SUITE_P(Committed, ExampleTest, ::testing::Values("mlp.onnx", "gpt2.onnx"),
                         [](const auto& info) {
                           return std::string(info.param).substr(0, std::string(info.param).find('.'));
                         });

TEST(Writer, ReplacesTheFileAndLeavesNothingElse) {
  const ModelFolder folder;
  const std::string path = folder.write("m.onnx", std::string("old"));
  const Graph graph = parseModel(reluModel().SerializeAsString(), "", "relu");
  writeModel(graph, path);
  EXPECT_EQ(printGraph(readModel(path)), printGraph(graph));
  size_t files = 0;
  for (const auto& entry : fs::directory_iterator(folder.file(""))) files += entry.is_regular_file() ? 1 : 0;
  EXPECT_EQ(files, 1u);
}

TEST(Writer, AFolderThatDoesNotExistIsAnError) {
  const Graph graph = parseModel(reluModel().SerializeAsString(), "", "relu");
  EXPECT_ERROR(writeModel(graph, "/nonexistent/m.onnx"), ErrorCode::kDiskFull, "/nonexistent/m.onnx");
}

// A limit on file sizes stands for a full disk: write() fails in the same place.
TEST(Writer, AFullDiskLeavesTheOldFile) {
  const ModelFolder folder;
  const std::string path = folder.write("m.onnx", std::string("old"));
  onnx::ModelProto model = reluModel();
  *model.mutable_graph()->add_initializer() = floatTensor("w", {4096}, std::vector<float>(4096, 1));
  const Graph graph = parseModel(model.SerializeAsString(), "", "big");
  rlimit old_limit = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const rlimit small = {4096, old_limit.rlim_max};
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Error error = testing::errorOf([&] { writeModel(graph, path); });
  ::setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(error.code(), ErrorCode::kDiskFull) << error.what();
  EXPECT_EQ(fs::file_size(path), 3u);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.file("")), fs::directory_iterator()), 1);
}

TEST(Writer, RefusesANodeWithTheMeaningOfAnotherOpset) {
  Graph graph = testing::graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[2,3] x) => (float[2,3] y) { y = Softmax(x) })");
  graph.nodes[0].opset_version = 11;
  EXPECT_ERROR(serializeModel(graph), ErrorCode::kBadModel, "Softmax", "opset 11", "opset 18");
  graph.nodes[0].opset_version = 13;  // unchanged since
  EXPECT_FALSE(serializeModel(graph).empty());
}

TEST(CheckModel, NamesAnUnknownAttribute) {
  Graph graph = parseModel(reluModel().SerializeAsString(), "", "relu");
  checkModel(graph);
  graph.nodes[0].attributes["wrong"] = int64_t{1};
  EXPECT_ERROR(checkModel(graph), ErrorCode::kBadModel, "wrong");
}

TEST(CheckModel, FindsContradictingShapes) {
  Graph graph = parseModel(reluModel().SerializeAsString(), "", "relu");
  graph.value(graph.outputs[0]).shape = Shape{3, 3};
  EXPECT_ERROR(checkModel(graph), ErrorCode::kBadModel, "Relu", "'y'", "[3,3]", "[2,3]");
}

TEST(CheckModel, NeedsNoWeightFiles) {
  Graph graph = readModel(std::string(PIPESHARD_SOURCE_DIR) + "/examples/mlp.onnx");
  graph.directory = "/nonexistent";
  checkModel(graph);
}

}  // namespace
}  // namespace pipeshard
