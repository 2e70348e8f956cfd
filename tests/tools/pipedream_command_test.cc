// `pipedream` as a user calls it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using ::testing::HasSubstr;

constexpr const char* kProfile = "examples/pipedream/vgg16_profile.txt";

TEST(PipeDreamCommand, PrintsThePublishedPlan) {
  const TemporaryFolder folder;
  const CommandResult result = runPipeshard(
      {"pipedream", kProfile, "--workers", "4", "--bandwidth", "12GB", "--json", folder.file("out.json")});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(result.output, HasSubstr("a minibatch every 170.08 ms: 3.954x one worker; data parallelism "
                                       "3.318x, of which this is 1.192x"));
  const auto report = nlohmann::json::parse(readFile(folder.file("out.json")));
  EXPECT_EQ(report.at("stages").at(0).at("layers"), nlohmann::json({0, 14}));
  EXPECT_EQ(report.at("stages").at(0).at("workers"), 3);
  EXPECT_EQ(report.at("stages").at(0).at("versions"), 2);
}

TEST(PipeDreamCommand, SaysWhatIsWrong) {
  EXPECT_EQ(runPipeshard({"pipedream", "no-such-file.txt"}).exit_code, 66);
  EXPECT_EQ(runPipeshard({"pipedream", "README.md"}).exit_code, 65);
  EXPECT_EQ(runPipeshard({"pipedream", kProfile, "--workers", "0"}).exit_code, 64);
  EXPECT_EQ(runPipeshard({"pipedream", kProfile, "--bandwidth", "fast"}).exit_code, 64);
}

TEST(PipeDreamCommand, PlansOnTheLevelsOfACluster) {
  const TemporaryFolder folder;
  const CommandResult given = runPipeshard({"pipedream", kProfile, "--workers", "8,2", "--bandwidth",
                                            "150GB,3.125GB", "--json", folder.file("given.json")});
  ASSERT_EQ(given.exit_code, 0) << given.errors;
  EXPECT_THAT(given.output, HasSubstr("8 workers at 150 GB a second, 2 groups of 8 at 3.125 GB a second"));
  const auto report = nlohmann::json::parse(readFile(folder.file("given.json")));
  int64_t workers = 0;
  for (const auto& stage : report.at("stages")) {
    for (const auto& inside : stage.at("stages")) workers += inside.at("workers").get<int64_t>();
  }
  EXPECT_EQ(workers, 16);
  const CommandResult cluster = runPipeshard(
      {"pipedream", kProfile, "--cluster", "p3.16xlarge:2", "--json", folder.file("cluster.json")});
  ASSERT_EQ(cluster.exit_code, 0) << cluster.errors;
  const auto levels = nlohmann::json::parse(readFile(folder.file("cluster.json"))).at("levels");
  ASSERT_EQ(levels.size(), 2u);
  EXPECT_EQ(levels.at(0).at("components"), 8);
  EXPECT_EQ(levels.at(1).at("components"), 2);
  EXPECT_EQ(runPipeshard({"pipedream", kProfile, "--workers", "8,2", "--bandwidth", "12GB"}).exit_code, 64);
  EXPECT_EQ(runPipeshard({"pipedream", kProfile, "--cluster", "2x4", "--workers", "4"}).exit_code, 64);
  // A little memory is enough for data parallelism, where no minibatch is behind the newest.
  const CommandResult little =
      runPipeshard({"pipedream", kProfile, "--workers", "4,2", "--bandwidth", "12GB,1GB", "--memory", "1MB"});
  EXPECT_THAT(little.output, HasSubstr("of which this is 1.000x")) << little.errors;
}

// Nodes of two workers each, slow links between them: 0 and 1 take turns, and so do 2 and 3; or all four, or
// ... whatever was planned is run.
TEST(PipeDreamCommand, WritesAStageFileThatRuns) {
  const TemporaryFolder folder;
  std::string profile;
  for (int layer = 0; layer < 4; ++layer) {
    profile += "node" + std::to_string(layer + 1) +
               " -- Op -- forward_compute_time=" + (layer == 0 ? "30" : "10") +
               ", backward_compute_time=20, activation_size=1000, parameter_size=" +
               (layer == 3 ? "90000000" : "1000") + "\n";
  }
  for (int layer = 1; layer < 4; ++layer)
    profile += "\tnode" + std::to_string(layer) + " -- node" + std::to_string(layer + 1) + "\n";
  writeFile(folder.file("profile.txt"), profile);
  const CommandResult planned =
      runPipeshard({"pipedream", folder.file("profile.txt"), "--workers", "2,2", "--bandwidth", "10GB,1GB",
                    "--stage-file", folder.file("stages.json")});
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  const CommandResult run = runPipeshard({"validate", "examples/mlp.onnx", "--cluster", "2x2", "--stages",
                                          folder.file("stages.json"), "--schedule", "pipedream", "--dim",
                                          "batch=4", "-o", folder.file("p.plan")});
  EXPECT_EQ(run.exit_code, 0) << run.output << run.errors;
}

}  // namespace
}  // namespace pipeshard
