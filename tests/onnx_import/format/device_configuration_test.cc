// Device configurations and pipeline stages: written, read back, and refused where a file contradicts itself.

#include "onnx_import/format/device_configuration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/graph/graph_print.h"
#include "onnx_import/format/reader.h"
#include "onnx_import/format/writer.h"
#include "tests/onnx_import/check_model.h"
#include "tests/onnx_import/model_files.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;
using testing::ModelFolder;

onnx::ModelProto chainModel() {
  return testing::parseText(R"(<ir_version: 10, opset_import: ["" : 18]>
    chain (float[2,3] x) => (float[2,3] y) { a = Relu(x)  b = Neg(a)  c = Exp(b)  y = Abs(c) })");
}

Graph graphOf(const onnx::ModelProto& model) { return parseModel(model.SerializeAsString(), "", "chain"); }

onnx::ModelProto protoOf(const Graph& graph) {
  onnx::ModelProto model;
  EXPECT_TRUE(model.ParseFromString(serializeModel(graph)));
  return model;
}

const DeviceConfiguration kTwoRanks{"pipeshard", {"rank0", "rank1"}};

// The chain with a sound configuration: the start of every malformed one below.
onnx::ModelProto annotatedChain() {
  Graph graph = graphOf(chainModel());
  annotatePipelineStages(graph, kTwoRanks, {0, 0, 1, 1});
  return protoOf(graph);
}

onnx::NodeDeviceConfigurationProto& annotationOf(onnx::ModelProto& model, int node) {
  return *model.mutable_graph()->mutable_node(node)->mutable_device_configurations(0);
}

#define EXPECT_CONTRADICTION(model, ...) \
  EXPECT_ERROR(pipelineStages(graphOf(model), "pipeshard"), ErrorCode::kBadModel, __VA_ARGS__)

TEST(DeviceConfiguration, StagesSurviveAFile) {
  const ModelFolder folder;
  Graph graph = graphOf(chainModel());
  annotatePipelineStages(graph, kTwoRanks, {0, -1, 1, 0});
  checkModel(graph);
  writeModel(graph, folder.file("annotated.onnx"));
  const Graph again = readModel(folder.file("annotated.onnx"));
  checkModel(again);
  EXPECT_EQ(again.ir_version, 11);
  EXPECT_THAT(deviceConfigurations(again), ElementsAre(kTwoRanks));
  EXPECT_THAT(pipelineStages(again, "pipeshard"), ElementsAre(0, -1, 1, 0));
}

TEST(DeviceConfiguration, IsWhatTheStandardSays) {
  const onnx::ModelProto model = annotatedChain();
  ASSERT_EQ(model.configuration_size(), 1);
  EXPECT_EQ(model.configuration(0).name(), "pipeshard");
  EXPECT_EQ(model.configuration(0).num_devices(), 2);
  EXPECT_THAT(model.configuration(0).device(), ElementsAre("rank0", "rank1"));
  ASSERT_EQ(model.graph().node(2).device_configurations_size(), 1);
  EXPECT_EQ(model.graph().node(2).device_configurations(0).configuration_id(), "pipeshard");
  EXPECT_EQ(model.graph().node(2).device_configurations(0).pipeline_stage(), 1);
  EXPECT_TRUE(model.graph().node(0).device_configurations(0).has_pipeline_stage());  // also the stage 0
}

TEST(DeviceConfiguration, ANodeWithoutStageCarriesNothing) {
  Graph graph = graphOf(chainModel());
  annotatePipelineStages(graph, kTwoRanks, {0, -1, 1, 0});
  EXPECT_EQ(protoOf(graph).graph().node(1).device_configurations_size(), 0);
}

TEST(DeviceConfiguration, ANewerIrVersionStays) {
  Graph graph = graphOf(chainModel());
  graph.ir_version = 12;
  annotatePipelineStages(graph, kTwoRanks, {0, 0, 0, 0});
  EXPECT_EQ(graph.ir_version, 12);
}

TEST(DeviceConfiguration, OneOfTheSameNameIsReplacedAndOthersStay) {
  onnx::ModelProto model = annotatedChain();
  annotationOf(model, 3).add_sharding_spec()->set_tensor_name("y");
  Graph graph = graphOf(model);
  const DeviceConfiguration other{"other", {"a", "b", "c"}};
  annotatePipelineStages(graph, other, {2, 1, 0, -1});
  const DeviceConfiguration one{"pipeshard", {"rank0"}};
  annotatePipelineStages(graph, one, {0, 0, 0, -1});
  const Graph again = graphOf(protoOf(graph));
  EXPECT_THAT(deviceConfigurations(again), ElementsAre(other, one));
  EXPECT_THAT(pipelineStages(again, "pipeshard"), ElementsAre(0, 0, 0, -1));
  EXPECT_THAT(pipelineStages(again, "other"), ElementsAre(2, 1, 0, -1));
  EXPECT_EQ(protoOf(graph).graph().node(3).device_configurations_size(), 0);
}

TEST(DeviceConfiguration, TheRestOfANodeAndOfTheModelStays) {
  onnx::ModelProto model = chainModel();
  auto* attribute = model.mutable_graph()->mutable_node(0)->add_attribute();
  attribute->set_name("note");
  attribute->set_type(onnx::AttributeProto::INT);
  attribute->set_doc_string("why");
  model.mutable_graph()->mutable_input(0)->set_doc_string("the input");
  Graph graph = graphOf(model);
  annotatePipelineStages(graph, kTwoRanks, {0, 0, 1, 1});
  const onnx::ModelProto written = protoOf(graph);
  EXPECT_EQ(written.graph().node(0).attribute(0).doc_string(), "why");
  EXPECT_EQ(written.graph().input(0).doc_string(), "the input");
}

TEST(DeviceConfiguration, ShardingSpecsAreCarried) {
  onnx::ModelProto model = annotatedChain();
  auto* spec = annotationOf(model, 0).add_sharding_spec();
  spec->set_tensor_name("a");
  spec->add_device(0);
  spec->add_device(1);
  auto* axis = spec->add_sharded_dim();
  axis->set_axis(0);
  axis->add_simple_sharding()->set_num_shards(2);
  const Graph graph = graphOf(model);
  EXPECT_THAT(pipelineStages(graph, "pipeshard"), ElementsAre(0, 0, 1, 1));
  EXPECT_EQ(protoOf(graph).graph().node(0).device_configurations(0).SerializeAsString(),
            annotationOf(model, 0).SerializeAsString());
}

TEST(DeviceConfiguration, ANodeThatStandsForAnInitializerHasNoStage) {
  onnx::ModelProto model = chainModel();
  auto* text = model.mutable_graph()->add_initializer();
  text->set_name("text");
  text->set_data_type(onnx::TensorProto::STRING);
  text->add_dims(1);
  text->add_string_data("hello");
  Graph graph = graphOf(model);
  ASSERT_EQ(graph.nodes.size(), 5u);
  annotatePipelineStages(graph, kTwoRanks, {0, 0, 0, 1, 1});
  EXPECT_THAT(pipelineStages(graph, "pipeshard"), ElementsAre(-1, 0, 0, 1, 1));
  EXPECT_THAT(pipelineStages(graphOf(protoOf(graph)), "pipeshard"), ElementsAre(-1, 0, 0, 1, 1));
}

TEST(DeviceConfiguration, DeviceNamesMayBeLeftOut) {
  onnx::ModelProto model = annotatedChain();
  model.mutable_configuration(0)->clear_device();
  Graph graph = graphOf(model);
  const DeviceConfiguration unnamed{"pipeshard", {"", ""}};
  EXPECT_THAT(deviceConfigurations(graph), ElementsAre(unnamed));
  annotatePipelineStages(graph, unnamed, {0, 0, 1, 1});
  EXPECT_EQ(protoOf(graph).configuration(0).device_size(), 0);
  EXPECT_EQ(protoOf(graph).configuration(0).num_devices(), 2);
}

TEST(DeviceConfiguration, AnAnnotationWithoutStageMeansNone) {
  onnx::ModelProto model = annotatedChain();
  annotationOf(model, 2).clear_pipeline_stage();
  EXPECT_THAT(pipelineStages(graphOf(model), "pipeshard"), ElementsAre(0, 0, -1, 1));
}

TEST(DeviceConfiguration, AskingForOneThatTheModelLacksNamesThoseItHas) {
  EXPECT_ERROR(pipelineStages(graphOf(annotatedChain()), "mine"), ErrorCode::kBadModel, "'mine'",
               "'pipeshard'");
  EXPECT_ERROR(pipelineStages(graphOf(chainModel()), "mine"), ErrorCode::kBadModel, "'mine'", "it has none");
}

TEST(DeviceConfiguration, ANodeOfAnUnknownConfigurationIsRefused) {
  onnx::ModelProto model = annotatedChain();
  annotationOf(model, 1).set_configuration_id("elsewhere");
  EXPECT_CONTRADICTION(model, "Neg", "'elsewhere'", "does not have", "'pipeshard'");
  annotationOf(model, 1).clear_configuration_id();
  EXPECT_CONTRADICTION(model, "Neg", "''", "does not have");
}

TEST(DeviceConfiguration, ANodeAnnotatedTwiceIsRefused) {
  onnx::ModelProto model = annotatedChain();
  *model.mutable_graph()->mutable_node(1)->add_device_configurations() = annotationOf(model, 1);
  EXPECT_CONTRADICTION(model, "Neg", "twice", "'pipeshard'");
}

TEST(DeviceConfiguration, ANegativeStageIsRefusedUnderAnyConfiguration) {
  onnx::ModelProto model = annotatedChain();
  annotationOf(model, 2).set_pipeline_stage(-1);
  EXPECT_CONTRADICTION(model, "Exp", "pipeline stage -1", "'pipeshard'");
  *model.add_configuration() = model.configuration(0);
  model.mutable_configuration(1)->set_name("other");
  annotationOf(model, 2).set_configuration_id("other");
  EXPECT_CONTRADICTION(model, "Exp", "pipeline stage -1", "'other'");
}

TEST(DeviceConfiguration, ANumberOfDevicesThatIsNotThatOfTheirNamesIsRefused) {
  onnx::ModelProto model = annotatedChain();
  model.mutable_configuration(0)->set_num_devices(3);
  EXPECT_CONTRADICTION(model, "'pipeshard'", "names 2 devices", "num_devices is 3");
}

TEST(DeviceConfiguration, AnImpossibleNumberOfDevicesIsRefused) {
  onnx::ModelProto model = annotatedChain();
  model.mutable_configuration(0)->clear_device();
  for (const int32_t count : {0, -4, 2147483647}) {
    model.mutable_configuration(0)->set_num_devices(count);
    const std::string found = "num_devices = " + std::to_string(count);
    EXPECT_CONTRADICTION(model, "'pipeshard'", found.c_str(), "1 to 1048576");
  }
}

TEST(DeviceConfiguration, OneWithoutNameIsRefused) {
  onnx::ModelProto model = annotatedChain();
  model.mutable_configuration(0)->clear_name();
  EXPECT_CONTRADICTION(model, "without a name");
}

TEST(DeviceConfiguration, TwoOfTheSameNameAreRefused) {
  onnx::ModelProto model = annotatedChain();
  *model.add_configuration() = model.configuration(0);
  EXPECT_CONTRADICTION(model, "two device configurations", "'pipeshard'");
}

class AnnotatedExampleTest : public ::testing::TestWithParam<const char*> {};

TEST_P(AnnotatedExampleTest, IsAValidModelWithTheSameStages) {
  Graph graph = readModel(std::string(PIPESHARD_SOURCE_DIR) + "/examples/" + GetParam());
  std::vector<int> stages;
  for (size_t n = 0; n < graph.nodes.size(); ++n) stages.push_back(4 * n / graph.nodes.size());
  annotatePipelineStages(graph, {"pipeshard", {"rank0", "rank1", "rank2", "rank3"}}, stages);
  checkModel(graph);
  const Graph again = parseModel(serializeModel(graph), graph.directory, "annotated");
  EXPECT_EQ(pipelineStages(again, "pipeshard"), stages);
  EXPECT_EQ(printGraph(again), printGraph(graph));
}

INSTANTIATE_TEST_SUITE_P(Committed, AnnotatedExampleTest, ::testing::Values("mlp.onnx", "gpt2.onnx"),
                         [](const auto& info) {
                           return std::string(info.param).substr(0, std::string(info.param).find('.'));
                         });

}  // namespace
}  // namespace pipeshard
