// Plans are the same bytes each time; many processes plan into one folder, also while others use it; and what
// a crash has left there.
#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/identity/plan_mark.h"
#include "tests/expect_error.h"
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

// A plan that is run, and another one of the same model that is put into its place meanwhile.
class ReplacedPlan : public ::testing::Test {
 protected:
  void SetUp() override {
    make(plan_, "adamw:lr=1e-2");
    make(other_, "sgd:lr=5e-2");
  }
  static void make(const std::string& directory, const std::string& optimizer) {
    const CommandResult planned = runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "1x2", "--stages",
                                                "uniform:2", "--optimizer", optimizer, "-o", directory});
    ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  }
  void replace() const {
    fs::rename(plan_, folder_.path() / "was.plan");
    fs::rename(other_, plan_);
  }
  std::string newest() const { return newestCheckpoint(saved_); }

  TemporaryFolder folder_;
  const std::string plan_ = folder_.file("my.plan"), other_ = folder_.file("other.plan"),
                    saved_ = folder_.file("saved");
};

TEST_F(ReplacedPlan, DoesNotChangeWhatARunSaves) {
  ASSERT_EQ(runPipeshard({"run", plan_, "--steps", "1", "--checkpoint", folder_.file("quiet")}).exit_code, 0);
  const CommandProcess run(
      folder_.path(), "run",
      {"run", plan_, "--steps", "3000", "--checkpoint", saved_, "--trace", folder_.file("trace.json")});
  ASSERT_TRUE(run.comes("step ")) << run.errors();
  replace();
  ASSERT_EQ(newest(), "");
  const CommandResult ended = run.finish(2 * kPatience);
  ASSERT_EQ(ended.exit_code, 0) << ended.errors;
  EXPECT_THAT(ended.errors, ::testing::Not(::testing::HasSubstr("there is no trace")));
  const Checkpoint saved = readCheckpoint(newest());
  const Checkpoint quiet = readCheckpoint(newestCheckpoint(folder_.file("quiet")));
  ASSERT_EQ(saved.tensors.size(), quiet.tensors.size());
  for (size_t i = 0; i < saved.tensors.size(); ++i) EXPECT_EQ(saved.tensors[i].name, quiet.tensors[i].name);
  EXPECT_EQ(saved.plan, quiet.plan);
  EXPECT_EQ(readFile(saved.directory + "/plan.json"), readFile(quiet.directory + "/plan.json"));
  EXPECT_EQ(runPipeshard({"checkpoint", saved_, "--verify"}).exit_code, 0);
  writeFile(saved.directory + "/plan.json", "");  // `export` would refuse it
  const CommandResult verified = runPipeshard({"checkpoint", saved_, "--verify"});
  EXPECT_EQ(verified.exit_code, 85);
  EXPECT_THAT(verified.output, ::testing::HasSubstr("plan.json has the hash"));
}

TEST_F(ReplacedPlan, IsNotThatOfARestart) {
  const CommandProcess run(
      folder_.path(), "run",
      {"run", plan_, "--steps", "1000000", "--checkpoint", saved_, "--every", "50", "--restarts", "3"});
  ASSERT_TRUE(eventually([&] { return !newest().empty(); }, kPatience)) << run.errors();
  replace();
  for (const pid_t worker : workersOf(plan_)) ::kill(worker, SIGKILL);
  const CommandResult ended = run.finish();
  EXPECT_EQ(ended.exit_code, 76) << ended.errors;
  EXPECT_THAT(ended.errors, ::testing::HasSubstr(
                                "was replaced while this run used it: its last checkpoint is " + newest()));
}

TEST_F(ReplacedPlan, IsNotComparedWithTheOneBefore) {
  const CommandProcess validation(folder_.path(), "validate", {"validate", plan_, "--steps", "4000"});
  ASSERT_TRUE(validation.comes("planned: step")) << validation.errors();
  replace();
  const CommandResult ended = validation.finish(2 * kPatience);
  EXPECT_EQ(ended.exit_code, 76) << ended.errors;
  EXPECT_THAT(ended.errors, ::testing::HasSubstr("was replaced while this run used it"));
  EXPECT_FALSE(fs::exists(plan_ + "/validation.json"));
}

TEST_F(ReplacedPlan, IsNoticedAndWhatIsAddedIsNot) {
  const std::string mark = planMark(plan_);
  EXPECT_NE(planMark(other_), mark);
  writeFile(plan_ + "/validation.json", "{}");
  fs::create_directories(plan_ + "/fewer");
  requireSamePlan(plan_, mark, "");
  replace();
  EXPECT_ERROR(requireSamePlan(plan_, mark, "saved/step-000007"), ErrorCode::kVersionMismatch,
               "its last checkpoint is saved/step-000007; plan into another folder");
}

}  // namespace
}  // namespace pipeshard
