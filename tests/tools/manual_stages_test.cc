// Stages by hand, end to end: every manual option gives a training step that equals one device.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using ::testing::HasSubstr;

struct ManualStages {
  std::string name;
  std::string model;
  std::string cluster;
  std::vector<std::string> options;       // STAGES stands for the stage file
  std::string stage_file = {};            // its content
  std::vector<std::vector<int>> devices;  // of each stage, expected
  int batch = 8;
  int microbatches = 4;
};

void PrintTo(const ManualStages& stages, std::ostream* stream) { *stream << stages.name; }

class ManualStagesTest : public ::testing::TestWithParam<ManualStages> {};

TEST_P(ManualStagesTest, EqualOneDevice) {
  const ManualStages& manual = GetParam();
  const TemporaryFolder folder;
  writeFile(folder.file("stages.json"), manual.stage_file);
  std::vector<std::string> line = {"validate",
                                   "examples/" + manual.model + ".onnx",
                                   "--cluster",
                                   manual.cluster,
                                   "--dim",
                                   "batch=" + std::to_string(manual.batch),
                                   "--microbatches",
                                   std::to_string(manual.microbatches),
                                   "--optimizer",
                                   "sgd:lr=0.1",
                                   "--steps",
                                   "2",
                                   "-o",
                                   folder.file("stages.plan")};
  for (const std::string& option : manual.options)
    line.push_back(option == "STAGES" ? folder.file("stages.json") : option);
  const CommandResult result = runPipeshard(line);
  ASSERT_EQ(result.exit_code, 0) << result.output << result.errors;
  EXPECT_THAT(result.output, HasSubstr("PASS"));
  const auto plan = nlohmann::json::parse(readFile(folder.file("stages.plan/plan.json")));
  std::vector<std::vector<int>> devices;
  for (const auto& stage : plan.at("stages")) devices.push_back(stage.at("devices").get<std::vector<int>>());
  EXPECT_EQ(devices, manual.devices) << result.output;
}

const std::vector<std::vector<int>> kOneEach = {{0}, {1}, {2}, {3}};

INSTANTIATE_TEST_SUITE_P(
    OneDevicePerStage, ManualStagesTest,
    ::testing::Values(ManualStages{.name = "parameters",
                                   .model = "gpt2",
                                   .cluster = "1x4",
                                   .options = {"--balance", "parameters"},
                                   .devices = kOneEach},
                      ManualStages{.name = "time",
                                   .model = "gpt2",
                                   .cluster = "1x4",
                                   .options = {"--balance", "time"},
                                   .devices = kOneEach},
                      ManualStages{.name = "size",
                                   .model = "mlp",
                                   .cluster = "1x4",
                                   .options = {"--balance", "size"},
                                   .devices = kOneEach},
                      ManualStages{.name = "blocks_by_class",
                                   .model = "gpt2",
                                   .cluster = "1x4",
                                   .options = {"--balance", "type:block"},
                                   .devices = kOneEach},
                      ManualStages{.name = "blocks_by_path",
                                   .model = "gpt2",
                                   .cluster = "1x4",
                                   .options = {"--balance", "type:h\\.\\d+$"},
                                   .devices = kOneEach},
                      ManualStages{.name = "blocks_of_torchscript",
                                   .model = "gpt2_torchscript",
                                   .cluster = "1x4",
                                   .options = {"--balance", "type:h\\.\\d+$"},
                                   .devices = kOneEach},
                      ManualStages{.name = "list",
                                   .model = "gpt2",
                                   .cluster = "1x4",
                                   .options = {"--balance", "3,5,5,1"},
                                   .devices = kOneEach},
                      ManualStages{.name = "layers",
                                   .model = "gpt2",
                                   .cluster = "1x3",
                                   .options = {"--stages", "STAGES"},
                                   .stage_file = R"({"version": 1, "layers": 9, "stages": [
                         {"layers": [0, 1], "devices": [2]}, {"layers": "2..6", "devices": [0]}, {"layers": "7..8", "devices": [1]}]})",
                                   .devices = {{2}, {0}, {1}}},
                      ManualStages{.name = "values",
                                   .model = "mlp",
                                   .cluster = "1x2",
                                   .options = {"--stages", "STAGES"},
                                   .stage_file = R"({"version": 1, "stages": [{"until": "relu_1"}, {}]})",
                                   .devices = {{0}, {1}}}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    SeveralDevicesPerStage, ManualStagesTest,
    ::testing::Values(ManualStages{.name = "uniform",
                                   .model = "gpt2",
                                   .cluster = "1x4",
                                   .options = {"--stages", "uniform:2"},
                                   .devices = {{0, 1}, {2, 3}},
                                   .batch = 16},
                      ManualStages{.name = "one_and_three",
                                   .model = "gpt2",
                                   .cluster = "1x4",
                                   .options = {"--stage-devices", "1,3"},
                                   .devices = {{0}, {1, 2, 3}},
                                   .batch = 24},
                      ManualStages{.name = "three_and_one",
                                   .model = "mlp",
                                   .cluster = "1x4",
                                   .options = {"--stage-devices", "3,1", "--schedule", "gpipe"},
                                   .devices = {{0, 1, 2}, {3}},
                                   .batch = 26},  // microbatches of 7 and 6 rows
                      ManualStages{.name = "file",
                                   .model = "gpt2",
                                   .cluster = "1x4",
                                   .options = {"--stages", "STAGES"},
                                   .stage_file = R"({"version": 1, "layers": 8, "stages": [
                         {"layers": "0..2", "devices": [3]},
                         {"layers": "3..7", "submesh": [1, 3], "mesh": [3, 1], "sharding": {"method": "data-parallel"}}]})",
                                   .devices = {{3}, {0, 1, 2}},
                                   .batch = 24},
                      ManualStages{.name = "meshes",
                                   .model = "mlp",
                                   .cluster = "1x6",
                                   .options = {"--stages", "STAGES"},
                                   .stage_file = R"({"version": 1, "stages": [
                         {"layer_count": 4, "submesh": [1, 4], "mesh": [2, 2]},
                         {"layer_count": 4, "submesh": [1, 2], "sharding": {"method": "replicated"}}]})",
                                   .devices = {{0, 1, 2, 3}, {4, 5}},
                                   .batch = 16}),
    [](const auto& info) { return info.param.name; });

TEST(ManualStagesErrors, NameFileFieldAndWhatIsAllowed) {
  const TemporaryFolder folder;
  const std::string path = folder.file("stages.json");
  writeFile(path, R"({"version": 1, "stages": [{"layer_count": 2, "devices": [4]}]})");
  const CommandResult field =
      runPipeshard({"validate", "examples/mlp.onnx", "--cluster", "1x4", "--stages", path});
  EXPECT_EQ(field.exit_code, 78);
  EXPECT_THAT(field.errors,
              HasSubstr(path + ".stages[0].devices[0]: found 4; expected an integer from 0 to 3"));
  writeFile(path, "{\n  \"version\": 1,\n  oops\n}");
  const CommandResult syntax =
      runPipeshard({"validate", "examples/mlp.onnx", "--cluster", "1x4", "--stages", path});
  EXPECT_EQ(syntax.exit_code, 78);
  EXPECT_THAT(syntax.errors,
              HasSubstr(path + ": this is not JSON: [json.exception.parse_error.101] parse error at line 3"));
}

TEST(ManualStagesErrors, OfOptionsSayWhatIsAllowed) {
  const auto expect = [](const std::vector<std::string>& options, int exit_code, const std::string& message) {
    std::vector<std::string> line = {"plan", "examples/gpt2.onnx", "--cluster", "1x4",
                                     "-o",   "/nonexistent/plan"};
    line.insert(line.end(), options.begin(), options.end());
    const CommandResult result = runPipeshard(line);
    EXPECT_EQ(result.exit_code, exit_code) << result.errors;
    EXPECT_THAT(result.errors, HasSubstr(message));
  };
  expect({"--balance", "type:decoder"}, 78,
         "there are modules Conv1D (16), Embedding (2), GPT2Attention (4), GPT2Block (4)");
  expect({"--balance", "type:h.[0"}, 64, "no regular expression");
  expect({"--balance", "3,5,5", "--layers", "12"}, 78,
         "--balance 3,5,5 holds 13 layers, but --layers says 12; make the numbers add up to 12");
  expect({"--stage-devices", "1,4"}, 78, "--stage-devices 1,4: found 5 devices; expected at most 4");
  expect({"--stage-devices", "one"}, 64, "one");
  expect({"--stages", "no/such.json"}, 66, "there is no file of this name that can be read");
}

TEST(ManualStagesHelp, ShowsAStageFile) {
  for (const char* command : {"plan", "validate"}) {
    const CommandResult help = runPipeshard({command, "--help"});
    EXPECT_EQ(help.exit_code, 0);
    for (const char* word :
         {"--stage-devices", "--balance", "\"submesh\": [1, 3]", "\"mesh\": [3, 1]", "docs/stages.md"}) {
      EXPECT_THAT(help.output, HasSubstr(word)) << command;
    }
  }
}

}  // namespace
}  // namespace pipeshard
