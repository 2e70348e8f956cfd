// Plans are the same bytes each time; many processes plan into one folder; and what a crash has left there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tools/command.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;

TEST(PlanDirectoryCommand, EightAtOnceLeaveOneGoodPlan) {
  const TemporaryFolder folder;
  const fs::path plans = folder.path() / "plans";
  fs::create_directories(plans / "my.plan.partial-99999999" / "ranks");
  const std::string plan = (plans / "my.plan").string();
  std::vector<pid_t> started;
  for (int k = 0; k < 8; ++k) {
    const std::string number = std::to_string(k);
    started.push_back(
        startPipeshard({"plan", "examples/mlp.onnx", "--cluster", k < 4 ? "1x2" : "1x4", "--dim", "batch=64",
                        "--microbatches", std::to_string(1 << (k % 4)), "-o", plan},
                       folder.file("out" + number), folder.file("err" + number)));
  }
  for (size_t k = 0; k < started.size(); ++k) {
    const std::string number = std::to_string(k);
    const CommandResult planned = finishPipeshard(started[k], folder.file("out" + number),
                                                  folder.file("err" + number), std::chrono::seconds(60));
    EXPECT_EQ(planned.exit_code, 0) << planned.errors;
  }
  EXPECT_EQ(runPipeshard({"plan", "--check", plan}).exit_code, 0);
  const CommandResult run = runPipeshard({"run", plan, "--steps", "2"});
  EXPECT_EQ(run.exit_code, 0) << run.errors;
  EXPECT_EQ(run.errors.find("edited"), std::string::npos) << run.errors;
  EXPECT_TRUE(fs::exists(plan + "/report.html"));
  size_t entries = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(plans)) {
    EXPECT_EQ(entry.path().filename(), "my.plan");
    ++entries;
  }
  EXPECT_EQ(entries, 1U);
}

TEST(PlanDirectoryCommand, GivesTheSameBytesTwice) {
  const TemporaryFolder folder;
  for (const char* name : {"a.plan", "b.plan"}) {
    ASSERT_EQ(
        runPipeshard({"plan", "examples/gpt2.onnx", "--cluster", "1x4", "-o", folder.file(name)}).exit_code,
        0);
  }
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path() / "a.plan")) {
    if (!entry.is_regular_file()) continue;
    const auto other =
        folder.path() / "b.plan" / std::filesystem::relative(entry.path(), folder.path() / "a.plan");
    EXPECT_EQ(readFile(entry.path()), readFile(other)) << entry.path();
  }
}

}  // namespace
}  // namespace pipeshard
