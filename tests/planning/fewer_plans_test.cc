// Plans for fewer devices, made of one whose stages people have cut.
#include "planning/fewer/fewer_plans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "planning/directory/plan_directory.h"
#include "planning/fewer/host_plan.h"
#include "tests/expect_error.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(FewerPlans, KeepTheCutsOfBoundariesAsFarAsThereAreStages) {
  const TemporaryFolder folder;
  const std::string directory = folder.file("job.plan");
  const CommandResult planned =
      runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "1x4", "--stage-devices", "1,1,2", "--boundary",
                    "relu", "--boundary", "relu_1", "-o", directory});
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  // Twice: the second time as the first has left them.
  for (int i = 0; i < 2; ++i) {
    const std::vector<PlanForFewer> plans = prepareFewerPlans(directory, [](const std::string&) {});
    ASSERT_THAT(plans, SizeIs(2));
    EXPECT_EQ(plans[0].devices, 3);
    EXPECT_EQ(plans[0].why, "");
    EXPECT_THAT(plans[0].uncut, IsEmpty());
    EXPECT_THAT(readPlanDirectory(plans[0].directory).boundaries, ElementsAre("relu", "relu_1"));
    const Plan two = readPlanDirectory(plans[1].directory);
    ASSERT_THAT(two.boundaries, SizeIs(1));
    ASSERT_THAT(plans[1].uncut, SizeIs(1));
    EXPECT_NE(two.boundaries[0], plans[1].uncut[0]);
    EXPECT_THAT(two.stages, SizeIs(2));
  }
}

// Of all files in it, by path.
std::map<std::string, std::string> filesIn(const std::string& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file()) files[entry.path().lexically_relative(directory)] = readFile(entry.path());
  }
  return files;
}

TEST(FewerPlans, AreTheSameOnAnotherHostThatMakesItsOwn) {
  const TemporaryFolder folder;
  const std::string directory = folder.file("job.plan");
  const auto plan = [&](const std::string& microbatches) {
    const CommandResult planned =
        runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "2x1", "--stages", "uniform:2",
                      "--microbatches", microbatches, "-o", directory});
    ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  };
  const auto nobody = [](const std::string&) {};
  plan("4");
  const auto plans = prepareFewerPlans(directory, nobody);
  ASSERT_THAT(plans, SizeIs(1));
  ASSERT_EQ(plans[0].why, "");
  completePlan(plans[0].directory, 20, nobody);  // with programs that evaluate
  const auto made = filesIn(directory + "/fewer");
  EXPECT_TRUE(made.contains("1/evaluation/ranks.json"));
  std::filesystem::remove_all(directory + "/fewer");
  completePlan(plans[0].directory + "/", 20, nobody);
  EXPECT_TRUE(filesIn(directory + "/fewer") == made);

  EXPECT_ERROR(completePlan(directory + "/fewer/7", 0, nobody), ErrorCode::kMissingInput, "fewer/7");
  // Of a plan that was edited, which is not that of the other hosts, nothing is made.
  std::filesystem::remove_all(directory + "/fewer");
  std::filesystem::rename(directory, directory + ".before");
  plan("2");
  std::filesystem::copy_file(directory + ".before/plan.json", directory + "/plan.json",
                             std::filesystem::copy_options::overwrite_existing);
  const auto edited = filesIn(directory);
  completePlan(plans[0].directory, 20, nobody);
  completePlan(directory, 20, nobody);
  EXPECT_TRUE(filesIn(directory) == edited);
}

std::vector<PlanForFewer> plansOf(const std::string& directory, std::vector<std::string> options) {
  options.insert(options.begin(), {"plan", "examples/gpt2.onnx", "-o", directory});
  const CommandResult planned = runPipeshard(options);
  EXPECT_EQ(planned.exit_code, 0) << planned.errors;
  return prepareFewerPlans(directory, [](const std::string&) {});
}

TEST(FewerPlans, KeepWhatIsBalancedAndTheLayers) {
  const TemporaryFolder folder;
  const auto plans =
      plansOf(folder.file("job.plan"), {"--cluster", "1x3", "--balance", "parameters", "--layers", "9"});
  ASSERT_THAT(plans, SizeIs(2));
  for (const PlanForFewer& made : plans) {
    ASSERT_EQ(made.why, "");
    EXPECT_EQ(made.dropped, "");
    const Plan plan = readPlanDirectory(made.directory);
    EXPECT_EQ(plan.balance, "parameters");
    EXPECT_EQ(plan.layer_count, 9);
    EXPECT_THAT(plan.layers, SizeIs(9));
  }
}

TEST(FewerPlans, JoinStagesWhoseLayersAreCounted) {
  const TemporaryFolder folder;
  const std::string directory = folder.file("job.plan");
  const auto plans = plansOf(directory, {"--cluster", "1x3", "--balance", "2,3,1"});
  ASSERT_THAT(plans, SizeIs(2));
  ASSERT_EQ(plans[0].why, "");
  const Plan whole = readPlanDirectory(directory);
  const Plan two = readPlanDirectory(plans[0].directory);
  EXPECT_TRUE(two.balance == "2,4" || two.balance == "5,1") << two.balance;
  ASSERT_EQ(two.layers.size(), whole.layers.size());
  for (const LayerId layer : whole.layers.ids()) EXPECT_EQ(two.layers[layer].last, whole.layers[layer].last);
  EXPECT_THAT(plans[0].dropped, HasSubstr("--balance 2,3,1 (stages are fewer: it has " + two.balance));
}

TEST(FewerPlans, KeepTheCutsOfStageFiles) {
  const TemporaryFolder folder;
  writeFile(folder.file("stages.json"),
            R"({"version": 1, "layers": 6, "stages": [{"layers": "0..0", "devices": [0]},
                {"layers": "1..4", "devices": [1]}, {"layers": "5..5", "devices": [2]}]})");
  const std::string directory = folder.file("job.plan");
  const auto plans = plansOf(directory, {"--cluster", "1x3", "--stages", folder.file("stages.json")});
  EXPECT_EQ(readPlanDirectory(directory).balance, "1,4,1");
  ASSERT_EQ(plans.at(0).why, "");
  const std::string kept = readPlanDirectory(plans[0].directory).balance;
  EXPECT_TRUE(kept == "5,1" || kept == "1,5") << kept;
}

// More layers than stages of one device each need: what does not fit is left out, and said.
TEST(FewerPlans, SayWhatTheyCannotKeep) {
  const TemporaryFolder folder;
  const std::string directory = folder.file("job.plan");
  const auto plans =
      plansOf(directory, {"--cluster", "1x3", "--balance", "2,3,1,1,2,1", "--schedule", "interleaved"});
  ASSERT_EQ(plans.at(0).why, "");
  EXPECT_THAT(plans[0].dropped, HasSubstr("--balance 2,3,1,1,2,1"));
}

}  // namespace
}  // namespace pipeshard
