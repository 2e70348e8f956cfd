// Stages by hand: unequal widths, lists, stage files with a model.
#include <filesystem>
#include <fstream>

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/plan/plan_json.h"
#include "partition/stages/partition_training.h"
#include "tests/partition/training_builder.h"

namespace pipeshard {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

void expectError(const TrainingGraph& training, const PartitionOptions& options, ErrorCode code,
                 const std::string& message) {
  try {
    planFor(training, options);
    ADD_FAILURE() << "accepted; expected " << message;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    EXPECT_THAT(error.message(), HasSubstr(message));
  }
}

PartitionOptions onDevices(int devices) {
  PartitionOptions options;
  options.cluster = uniformCluster(1, devices);
  return options;
}

// "0..1 on 0,1 as 2x1 | 2..4 on 2 as 1x1": node positions, devices and mesh of each stage.
std::string stagesOf(const Plan& plan) {
  std::vector<std::string> texts;
  for (const StagePlan& stage : plan.stages) {
    texts.push_back(fmt::format("{}..{} on {} as {}", plan.layers.at(stage.first_layer).first,
                                plan.layers.at(stage.last_layer).last, fmt::join(stage.devices, ","),
                                fmt::join(stage.mesh_shape, "x")));
  }
  return fmt::format("{}", fmt::join(texts, " | "));
}

// Options with a stage file of this content, which lives as long as the object.
class FileOptions {
 public:
  FileOptions(const std::string& content, int devices) : options(onDevices(devices)) {
    static int number = 0;
    path_ =
        std::filesystem::path(::testing::TempDir()) / fmt::format("stages_{}_{}.json", getpid(), number++);
    std::ofstream(path_) << content;
    options.stages = parseStages(path_.string());
  }
  ~FileOptions() { std::filesystem::remove(path_); }
  FileOptions(const FileOptions&) = delete;
  FileOptions& operator=(const FileOptions&) = delete;

  PartitionOptions options;

 private:
  std::filesystem::path path_;
};

// Three rows to a microbatch, so that it can be cut over three devices: a chain of 8 forward nodes.
TrainingGraph threeRows() {
  TrainingGraph training = chainTraining(7, 2);
  training.graph.value(training.inputs[0].value).shape = Shape{3, 3};
  return training;
}

TEST(StageDevices, GiveStagesUnequalWidthsAndWorkInProportion) {
  PartitionOptions options = onDevices(4);
  options.stage_devices = {1, 3};
  EXPECT_EQ(stagesOf(planFor(threeRows(), options)), "0..1 on 0 as 1x1 | 2..7 on 1,2,3 as 3x1");
  options.stages = uniformStages(2);
  options.stage_devices = {3, 1};
  EXPECT_EQ(stagesOf(planFor(threeRows(), options)), "0..5 on 0,1,2 as 3x1 | 6..7 on 3 as 1x1");
  options.stages = parseStages("per-device");
  options.boundaries = {"h3"};
  const Plan plan = planFor(threeRows(), options);
  EXPECT_EQ(stagesOf(plan), "0..3 on 0,1,2 as 3x1 | 4..7 on 3 as 1x1");
  EXPECT_THAT(plan.notes, IsEmpty());
}

TEST(StageDevices, AreRefusedWhereTheyDoNotFit) {
  const TrainingGraph training = threeRows();
  PartitionOptions options = onDevices(4);
  const auto expect = [&](const std::string& stages, std::vector<int> widths, ErrorCode code,
                          const std::string& message) {
    options.stages = parseStages(stages);
    options.stage_devices = std::move(widths);
    expectError(training, options, code, message);
  };
  expect("uniform:3", {1, 3}, ErrorCode::kConfiguration,
         "--stage-devices 1,3: found 2 stages; expected 3, one number per stage");
  expect("uniform:2", {2, 3}, ErrorCode::kConfiguration,
         "--stage-devices 2,3: found 5 devices; expected at most 4, as the cluster has");
  expect("uniform:2", {0, 3}, ErrorCode::kUsage,
         "--stage-devices 0,3: found 0; expected at least one device for each stage");
  expect("per-device", {4}, ErrorCode::kConfiguration,
         "--stage-devices 4: found microbatches that are cut over 4 devices; expected at most 3, the rows of "
         "a microbatch");
  expect("uniform:2", {2000000000, 2000000000}, ErrorCode::kConfiguration,
         "found 4000000000 devices; expected at most 4");
}

TEST(BalanceOption, DecidesTheNumberOfStagesWhereStagesArePerDevice) {
  PartitionOptions options = onDevices(4);
  options.balance = parseBalance("3,4,1");
  EXPECT_EQ(stagesOf(planFor(chainTraining(7, 2), options)),
            "0..2 on 0 as 1x1 | 3..6 on 1 as 1x1 | 7..7 on 2 as 1x1");
  options.balance = parseBalance("type:^Op$|Loss");
  EXPECT_EQ(planFor(chainTraining(7, 2), options).stages.size(), 4u);
  options.balance = parseBalance("type:loss");
  const Plan one = planFor(chainTraining(3, 2), options);
  EXPECT_EQ(stagesOf(one), "0..3 on 0,1 as 2x1");
  EXPECT_THAT(one.notes, Contains(HasSubstr("1 stage(s), as --balance type:loss matches so many modules")));
  options.balance = parseBalance("flops");
  options.boundaries = {"h1"};
  expectError(chainTraining(7, 2), options, ErrorCode::kUsage, "--balance and --boundary exclude each other");
}

TEST(StageFilePlan, PutsLayersOnDevicesAsWritten) {
  const FileOptions file(R"({"version": 1, "layers": 8, "stages": [
      {"layers": "0..1", "devices": [3]},
      {"layers": [2, 3, 4, 5, 6, 7], "submesh": [1, 3], "sharding": {"method": "data-parallel"}}]})",
                         4);
  EXPECT_EQ(stagesOf(planFor(threeRows(), file.options)), "0..1 on 3 as 1x1 | 2..7 on 0,1,2 as 3x1");
}

TEST(StageFilePlan, EndsStagesAtValues) {
  const FileOptions file(
      R"({"version": 1, "stages": [{"until": "h2"}, {"devices": [1, 2], "mesh": [1, 2]}]})", 4);
  EXPECT_EQ(stagesOf(planFor(chainTraining(7, 2), file.options)), "0..2 on 0 as 1x1 | 3..7 on 1,2 as 1x2");
  const FileOptions whole(R"({"version": 1, "stages": [{"until": "h2"}, {"until": "loss"}]})", 4);
  EXPECT_EQ(stagesOf(planFor(chainTraining(7, 2), whole.options)), "0..2 on 0 as 1x1 | 3..7 on 1 as 1x1");
}

TEST(StageFilePlan, CountsLayersAsTorchgpipesBalance) {
  const FileOptions file(
      R"({"version": 1, "stages": [{"layer_count": 3}, {"layer_count": 4}, {"layer_count": 1}]})", 3);
  EXPECT_EQ(stagesOf(planFor(chainTraining(7, 2), file.options)),
            "0..2 on 0 as 1x1 | 3..6 on 1 as 1x1 | 7..7 on 2 as 1x1");
}

void expectFileError(const std::string& stages, const std::string& message, int devices = 4) {
  const FileOptions file(R"({"version": 1, "stages": [)" + stages + "]}", devices);
  expectError(chainTraining(7, 2), file.options, ErrorCode::kConfiguration,
              file.options.stages.file + message);
}

TEST(StageFilePlan, NamesWhatDoesNotFitTheModel) {
  expectFileError(R"({"until": "h_1"}, {})",
                  ".stages[0].until: found \"h_1\" is no value of the model; a boundary is a value that a "
                  "forward node makes, perhaps \"h");
  expectFileError(R"({"until": "w0"}, {})",
                  ".stages[0].until: found \"w0\" is an input, a weight or a value of the backward pass");
  expectFileError(R"({"until": "h2"}, {"until": "h1"}, {})",
                  ".stages[1].until: found \"h1\" does not come after \"h2\"");
  expectFileError(R"({"until": "loss"}, {})",
                  ".stages[0].until: found \"loss\" is made by the last forward node; the stage behind it "
                  "would be empty");
  expectFileError(R"({"until": "h1"}, {"until": "h2"})",
                  ".stages[1].until: found \"h2\"; expected no \"until\" in the last stage");
  expectFileError(R"({"layer_count": 5}, {"layer_count": 5})",
                  ".layers: found 10 layers; expected at most 8, the number of the model's forward nodes");
  expectFileError(R"({"until": "h1"}, {"submesh": [1, 3]})",
                  ".stages[1].mesh: found microbatches that are cut over 3 devices; expected at most 2, the "
                  "rows of a microbatch");
  expectFileError(R"({"until": "h1", "devices": [4]}, {})",
                  ".stages[0].devices[0]: found 4; expected an integer from 0 to 3");
}

TEST(StageFilePlan, RefusesABatchThatCannotBeCut) {
  TrainingBuilder builder(1);
  const TrainingGraph training =
      builder.finish({builder.op("h", {builder.input("x", -1), builder.parameter("w")})});
  const FileOptions cut(R"({"version": 1, "stages": [{"submesh": [1, 2]}]})", 2);
  expectError(training, cut.options, ErrorCode::kConfiguration,
              ".stages[0].mesh: found a batch that is cut over 2 devices, but no input has a batch dimension "
              "that could be cut");
  const FileOptions replicated(
      R"({"version": 1, "stages": [{"submesh": [1, 2], "sharding": {"method": "replicated"}}]})", 2);
  EXPECT_EQ(stagesOf(planFor(training, replicated.options)), "0..1 on 0,1 as 1x2");
}

TEST(StageFilePlan, ExcludesOtherOptionsForStages) {
  const TrainingGraph training = chainTraining(7, 2);
  FileOptions file(R"({"version": 1, "stages": [{"until": "h2"}, {}]})", 4);
  file.options.balance = parseBalance("flops");
  expectError(training, file.options, ErrorCode::kUsage, "--balance and a stage file exclude each other");
  file.options.balance.reset();
  file.options.stage_devices = {1, 1};
  expectError(training, file.options, ErrorCode::kUsage,
              "--stage-devices and a stage file exclude each other");
  file.options.stage_devices = {};
  file.options.boundaries = {"h1"};
  expectError(training, file.options, ErrorCode::kUsage, "--boundary and a stage file exclude each other");
}

TEST(StageFilePlan, SaysWhenThereIsNoSuchFile) {
  PartitionOptions options = onDevices(2);
  options.stages = parseStages("no/such/stages.json");
  expectError(chainTraining(3, 1), options, ErrorCode::kMissingInput,
              "there is no file of this name that can be read");
  options.stages = parseStages(::testing::TempDir());  // a folder
  expectError(chainTraining(3, 1), options, ErrorCode::kMissingInput,
              "is a folder; expected a file");
}

// The example of docs/stages.md is the first thing that people copy.
TEST(StageFilePlan, ReadsTheExampleOfTheDocumentation) {
  std::ifstream page(std::filesystem::path(PIPESHARD_SOURCE_DIR) / "docs/stages.md");
  const std::string text((std::istreambuf_iterator<char>(page)), std::istreambuf_iterator<char>());
  const size_t start = text.find("```json\n") + 8;
  ASSERT_LT(start, text.size());
  const FileOptions file(text.substr(start, text.find("```", start) - start), 4);
  EXPECT_EQ(stagesOf(planFor(threeRows(), file.options)), "0..2 on 0 as 1x1 | 3..7 on 1,2,3 as 3x1");
}

}  // namespace
}  // namespace pipeshard
