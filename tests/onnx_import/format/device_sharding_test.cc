// Sharding specs as device configurations: written, read back, skipped where a mesh cannot say them, refused
// where they contradict themselves.

#include "onnx_import/format/device_sharding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/graph/graph_print.h"
#include "onnx_import/format/device_configuration.h"
#include "onnx_import/format/reader.h"
#include "onnx_import/format/writer.h"
#include "onnx_import/prepare/dimensions.h"
#include "onnx_import/prepare/inference.h"
#include "onnx_import/prepare/prepare.h"
#include "tests/onnx_import/check_model.h"
#include "tests/onnx_import/model_files.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

onnx::ModelProto matMulModel() {
  return testing::parseText(R"(<ir_version: 10, opset_import: ["" : 18]>
    net (float[12,8] x, float[8,20] w) => (float[12,20] y) <float[12,20] h> { h = MatMul(x, w)  y = Relu(h) })");
}

Graph graphOf(const onnx::ModelProto& model) { return parseModel(model.SerializeAsString(), "", "net"); }

onnx::ModelProto protoOf(const Graph& graph) {
  onnx::ModelProto model;
  EXPECT_TRUE(model.ParseFromString(serializeModel(graph)));
  return model;
}

DeviceConfiguration configurationOf(int devices) {
  DeviceConfiguration configuration{"pipeshard", {}};
  for (int d = 0; d < devices; ++d) configuration.devices.push_back("rank" + std::to_string(d));
  return configuration;
}

// Devices 4..7 of 8, in an order of their own.
StageDevices stageOn(std::vector<int> shape) { return {LogicalMesh{std::move(shape)}, {5, 4, 7, 6}}; }

std::vector<std::optional<ShardingSpec>> specs(const std::vector<const char*>& texts) {
  std::vector<std::optional<ShardingSpec>> result;
  for (const char* text : texts)
    result.push_back(text == nullptr ? std::nullopt : std::optional(parseSpec(text)));
  return result;
}

// Both nodes are in stage 1; there is a stage 0 elsewhere.
Graph annotated(const StageDevices& stage, const std::vector<NodeSharding>& nodes) {
  Graph graph = graphOf(matMulModel());
  annotatePipelineStages(graph, configurationOf(8), {1, 1});
  EXPECT_THAT(annotateShardings(graph, "pipeshard", {{LogicalMesh{{4}}, {0, 1, 2, 3}}, stage}, nodes),
              IsEmpty());
  return graph;
}

ReadShardings readBack(const Graph& graph, const StageDevices& stage) {
  return nodeShardings(graphOf(protoOf(graph)), "pipeshard", {{LogicalMesh{{4}}, {0, 1, 2, 3}}, stage});
}

// Every spec without partial sums of a tensor of `rank` axes.
std::vector<ShardingSpec> allSpecs(size_t rank, int mesh_axes) {
  std::vector<ShardingSpec> found = {replicated(rank)};
  for (int mesh_axis = 0; mesh_axis < mesh_axes; ++mesh_axis) {
    const std::vector<ShardingSpec> before = found;
    for (const ShardingSpec& spec : before) {
      for (size_t axis = 0; axis < rank; ++axis) {
        for (size_t place = 0; place <= spec.axes[axis].size(); ++place) {
          ShardingSpec longer = spec;
          longer.axes[axis].insert(longer.axes[axis].begin() + place, mesh_axis);
          found.push_back(longer);
        }
      }
    }
  }
  return found;
}

// A mesh axis of one device cuts nothing.
ShardingSpec withoutAxesOfOneDevice(ShardingSpec spec, const LogicalMesh& mesh) {
  for (std::vector<int>& axes : spec.axes)
    std::erase_if(axes, [&](int axis) { return mesh.axisSize(axis) == 1; });
  return spec;
}

TEST(DeviceSharding, EverySpecComesBackOnItsMesh) {
  for (const std::vector<int>& shape : {std::vector<int>{2, 2}, {1, 4}, {4, 1}, {4}, {2, 1, 2}}) {
    const StageDevices stage = stageOn(shape);
    const std::vector<ShardingSpec> all = allSpecs(2, stage.mesh.rank());
    EXPECT_GT(all.size(), 2u);
    for (const ShardingSpec& spec : all) {
      const Graph graph = annotated(stage, {{{spec, replicated(2)}, {spec}}, {{spec}, {replicated(2)}}});
      const ReadShardings read = readBack(graph, stage);
      const ShardingSpec expected = withoutAxesOfOneDevice(spec, stage.mesh);
      EXPECT_THAT(read.notes, IsEmpty());
      ASSERT_EQ(read.nodes.size(), 2u);
      EXPECT_EQ(read.nodes[0], (NodeSharding{{expected, replicated(2)}, {expected}}))
          << printSpec(spec) << " on " << printMesh(stage.mesh);
      EXPECT_EQ(read.nodes[1], (NodeSharding{{expected}, {replicated(2)}}));
      for (const DeviceId device : stage.mesh.devices())
        EXPECT_EQ(shardOf(expected, {12, 8}, stage.mesh, device), shardOf(spec, {12, 8}, stage.mesh, device));
    }
  }
}

TEST(DeviceSharding, UnevenShardsComeBack) {
  Graph graph = testing::graphFromText(
      R"(<ir_version: 10, opset_import: ["" : 18]> net (float[5,7] x) => (float[5,7] y) { y = Relu(x) })");
  annotatePipelineStages(graph, configurationOf(4), {0});
  const StageDevices stage{LogicalMesh{{2, 2}}, {0, 1, 2, 3}};
  const NodeSharding sharding{specs({"R,S10"}), specs({"S0,S1"})};
  EXPECT_THAT(annotateShardings(graph, "pipeshard", {stage}, {sharding}), IsEmpty());
  EXPECT_EQ(nodeShardings(graphOf(protoOf(graph)), "pipeshard", {stage}).nodes[0], sharding);
}

TEST(DeviceSharding, IsWhatTheStandardSays) {
  const StageDevices stage{LogicalMesh{{2, 2}}, {4, 5, 6, 7}};
  const Graph graph = annotated(stage, {{specs({"S0,R", "R,S10"}), specs({"S1,S0"})}, {specs({"R,R"}), {}}});
  checkModel(graph);
  EXPECT_EQ(graph.ir_version, 11);
  const onnx::ModelProto model = protoOf(graph);
  const auto& annotation = model.graph().node(0).device_configurations(0);
  EXPECT_EQ(annotation.configuration_id(), "pipeshard");
  EXPECT_EQ(annotation.pipeline_stage(), 1);
  ASSERT_EQ(annotation.sharding_spec_size(), 3);
  const auto& x = annotation.sharding_spec(0);  // two shards of rows, each on two devices
  EXPECT_EQ(x.tensor_name(), "x");
  EXPECT_THAT(x.device(), ElementsAre(-1, -2));
  ASSERT_EQ(x.index_to_device_group_map_size(), 2);
  EXPECT_EQ(x.index_to_device_group_map(0).key(), -1);
  EXPECT_THAT(x.index_to_device_group_map(0).value(), ElementsAre(4, 5));
  EXPECT_THAT(x.index_to_device_group_map(1).value(), ElementsAre(6, 7));
  ASSERT_EQ(x.sharded_dim_size(), 1);
  EXPECT_EQ(x.sharded_dim(0).axis(), 0);
  ASSERT_EQ(x.sharded_dim(0).simple_sharding_size(), 1);
  EXPECT_EQ(x.sharded_dim(0).simple_sharding(0).dim_value(), 12);
  EXPECT_EQ(x.sharded_dim(0).simple_sharding(0).num_shards(), 2);
  const auto& w = annotation.sharding_spec(1);  // mesh axis 1 is the major one
  EXPECT_THAT(w.device(), ElementsAre(4, 6, 5, 7));
  EXPECT_EQ(w.index_to_device_group_map_size(), 0);
  EXPECT_EQ(w.sharded_dim(0).axis(), 1);
  EXPECT_EQ(w.sharded_dim(0).simple_sharding(0).num_shards(), 4);
  // rows by mesh axis 1, columns by mesh axis 0; rows are the outer loop
  const auto& h = annotation.sharding_spec(2);
  EXPECT_EQ(h.tensor_name(), "h");
  EXPECT_THAT(h.device(), ElementsAre(4, 6, 5, 7));
  EXPECT_EQ(h.sharded_dim_size(), 2);
  const auto& whole = model.graph().node(1).device_configurations(0).sharding_spec(0);
  EXPECT_THAT(whole.device(), ElementsAre(-1));
  EXPECT_THAT(whole.index_to_device_group_map(0).value(), ElementsAre(4, 5, 6, 7));
  EXPECT_EQ(whole.sharded_dim_size(), 0);
}

TEST(DeviceSharding, AModelWithoutShardingsKeepsItsIrVersion) {
  EXPECT_EQ(protoOf(graphOf(matMulModel())).ir_version(), 10);
}

TEST(DeviceSharding, NamesWhatTheFormatCannotSay) {
  Graph graph = testing::graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    net (float[8,8] x, float[8,8] w) => (float[8,8] y) <float[8,8] h> { h = MatMul(x, x)  y = Add(h, w) })");
  annotatePipelineStages(graph, configurationOf(2), {0, 0});
  const StageDevices stage{LogicalMesh{{2}}, {0, 1}};
  const auto unsaid = annotateShardings(
      graph, "pipeshard", {stage},
      {{specs({"R,S0", "S0,R"}), specs({"R,R;P0"})}, {specs({"R,R;P0", nullptr}), specs({"S0,R"})}});
  EXPECT_THAT(unsaid, ElementsAre("h", "x"));
  const ReadShardings read = nodeShardings(graphOf(protoOf(graph)), "pipeshard", {stage});
  EXPECT_THAT(read.notes, IsEmpty());
  EXPECT_EQ(read.nodes[0], (NodeSharding{specs({"R,S0", "R,S0"}), specs({nullptr})}));
  EXPECT_EQ(read.nodes[1], (NodeSharding{specs({nullptr, nullptr}), specs({"S0,R"})}));
}

TEST(DeviceSharding, AValueIsAsItsMakerSaysOrAsItsReadersAgree) {
  const Graph graph = graphOf(testing::parseText(R"(<ir_version: 10, opset_import: ["" : 18]>
    net (float[8,8] x, float[8,8] w, float[8,8] v) => (float[8,8] y) { h = MatMul(x, w)  g = MatMul(h, w)  k = Add(g, v)  y = Mul(k, v) })"));
  const std::vector<NodeSharding> nodes = {{specs({nullptr, "S0,R"}), specs({"S1,R"})},
                                           {specs({"R,S0", "S0,R"}), specs({nullptr})},
                                           {specs({"R,S1", "S0,R"}), specs({nullptr})},
                                           {specs({nullptr, "R,S0"}), specs({"R,R"})}};
  EXPECT_THAT(valueShardings(graph, nodes),
              ElementsAre(Pair("g", parseSpec("R,S1")), Pair("h", parseSpec("S1,R")),
                          Pair("w", parseSpec("S0,R")), Pair("y", replicated(2))));
}

// The first node's specs, sound, as the start of the others below.
onnx::ModelProto annotatedModel() {
  const StageDevices stage{LogicalMesh{{2, 2}}, {0, 1, 2, 3}};
  Graph graph = graphOf(matMulModel());
  annotatePipelineStages(graph, configurationOf(4), {0, 0});
  annotateShardings(graph, "pipeshard", {stage}, {{specs({"S0,S1", "R,R"}), specs({"S01,R"})}, {}});
  return protoOf(graph);
}

onnx::ShardingSpecProto& specOf(onnx::ModelProto& model, int index) {
  return *model.mutable_graph()->mutable_node(0)->mutable_device_configurations(0)->mutable_sharding_spec(
      index);
}

ReadShardings readOn(const onnx::ModelProto& model, std::vector<int> mesh) {
  return nodeShardings(graphOf(model), "pipeshard", {{LogicalMesh{std::move(mesh)}, {0, 1, 2, 3}}});
}

template <typename Change>
onnx::ModelProto changed(Change change) {
  onnx::ModelProto model = annotatedModel();
  change(model);
  return model;
}

TEST(DeviceSharding, ReadsOtherWaysToSayTheSame) {
  const NodeSharding expected{specs({"S0,S1", "R,R"}), specs({"S01,R"})};
  EXPECT_EQ(readOn(annotatedModel(), {2, 2}).nodes[0], expected);
  const auto same = [&](auto change) { EXPECT_EQ(readOn(changed(change), {2, 2}).nodes[0], expected); };
  same([](auto& m) { specOf(m, 0).mutable_sharded_dim(1)->set_axis(-1); });
  same([](auto& m) { specOf(m, 0).mutable_sharded_dim(0)->mutable_simple_sharding(0)->set_dim_param("N"); });
  same([](auto& m) { specOf(m, 0).mutable_sharded_dim(0)->mutable_simple_sharding(0)->clear_dim(); });
  same([](auto& m) {  // columns are the outer loop
    specOf(m, 0).mutable_sharded_dim()->SwapElements(0, 1);
    specOf(m, 0).mutable_device()->SwapElements(1, 2);
  });
  same([](auto& m) {
    specOf(m, 1).mutable_index_to_device_group_map(0)->mutable_value()->SwapElements(0, 3);
  });
  same([](auto& m) {  // an axis of one shard
    auto* dim = specOf(m, 1).add_sharded_dim();
    dim->set_axis(0);
    dim->add_simple_sharding()->set_num_shards(1);
  });
  same([](auto& m) {
    m.mutable_graph()->mutable_node(0)->mutable_device_configurations(0)->clear_pipeline_stage();
  });
}

TEST(DeviceSharding, SkipsWithANoteWhatIsNoSpecOfTheMesh) {
  const auto skipped = [](const onnx::ModelProto& model, size_t input, const char* note,
                          std::vector<int> mesh = {2, 2}) {
    const ReadShardings read = readOn(model, std::move(mesh));
    EXPECT_THAT(read.notes, ElementsAre(HasSubstr(note)));
    EXPECT_FALSE(read.nodes[0].inputs[input].has_value());
  };
  skipped(annotatedModel(), 0, "the sharding of 'x' at", {1, 4});
  skipped(annotatedModel(), 0, "no axes of the mesh 1x4 give the shards of axis 0 these devices", {1, 4});
  skipped(changed([](auto& m) { specOf(m, 0).mutable_device()->SwapElements(0, 1); }), 0,
          "no axes of the mesh 2x2 give the shards of axis");
  skipped(changed([](auto& m) {
            specOf(m, 1).mutable_index_to_device_group_map(0)->mutable_value()->RemoveLast();
          }),
          1, "device 3 of its stage holds nothing");
  skipped(changed([](auto& m) { specOf(m, 0).set_device(1, 0); }), 0, "device 0 holds several shards");
  skipped(changed([](auto& m) {
            auto* dim = specOf(m, 0).mutable_sharded_dim(0);
            dim->mutable_simple_sharding(0)->set_dim_value(6);
          }),
          0, "axis 0 is cut by blocks: 6 of 12 elements");
  skipped(
      changed([](auto& m) { specOf(m, 0).mutable_sharded_dim(0)->add_simple_sharding()->set_num_shards(1); }),
      0, "axis 0 is fused from 2 axes");
  onnx::ModelProto small = annotatedModel();
  small.mutable_graph()
      ->mutable_input(0)
      ->mutable_type()
      ->mutable_tensor_type()
      ->mutable_shape()
      ->mutable_dim(0)
      ->set_dim_value(1);
  for (auto* list : {small.mutable_graph()->mutable_output(), small.mutable_graph()->mutable_value_info()}) {
    for (auto& info : *list)
      info.mutable_type()->mutable_tensor_type()->mutable_shape()->mutable_dim(0)->set_dim_value(1);
  }
  specOf(small, 0).mutable_sharded_dim(0)->mutable_simple_sharding(0)->clear_dim();
  specOf(small, 2).clear_sharded_dim();
  specOf(small, 2).mutable_device()->Truncate(1);
  EXPECT_THAT(readOn(small, {2, 2}).notes, ElementsAre(HasSubstr("axis 0 has 1 elements for 2 devices"),
                                                       HasSubstr("device 1 of its stage holds nothing")));
}

TEST(DeviceSharding, ReadsAModelWhoseSizesAreSymbolic) {
  onnx::ModelProto model = annotatedModel();
  model.mutable_graph()->clear_value_info();
  for (auto* info : {model.mutable_graph()->mutable_input(0), model.mutable_graph()->mutable_output(0)})
    info->mutable_type()->mutable_tensor_type()->mutable_shape()->mutable_dim(0)->set_dim_param("N");
  EXPECT_THAT(readOn(model, {2, 2}).notes, ElementsAre(HasSubstr("the sharding of 'h' at")));
  EXPECT_THAT(readOn(model, {2, 2}).notes, ElementsAre(HasSubstr("its shape is not known")));
  Graph graph = graphOf(model);
  inferShapes(graph);
  const ReadShardings read = nodeShardings(graph, "pipeshard", {{LogicalMesh{{2, 2}}, {0, 1, 2, 3}}});
  EXPECT_THAT(read.notes, IsEmpty());
  EXPECT_EQ(read.nodes[0], (NodeSharding{specs({"S0,S1", "R,R"}), specs({"S01,R"})}));
}

TEST(DeviceSharding, NodesOfOtherStagesAreSkipped) {
  onnx::ModelProto model = annotatedModel();
  model.mutable_graph()->mutable_node(0)->mutable_device_configurations(0)->set_pipeline_stage(3);
  const ReadShardings read = readOn(model, {2, 2});
  ASSERT_EQ(read.notes.size(), 3u);
  EXPECT_THAT(read.notes[0], HasSubstr("the node is in no stage that is known here"));
}

TEST(DeviceSharding, ListsTheDevicesOfEachStage) {
  EXPECT_THAT(shardedDevices(graphOf(annotatedModel()), "pipeshard"), ElementsAre(ElementsAre(0, 1, 2, 3)));
  EXPECT_THAT(shardedDevices(annotated(stageOn({2, 2}), {{specs({"S0,R", "R,R"}), {}}, {}}), "pipeshard"),
              ElementsAre(IsEmpty(), ElementsAre(4, 5, 6, 7)));
  Graph plain = graphOf(matMulModel());
  annotatePipelineStages(plain, configurationOf(2), {0, 1});
  EXPECT_THAT(shardedDevices(plain, "pipeshard"), IsEmpty());
  onnx::ModelProto model = annotatedModel();
  model.mutable_graph()->mutable_node(0)->mutable_device_configurations(0)->set_pipeline_stage(2147483647);
  EXPECT_ERROR(shardedDevices(graphOf(model), "pipeshard"), ErrorCode::kBadModel, "pipeline stage 2147483647",
               "has 4 devices");
}

TEST(DeviceSharding, RefusesContradictions) {
  const auto refuse = [](auto change, const char* message) {
    const onnx::ModelProto model = changed(change);
    EXPECT_ERROR(readOn(model, {2, 2}), ErrorCode::kBadModel, "MatMul", message);
  };
  refuse([](auto& m) { specOf(m, 0).set_tensor_name("y"); }, "'y', which it neither reads nor makes");
  refuse([](auto& m) { specOf(m, 0).clear_tensor_name(); }, "'', which it neither reads nor makes");
  refuse([](auto& m) { specOf(m, 0).set_tensor_name("w"); }, "two shardings of 'w'");
  refuse([](auto& m) { specOf(m, 0).mutable_sharded_dim(0)->set_axis(2); },
         "it cuts axis 2, but the tensor has 2 axes");
  refuse([](auto& m) { specOf(m, 0).mutable_sharded_dim(0)->set_axis(-3); }, "it cuts axis -3");
  refuse([](auto& m) { specOf(m, 0).mutable_sharded_dim(0)->clear_axis(); }, "it cuts axis (none)");
  refuse([](auto& m) { specOf(m, 0).mutable_sharded_dim(0)->set_axis(1); }, "axis 1 is listed twice");
  refuse([](auto& m) { specOf(m, 0).mutable_sharded_dim(0)->clear_simple_sharding(); },
         "axis 0 is listed without a number of shards");
  for (const int64_t count : {int64_t{0}, int64_t{-3}, int64_t{5}, INT64_MAX}) {
    refuse(
        [&](auto& m) {
          specOf(m, 0).mutable_sharded_dim(0)->mutable_simple_sharding(0)->set_num_shards(count);
        },
        ("axis 0 has " + std::to_string(count) + " shards; 1 to 4").c_str());
  }
  refuse([](auto& m) { specOf(m, 0).mutable_sharded_dim(0)->mutable_simple_sharding(0)->set_num_shards(4); },
         "it has more shards than the 4 devices");
  refuse([](auto& m) { specOf(m, 0).mutable_device()->RemoveLast(); },
         "it has 4 shards, but lists 3 devices");
  refuse([](auto& m) { specOf(m, 0).set_device(0, 4); },
         "there is no device 4; the configuration has 4, from 0 on");
  refuse([](auto& m) { specOf(m, 0).set_device(0, -1); }, "there is no device -1");
  refuse([](auto& m) { specOf(m, 1).mutable_index_to_device_group_map(0)->set_value(0, 9); },
         "there is no device 9");
}

TEST(DeviceSharding, AnAnnotatedExampleIsAValidModel) {
  Graph graph = readModel(std::string(PIPESHARD_SOURCE_DIR) + "/examples/gpt2.onnx");
  const auto dimensions = defaultDimensions(graph);
  graph = prepareModel(std::move(graph), {dimensions, 1 << 20, {}});
  annotatePipelineStages(graph, configurationOf(4), std::vector<int>(graph.nodes.size(), 0));
  const StageDevices stage{LogicalMesh{{2, 2}}, {0, 1, 2, 3}};
  std::vector<NodeSharding> nodes;
  const auto spec_of = [&](ValueId id) -> std::optional<ShardingSpec> {
    if (!id.valid() || !graph.value(id).shape) return std::nullopt;
    ShardingSpec spec = replicated(graph.shape(id).size());
    for (size_t axis = 0; axis < spec.axes.size() && axis < 2; ++axis)
      spec.axes[axis] = {static_cast<int>(axis)};
    return specFault(spec, graph.shape(id), stage.mesh).empty() ? spec : replicated(spec.axes.size());
  };
  size_t said = 0;
  for (const Node& node : graph.nodes) {
    NodeSharding& sharding = nodes.emplace_back();
    for (ValueId id : node.inputs) sharding.inputs.push_back(spec_of(id));
    for (ValueId id : node.outputs) sharding.outputs.push_back(spec_of(id));
    for (const auto& spec : sharding.outputs) said += spec && !spec->isReplicated() ? 1 : 0;
  }
  EXPECT_GT(said, 10u);
  EXPECT_THAT(annotateShardings(graph, "pipeshard", {stage}, nodes), IsEmpty());
  checkModel(graph);
  const Graph again = parseModel(serializeModel(graph), graph.directory, "annotated");
  const ReadShardings read = nodeShardings(again, "pipeshard", {stage});
  EXPECT_THAT(read.notes, IsEmpty());
  EXPECT_EQ(read.nodes, nodes);
  EXPECT_EQ(printGraph(again), printGraph(graph));
}

}  // namespace
}  // namespace pipeshard
