// Folders of checkpoints that are not what `run --checkpoint` and `export` expect: of plans with other steps,
// with what is somebody else's, of projects that have been moved.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tools/command.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

class CheckpointFolders : public ::testing::Test {
 protected:
  CommandResult succeed(const std::vector<std::string>& arguments) {
    CommandResult result = runPipeshard(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
    return result;
  }

  std::string plan(const std::string& name, std::vector<std::string> options,
                   const std::string& model = "examples/mlp.onnx") {
    options.insert(options.begin(), {"plan", model, "-o", at(name)});
    succeed(options);
    return at(name);
  }

  CommandResult run(const std::string& plan, int steps, const std::string& folder) {
    return runPipeshard({"run", plan, "--steps", std::to_string(steps), "--checkpoint", at(folder)});
  }

  std::string at(const std::string& name) const { return folder_.file(name); }

  TemporaryFolder folder_;
};

// The data, the random numbers and the rates of step 4 are those behind 3 steps of the plan that goes on.
TEST_F(CheckpointFolders, APlanWhoseStepsAreOfAnotherSizeDoesNotGoOn) {
  const std::vector<std::string> two = {"--cluster", "1x2", "--stages", "uniform:2"};
  const auto planOf = [&](const std::string& name, std::vector<std::string> options) {
    options.insert(options.end(), two.begin(), two.end());
    return plan(name, options);
  };
  const std::string eight = planOf("8", {"--dim", "batch=8"});
  const std::string window = planOf("w", {"--dim", "batch=8", "--schedule", "pipedream", "--window", "4"});
  ASSERT_EQ(run(eight, 3, "saved").exit_code, 0);
  ASSERT_EQ(run(window, 3, "windows").exit_code, 0);
  const std::string has_done = "it has done 24 examples and 3 updates";
  const std::vector<std::tuple<std::string, std::string, std::string>> others = {
      {planOf("16", {"--dim", "batch=16"}), has_done, "3 of them stand for 48 examples and 3 updates"},
      {planOf("a", {"--dim", "batch=8", "--accumulate", "4"}), has_done,
       "stand for 96 examples and 3 updates"},
      {window, has_done, "stand for 96 examples and 12 updates"}};
  for (const auto& [other, done, counted] : others) {
    const CommandResult refused = run(other, 5, "saved");
    EXPECT_EQ(refused.exit_code, 78) << refused.output;
    EXPECT_THAT(refused.errors, HasSubstr(done));
    EXPECT_THAT(refused.errors, HasSubstr(counted));
    EXPECT_THAT(refused.errors, HasSubstr("`--dim batch=8`"));
  }
  const CommandResult refused =
      run(planOf("w2", {"--dim", "batch=16", "--schedule", "pipedream", "--window", "2"}), 5, "windows");
  EXPECT_EQ(refused.exit_code, 78) << refused.output;
  EXPECT_THAT(refused.errors, HasSubstr("has done 96 examples and 12 updates"));
  EXPECT_THAT(refused.errors, HasSubstr("`--schedule pipedream --window 4 --dim batch=8`"));

  // What the messages say.
  EXPECT_EQ(run(planOf("of_a_half", {"--dim", "batch=4", "--accumulate", "2"}), 5, "saved").exit_code, 0);
  EXPECT_EQ(
      run(planOf("again", {"--dim", "batch=8", "--schedule", "pipedream", "--window", "4"}), 5, "windows")
          .exit_code,
      0);
}

TEST_F(CheckpointFolders, WhatIsNotPipeshardsStaysAndIsTold) {
  const std::string directory = plan("job.plan", {"--cluster", "1x1"});
  fs::create_directories(at("saved") + "/step-000100");
  fs::create_directories(at("saved") + "/step-7");
  for (const char* name : {"step-000100", "step-7"})
    writeFile(at("saved") + "/" + name + "/model.pt", "precious");
  const CommandResult ran = run(directory, 2, "saved");
  EXPECT_EQ(ran.exit_code, 0) << ran.errors;
  EXPECT_THAT(ran.errors, HasSubstr("step-000100 is no checkpoint of pipeshard, and in the way"));
  EXPECT_THAT(ran.errors, Not(HasSubstr("step-7")));
  for (const char* name : {"step-000100", "step-7"})
    EXPECT_EQ(readFile(at("saved") + "/" + name + "/model.pt"), "precious");

  fs::remove(at("saved") + "/step-000002/COMMIT");
  const CommandResult listed = runPipeshard({"checkpoint", at("saved")});
  EXPECT_EQ(listed.exit_code, 85);
  EXPECT_THAT(listed.errors, HasSubstr("step-000002 is not whole: it has no COMMIT"));
  const CommandResult refused = run(directory, 3, "saved");
  EXPECT_EQ(refused.exit_code, 85) << refused.output;
  EXPECT_THAT(refused.errors, HasSubstr("step-000002 is not whole"));
  EXPECT_TRUE(fs::exists(at("saved") + "/step-000002/manifest.json"));
}

// Also what the message says.
TEST_F(CheckpointFolders, OneCheckpointIsNoFolderToSaveInto) {
  const std::string directory = plan("job.plan", {"--cluster", "1x1"});
  const std::string saved = at("saved");
  ASSERT_EQ(succeed({"run", directory, "--steps", "4", "--checkpoint", saved, "--every", "2"}).exit_code, 0);
  const CommandResult refused = run(directory, 5, "saved/step-000002");
  EXPECT_EQ(refused.exit_code, 78) << refused.output;
  EXPECT_THAT(refused.errors, HasSubstr("To go on from the newest: --checkpoint " + saved));
  EXPECT_THAT(refused.errors, HasSubstr("cp -r " + saved + "/step-000002 from-2/step-000002"));
  fs::create_directories(at("from-2"));
  fs::copy(saved + "/step-000002", at("from-2") + "/step-000002", fs::copy_options::recursive);
  EXPECT_THAT(run(directory, 5, "from-2").output, HasSubstr("going on after step 2"));

  ASSERT_EQ(readFile(saved + "/LATEST"), "step-000004\n");
  succeed({"checkpoint", saved, "--delete", "4"});
  EXPECT_EQ(readFile(saved + "/LATEST"), "step-000002\n");
}

TEST_F(CheckpointFolders, AMovedProjectIsExportedWithItsModelWhereItIsNow) {
  fs::create_directories(at("project"));
  for (const std::string name : {"/mlp.onnx", "/mlp.onnx.data"})
    fs::copy_file(fs::path(PIPESHARD_SOURCE_DIR) / ("examples" + name), at("project") + name);
  const std::string directory = plan("project/job.plan", {"--cluster", "1x1"}, at("project") + "/mlp.onnx");
  ASSERT_EQ(run(directory, 2, "project/saved").exit_code, 0);
  succeed({"export", at("project") + "/saved", "--safetensors", at("before.safetensors")});
  fs::rename(at("project"), at("moved"));
  const std::vector<std::string> exporting = {"export", at("moved") + "/saved", "--safetensors",
                                              at("after.safetensors")};
  const CommandResult refused = runPipeshard(exporting);
  EXPECT_EQ(refused.exit_code, 66);
  EXPECT_THAT(refused.errors,
              HasSubstr("is of the model " + at("project") + "/mlp.onnx, which does not exist"));
  EXPECT_THAT(refused.errors, HasSubstr("`export --model FILE.onnx`"));
  std::vector<std::string> told = exporting;
  told.insert(told.end(), {"--model", at("moved") + "/mlp.onnx"});
  succeed(told);
  EXPECT_EQ(readFile(at("after.safetensors")), readFile(at("before.safetensors")));
  told.back() = "examples/gpt2.onnx";
  EXPECT_EQ(runPipeshard(told).exit_code, 78);
}

}  // namespace
}  // namespace pipeshard
