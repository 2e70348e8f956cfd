// Stage files: what they mean, and for each field a file that is wrong in it.
#include "ir/plan/stage_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "tests/expect_error.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Cluster kCluster = uniformCluster(2, 4);

StageFile parse(const std::string& text, const Cluster& cluster = kCluster, int layers = 0) {
  return parseStageFile(text, "s.json", cluster, layers);
}

// A file of these stages, with `top` before them.
std::string file(const std::string& stages, const std::string& top = "\"version\": 1, ") {
  return "{" + top + "\"stages\": [" + stages + "]}";
}

TEST(StageFile, SaysLayersDevicesAndMeshes) {
  const StageFile read = parse(R"({
    "version": 1,  // comments are allowed
    "layers": 8,
    "stages": [
      {"layers": [0, 1, 2], "devices": [3]},
      {"layers": "3", "submesh": [1, 3], "mesh": [3, 1], "sharding": {"method": "data-parallel"}},
      {"layers": "4..7", "submesh": [1, 4], "mesh": [2, 2]}]})");
  EXPECT_EQ(read.layers, 8);
  ASSERT_EQ(read.stages.size(), 3u);
  EXPECT_EQ(read.stages[0].first_layer, LayerId(0));
  EXPECT_EQ(read.stages[0].last_layer, LayerId(2));
  EXPECT_EQ(read.stages[1].first_layer, LayerId(3));
  EXPECT_EQ(read.stages[1].last_layer, LayerId(3));
  EXPECT_EQ(read.stages[2].last_layer, LayerId(7));
  EXPECT_EQ(read.stages[0].devices, idsAt<RankId>({3}));
  EXPECT_EQ(read.stages[1].devices, idsAt<RankId>({0, 1, 2}));
  EXPECT_EQ(read.stages[2].devices, idsAt<RankId>({4, 5, 6, 7}));
  EXPECT_THAT(read.stages[1].mesh_shape, ElementsAre(3, 1));
  EXPECT_THAT(read.stages[2].mesh_shape, ElementsAre(2, 2));
}

// As with the methods that shard operators, which take a mesh of one axis.
TEST(StageFile, TakesAMeshOfOneAxis) {
  const auto shape = [](const std::string& sharding) {
    return parse(file(R"({"layers": [0], "submesh": [1, 2], "mesh": [2])" + sharding + "}"))
        .stages.at(0)
        .mesh_shape;
  };
  EXPECT_THAT(shape(R"(, "sharding": {"method": "data-parallel"})"), ElementsAre(2, 1));
  EXPECT_THAT(shape(""), ElementsAre(2, 1));
  EXPECT_THAT(shape(R"(, "sharding": {"method": "replicated"})"), ElementsAre(1, 2));
}

TEST(StageFile, CountsLayers) {
  const StageFile read = parse(file(R"({"layer_count": 3}, {"layer_count": 5})"));
  EXPECT_EQ(read.layers, 8);
  EXPECT_EQ(read.stages[1].first_layer, LayerId(3));
  EXPECT_EQ(read.stages[1].last_layer, LayerId(7));
  EXPECT_EQ(read.stages[1].devices, idsAt<RankId>({1}));  // by default the next device
  EXPECT_THAT(read.stages[1].mesh_shape, ElementsAre(1, 1));
}

TEST(StageFile, TakesTheNumberOfLayersFromTheCommandLine) {
  EXPECT_EQ(parse(file(R"({"layers": "0..3"}, {"layers": "4..5"})"), kCluster, 6).layers, 6);
}

TEST(StageFile, EndsStagesAtValues) {
  const StageFile read =
      parse(file(R"({"until": "h0", "submesh": [2, 4], "sharding": {"method": "replicated"}})"));
  EXPECT_EQ(read.layers, 0);
  EXPECT_EQ(read.stages[0].until, "h0");
  EXPECT_EQ(read.stages[0].devices.size(), 8u);
  EXPECT_THAT(read.stages[0].mesh_shape, ElementsAre(1, 8));
  EXPECT_EQ(parse(file(R"({"until": "h0"}, {})")).stages[1].until, "");
  EXPECT_EQ(parse(file(R"({"submesh": [1, 4]})")).stages[0].until, "");  // one stage of everything
}

TEST(StageFile, PlacesSubmeshesOnUnequalNodes) {
  Cluster cluster = uniformCluster(4, 2);
  cluster.nodes[0].devices = 3;
  cluster.nodes[3].devices = 1;  // 0..2, 3..4, 5..6, 7
  const StageFile read = parse(
      file(
          R"({"layer_count": 1, "submesh": [1, 3]}, {"layer_count": 1, "submesh": [2, 2]}, {"layer_count": 1})"),
      cluster);
  EXPECT_EQ(read.stages[0].devices, idsAt<RankId>({0, 1, 2}));
  EXPECT_EQ(read.stages[1].devices, idsAt<RankId>({3, 4, 5, 6}));
  EXPECT_EQ(read.stages[2].devices, idsAt<RankId>({7}));
  EXPECT_ERROR(
      parse(file(R"({"layer_count": 1, "submesh": [1, 2]}, {"layer_count": 1, "submesh": [1, 2]})"), cluster),
      ErrorCode::kConfiguration, "the first device that is free is 2 of 0 to 7, with 3, 2, 2, 1 to a node");
  EXPECT_ERROR(parse(file(R"({"layer_count": 1, "submesh": [2, 3]})"), cluster), ErrorCode::kConfiguration,
               "[1, 1 to 3] inside a node, or [2 to 4, D] of whole nodes with D devices each, next to each "
               "other; they have 3, 2, 2, 1");
  EXPECT_ERROR(parse(file(R"({"layer_count": 1, "submesh": [2, 2]})"), cluster), ErrorCode::kConfiguration,
               "a submesh that fits");
}

struct Malformed {
  std::string name;
  std::string text;
  std::string message;
  int layers = 0;
};

void PrintTo(const Malformed& malformed, std::ostream* stream) { *stream << malformed.name; }

class MalformedStageFile : public ::testing::TestWithParam<Malformed> {};

TEST_P(MalformedStageFile, IsRefusedByField) {
  try {
    parse(GetParam().text, kCluster, GetParam().layers);
    ADD_FAILURE() << "accepted; expected " << GetParam().message;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), GetParam().name.starts_with("version_of") ? ErrorCode::kVersionMismatch
                                                                      : ErrorCode::kConfiguration);
    EXPECT_THAT(error.message(), HasSubstr(GetParam().message));
  }
}

const std::vector<Malformed> kMalformed = {
    {"syntax", "{\"version\": 1,\n\"stages\": [\n{\"layers\": }]}",
     "s.json: this is not JSON: [json.exception.parse_error.101] parse error at line 3, column 12"},
    {"repeated_key", R"({"version": 1, "version": 1, "stages": []})",
     "s.json: key \"version\" appears twice"},
    {"no_object", "[]", "s.json: key \"version\" is missing"},
    {"version_missing", file("{}", ""), "s.json: key \"version\" is missing"},
    {"version_type", file("{}", "\"version\": \"1\", "), "s.json.version: found \"1\"; expected an integer"},
    {"version_of_the_future", file("{}", "\"version\": 2, "),
     "s.json: version 2 was found, this pipeshard reads version 1; docs/stages.md describes"},
    {"top_unknown", file("{}", "\"version\": 1, \"stage\": 1, "),
     "s.json: found an unknown key \"stage\"; the keys here are version, stages, layers"},
    {"layers_type", file("{}", "\"version\": 1, \"layers\": 2.5, "),
     "s.json.layers: found 2.5; expected an integer from 1"},
    {"layers_zero", file("{}", "\"version\": 1, \"layers\": 0, "),
     "s.json.layers: found 0; expected an integer from 1"},
    {"layers_twice", file("{}", "\"version\": 1, \"layers\": 4, "),
     "s.json.layers: found 4; expected 6, which --layers says", 6},
    {"layers_with_until", file(R"({"until": "a"}, {})", "\"version\": 1, \"layers\": 4, "),
     "s.json: found 4 layers and stages without them; expected \"layers\""},
    {"stages_missing", R"({"version": 1})",
     "s.json: key \"stages\" is missing; the keys here are version, stages, layers"},
    {"stages_type", R"({"version": 1, "stages": {}})", "s.json.stages: found {}; expected an array"},
    {"stages_empty", file(""), "s.json.stages: found []; expected at least one stage"},
    {"stage_type", file("3"), "s.json.stages[0]: found 3; expected an object"},
    {"stage_unknown", file(R"({"layer": [0]})"),
     "s.json.stages[0]: found an unknown key \"layer\"; the keys here are layers, layer_count, until, "
     "devices, submesh, mesh, sharding"},
    {"stage_without_operators", file(R"({}, {"layers": [0]})"),
     "s.json.stages[0]: found {}; expected one of the keys \"layers\", \"layer_count\", \"until\""},
    {"later_stage_without_operators", file(R"({"layers": [0]}, {})"),
     "s.json.stages[1]: found {}; expected the key \"layers\""},
    {"two_ways", file(R"({"layers": [0], "until": "a"})"),
     "s.json.stages[0].until: found \"a\"; expected no such key beside \"layers\""},
    {"another_way", file(R"({"layers": [0]}, {"layer_count": 2})"),
     "s.json.stages[1].layer_count: found 2; expected \"layers\", as stages[0] has it"},
    {"stage_layers_type", file(R"({"layers": 3})"),
     "s.json.stages[0].layers: found 3; expected a list of layers such as [0,1,2], or a range"},
    {"stage_layers_empty", file(R"({"layers": []})"),
     "s.json.stages[0].layers: found []; expected a list of layers"},
    {"stage_layers_element_type", file(R"({"layers": [0, "1"]})"),
     "s.json.stages[0].layers[1]: found \"1\"; expected an integer"},
    {"stage_layers_range", file(R"({"layers": "0-3"})"),
     "s.json.stages[0].layers: found \"0-3\"; expected a range \"FIRST..LAST\" of layers"},
    {"stage_layers_backwards", file(R"({"layers": "3..0"})"),
     "s.json.stages[0].layers: found \"3..0\"; expected a range"},
    {"stage_layers_too_far", file(R"({"layers": "0..8"})", "\"version\": 1, \"layers\": 8, "),
     "s.json.stages[0].layers: found \"0..8\"; expected a range \"FIRST..LAST\" of layers from 0 to 7"},
    {"stage_layers_list_too_far", file(R"({"layers": [8]})", "\"version\": 1, \"layers\": 8, "),
     "s.json.stages[0].layers[0]: found 8; expected an integer from 0 to 7"},
    {"stage_layers_hole", file(R"({"layers": [0, 2]})"),
     "s.json.stages[0].layers[1]: found 2; expected 1: a list names all layers of the stage"},
    {"overlap", file(R"({"layers": [0, 1]}, {"layers": [1, 2]})"),
     "s.json.stages[1].layers: found [1,2]; expected layers from 2 on: layer 1 belongs to a stage before "
     "stages[1] already"},
    {"gap", file(R"({"layers": "0..1"}, {"layers": "3..4"})"),
     "s.json.stages[1].layers: found \"3..4\"; expected layers from 2 on: layer 2 would belong to no stage"},
    {"gap_at_the_end", file(R"({"layers": "0..1"})", "\"version\": 1, \"layers\": 8, "),
     "s.json.stages: found stages that hold layers 0..1; expected all of 0..7, as there are 8 layers"},
    {"too_many_stages", file(R"({"layers": "0..1"}, {"layers": [1]})", "\"version\": 1, \"layers\": 2, "),
     "s.json.stages[1]: found {\"layers\":[1]}; expected no further stage: all 2 layers belong to stages "
     "already"},
    {"layer_count_type", file(R"({"layer_count": "3"})"),
     "s.json.stages[0].layer_count: found \"3\"; expected an integer from 1"},
    {"layer_count_zero", file(R"({"layer_count": 0})"),
     "s.json.stages[0].layer_count: found 0; expected an integer from 1"},
    {"layer_count_too_many",
     file(R"({"layer_count": 3}, {"layer_count": 3})", "\"version\": 1, \"layers\": 5, "),
     "s.json.stages[1].layer_count: found 3; expected an integer from 1 to 2"},
    {"layer_count_too_few", file(R"({"layer_count": 3})", "\"version\": 1, \"layers\": 5, "),
     "s.json.stages: found stages that hold layers 0..2; expected all of 0..4"},
    {"until_type", file(R"({"until": 3})"), "s.json.stages[0].until: found 3; expected a string"},
    {"until_empty", file(R"({"until": ""})"),
     "s.json.stages[0].until: found \"\"; expected the name of a value"},
    {"until_missing", file(R"({"until": "a"}, {}, {"until": "b"})"),
     "s.json.stages[1]: found {}; expected the key \"until\""},
    {"devices_type", file(R"({"layers": [0], "devices": 3})"),
     "s.json.stages[0].devices: found 3; expected an array"},
    {"devices_empty", file(R"({"layers": [0], "devices": []})"),
     "s.json.stages[0].devices: found []; expected at least one device"},
    {"devices_element_type", file(R"({"layers": [0], "devices": [0, 1.5]})"),
     "s.json.stages[0].devices[1]: found 1.5; expected an integer from 0 to 7"},
    {"devices_outside", file(R"({"layers": [0], "devices": [0, 8]})"),
     "s.json.stages[0].devices[1]: found 8; expected an integer from 0 to 7"},
    {"devices_negative", file(R"({"layers": [0], "devices": [-1]})"),
     "s.json.stages[0].devices[0]: found -1; expected an integer from 0 to 7"},
    {"devices_twice", file(R"({"layers": [0], "devices": [0, 1]}, {"layers": [1], "devices": [2, 1]})"),
     "s.json.stages[1].devices[1]: found 1; expected a device that is not in use, or all devices of "
     "stages[0], which has it"},
    {"devices_twice_in_a_stage", file(R"({"layers": [0], "devices": [0, 0]})"),
     "s.json.stages[0].devices[1]: found 0; expected a device that the stage does not have already"},
    {"devices_with_gaps", file(R"({"layers": [0], "devices": [0]}, {"layers": [1], "devices": [2]})"),
     "s.json.stages: found devices 0, 2 in use; expected 0 to 1 without gaps"},
    {"devices_and_submesh", file(R"({"layers": [0], "devices": [0], "submesh": [1, 1]})"),
     "s.json.stages[0].submesh: found [1,1]; expected no such key beside \"devices\""},
    {"submesh_type", file(R"({"layers": [0], "submesh": "1x2"})"),
     "s.json.stages[0].submesh: found \"1x2\"; expected an array"},
    {"submesh_size", file(R"({"layers": [0], "submesh": [4]})"),
     "s.json.stages[0].submesh: found [4]; expected [nodes, devices per node]: [1, 1 to 4] inside a node, or "
     "[2 to 2, 4] of whole nodes"},
    {"submesh_zero", file(R"({"layers": [0], "submesh": [1, 0]})"),
     "s.json.stages[0].submesh[1]: found 0; expected an integer from 1 to 8"},
    {"submesh_of_parts_of_nodes", file(R"({"layers": [0], "submesh": [2, 3]})"),
     "s.json.stages[0].submesh: found [2,3]; expected [nodes, devices per node]"},
    {"submesh_beyond_a_node", file(R"({"layers": [0], "submesh": [1, 5]})"),
     "s.json.stages[0].submesh: found [1,5]; expected [nodes, devices per node]"},
    {"submesh_across_nodes",
     file(R"({"layers": [0], "submesh": [1, 3]}, {"layers": [1], "submesh": [1, 2]})"),
     "s.json.stages[1].submesh: found [1,2]; expected a submesh that fits behind the devices of earlier "
     "stages: the first device that is free is 3 of 0 to 7, with 4 to a node"},
    {"submesh_too_late", file(R"({"layers": [0], "submesh": [2, 4]}, {"layers": [1], "submesh": [1, 1]})"),
     "s.json.stages[1].submesh: found [1,1]; expected a submesh that fits"},
    {"no_device_left", file(R"({"layers": [0], "submesh": [2, 4]}, {"layers": [1]})"),
     "s.json.stages[1]: found {\"layers\":[1]}; expected a submesh that fits"},
    {"submesh_in_the_way", file(R"({"layers": [0], "devices": [1]}, {"layers": [1], "submesh": [1, 2]})"),
     "s.json.stages[1].submesh: found [1,2]; expected devices 0 to 1 to be free; stages[0] has 1"},
    {"mesh_type", file(R"({"layers": [0], "mesh": 1})"), "s.json.stages[0].mesh: found 1; expected an array"},
    {"mesh_rank", file(R"({"layers": [0], "mesh": [1, 1, 1]})"),
     "s.json.stages[0].mesh: found [1,1,1]; expected [data, model] with the product 1"},
    {"mesh_zero", file(R"({"layers": [0], "mesh": [0, 1]})"),
     "s.json.stages[0].mesh[0]: found 0; expected an integer from 1"},
    {"mesh_product", file(R"({"layers": [0], "devices": [0, 1, 2], "mesh": [2, 2]})"),
     "s.json.stages[0].mesh: found [2,2]; expected [data, model] with the product 3, the number of the "
     "stage's devices"},
    {"mesh_of_replicated",
     file(R"({"layers": [0], "submesh": [1, 2], "mesh": [2, 1], "sharding": {"method": "replicated"}})"),
     "s.json.stages[0].mesh: found [2,1]; expected [1,2], as \"replicated\" cuts the batch nowhere"},
    {"mesh_of_data_parallel",
     file(R"({"layers": [0], "submesh": [1, 2], "mesh": [1, 2], "sharding": {"method": "data-parallel"}})"),
     "s.json.stages[0].mesh: found [1,2]; expected a data axis of 2 or more"},
    {"logical_mesh_product",
     file(R"({"layers": [0], "devices": [0, 1], "mesh": [2, 2], "sharding": {"method": "auto"}})"),
     "s.json.stages[0].mesh: found [2,2]; expected axes with the product 2, the number of the stage's "
     "devices"},
    // The product is 2 * 2^64 + 3.
    {"logical_mesh_overflow",
     file(R"({"layers": [0], "devices": [0, 1, 2], "mesh": [5, 7, 11239, 88801, 1056175639], )"
          R"("sharding": {"method": "auto"}})"),
     "s.json.stages[0].mesh: found [5,7,11239,88801,1056175639]; expected axes with the product 3"},
    {"sharding_type", file(R"({"layers": [0], "sharding": "replicated"})"),
     "s.json.stages[0].sharding: found \"replicated\"; expected an object"},
    {"sharding_empty", file(R"({"layers": [0], "sharding": {}})"),
     "s.json.stages[0].sharding: key \"method\" is missing; the keys here are method"},
    {"sharding_unknown", file(R"({"layers": [0], "sharding": {"method": "replicated", "zero": 3}})"),
     "s.json.stages[0].sharding: found an unknown key \"zero\"; the keys here are method"},
    {"sharding_method", file(R"({"layers": [0], "sharding": {"method": "megatron"}})"),
     "s.json.stages[0].sharding.method: found \"megatron\"; expected one of \"data-parallel\", "
     "\"replicated\", \"auto\", \"zero2\", \"zero3\", \"tensor-parallel\", \"manual\", \"megatron:DP,TP\", "
     "\"megatron-zero2:DP,TP\""},
    {"sharding_method_grid", file(R"({"layers": [0], "sharding": {"method": "megatron:2"}})"),
     "s.json.stages[0].sharding.method: method \"megatron:2\": expected megatron:DP,TP with two numbers"},
    {"sharding_method_type", file(R"({"layers": [0], "sharding": {"method": 1}})"),
     "s.json.stages[0].sharding.method: found 1; expected a string"},
};

INSTANTIATE_TEST_SUITE_P(Fields, MalformedStageFile, ::testing::ValuesIn(kMalformed),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace pipeshard
