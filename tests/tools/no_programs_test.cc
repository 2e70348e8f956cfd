// A plan without programs is the same plan, and gets the same programs when they are needed.
#include <filesystem>
#include <fstream>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

// By path inside the directory, all files but the report and what validation leaves.
std::map<std::string, std::string> filesOf(const fs::path& directory) {
  std::map<std::string, std::string> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file())
      files[fs::relative(entry.path(), directory).string()] = readFile(entry.path());
  }
  return files;
}

class NoProgramsPlanTest : public ::testing::TestWithParam<std::vector<std::string>> {};

TEST_P(NoProgramsPlanTest, ThePlanIsTheSameAndSoAreTheProgramsThatItGetsWhenItRuns) {
  const TemporaryFolder folder;
  std::vector<std::string> line = {"plan"};
  line.insert(line.end(), GetParam().begin(), GetParam().end());
  const std::string with = folder.file("with.plan"), without = folder.file("without.plan");
  const auto plan = [&](const std::string& directory, const std::string& flag) {
    std::vector<std::string> full = line;
    full.insert(full.end(), {"-o", directory});
    if (!flag.empty()) full.push_back(flag);
    const CommandResult result = runPipeshard(full);
    ASSERT_EQ(result.exit_code, 0) << result.errors;
  };
  plan(with, "");
  plan(without, "--no-programs");
  EXPECT_FALSE(fs::exists(without + "/ranks.json"));
  EXPECT_FALSE(fs::exists(without + "/reference"));
  EXPECT_THAT(readFile(without + "/report.html"), HasSubstr("</html>"));
  for (const char* file : {"plan.json", "model.onnx"})
    EXPECT_EQ(readFile(without + "/" + file), readFile(with + "/" + file)) << file;

  const CommandResult simulated = runPipeshard({"simulate", without});
  EXPECT_EQ(simulated.exit_code, 66);
  EXPECT_THAT(simulated.errors, HasSubstr("plan without programs"));

  const CommandResult ran = runPipeshard({"run", without, "--steps", "1"});
  ASSERT_EQ(ran.exit_code, 0) << ran.errors;
  EXPECT_EQ(filesOf(without), filesOf(with));
}

INSTANTIATE_TEST_SUITE_P(Plans, NoProgramsPlanTest,
                         ::testing::Values(std::vector<std::string>{"examples/mlp.onnx", "--cluster", "1x2",
                                                                    "--microbatches", "4", "--last-batch",
                                                                    "3"},
                                           std::vector<std::string>{"examples/gpt2.onnx", "--cluster", "1x4",
                                                                    "--stages", "uniform:2", "--method",
                                                                    "auto", "--optimizer", "adam:lr=1e-3"}),
                         [](const auto& info) { return fs::path(info.param[0]).stem().string(); });

TEST(NoProgramsTest, AReportHasNoSingleRanks) {
  const TemporaryFolder folder;
  const std::string directory = folder.file("a.plan");
  ASSERT_EQ(runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "1x2", "--no-programs", "-o", directory})
                .exit_code,
            0);
  EXPECT_EQ(runPipeshard({"report", directory}).exit_code, 0);
  const CommandResult result = runPipeshard({"report", directory, "--ranks", "1"});
  EXPECT_EQ(result.exit_code, 64);
  EXPECT_THAT(result.errors, HasSubstr("a plan without programs"));
}

TEST(NoProgramsTest, ValidateMakesThem) {
  const TemporaryFolder folder;
  const std::string directory = folder.file("a.plan");
  ASSERT_EQ(runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "1x2", "--no-programs", "-o", directory})
                .exit_code,
            0);
  const CommandResult result = runPipeshard({"validate", directory});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(result.output, HasSubstr("PASS"));
}

// In the words of `plan` with programs.
TEST(NoProgramsTest, ALastBatchThatFitsNoShardingIsRefusedWhenTheyAreMade) {
  const TemporaryFolder folder;
  const std::string directory = folder.file("a.plan");
  std::vector<std::string> line = {"plan",
                                   "examples/mlp.onnx",
                                   "--cluster",
                                   "1x2",
                                   "--method",
                                   "data-parallel",
                                   "--dim",
                                   "batch=4",
                                   "--microbatches",
                                   "1",
                                   "--last-batch",
                                   "1",
                                   "-o",
                                   directory};
  const std::string words = "the last batch of 1 example fits how the stages are sharded in no number";
  const CommandResult with = runPipeshard(line);
  EXPECT_EQ(with.exit_code, 78) << with.output;
  EXPECT_THAT(with.errors, HasSubstr(words));
  line.emplace_back("--no-programs");
  ASSERT_EQ(runPipeshard(line).exit_code, 0);
  const CommandResult ran = runPipeshard({"run", directory, "--steps", "1"});
  EXPECT_EQ(ran.exit_code, 78) << ran.output;
  EXPECT_THAT(ran.errors, HasSubstr(words));
}

TEST(NoProgramsTest, AreComparedWithTheMemoryOfDevicesWhenTheyAreMade) {
  const TemporaryFolder folder;
  const std::string directory = folder.file("a.plan");
  const auto planned = [&](const std::string& memory) {
    const CommandResult result = runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "1x2",
                                               "--no-programs", "--memory", memory, "-o", directory});
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_THAT(result.output, HasSubstr("compared with what they have when the programs are made"));
  };
  planned("1000");
  for (const char* command : {"run", "validate"}) {
    const CommandResult result = runPipeshard({command, directory});
    EXPECT_EQ(result.exit_code, 83) << command << result.output;
    EXPECT_THAT(result.errors, HasSubstr("--memory 1000: device "));
    EXPECT_FALSE(fs::exists(directory + "/ranks.json"));
  }
  planned("1GB");
  EXPECT_EQ(runPipeshard({"run", directory, "--steps", "1"}).exit_code, 0);
}

// What a rank reads of the weights is known with its programs.
TEST(NoProgramsTest, HaveNoCopiesOfWeights) {
  const TemporaryFolder folder;
  const CommandResult result = runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "1x2", "--no-programs",
                                             "--copy-weights", "-o", folder.file("a.plan")});
  EXPECT_EQ(result.exit_code, 64);
  EXPECT_THAT(result.errors,
              AllOf(HasSubstr("--copy-weights"), HasSubstr("excludes"), HasSubstr("--no-programs")));
}

}  // namespace
}  // namespace pipeshard
