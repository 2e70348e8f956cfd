// The file of `run --json`, also of a job that went back, or ended early.
#include "tools/output/run_file.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/temporary_folder.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

class RunFileTest : public ::testing::Test {
 protected:
  void takeSteps(int64_t first, int64_t last, double loss) {
    for (int64_t step = first; step <= last; ++step) {
      StepResult result;
      result.step = step;
      result.loss = loss;
      result.applied = step % 4 != 0;
      file_.take({.kind = JobProgress::Kind::kStep, .step = step, .loss = loss, .result = &result});
    }
  }
  void takeEvaluation(int64_t step) {
    file_.take({.kind = JobProgress::Kind::kEvaluated, .step = step, .loss = 1});
  }
  nlohmann::json read() const { return nlohmann::json::parse(readFile(folder_.file("run.json"))); }

  TemporaryFolder folder_;
  RunFile file_{folder_.file("run.json")};
};

std::vector<int64_t> stepsOf(const nlohmann::json& list) {
  std::vector<int64_t> steps;
  for (const nlohmann::json& of : list) steps.push_back(of.at("step"));
  return steps;
}

TEST_F(RunFileTest, KeepsWhatAJobDidBeforeItWentBack) {
  takeEvaluation(10);
  takeSteps(11, 13, 3);
  takeEvaluation(13);
  takeSteps(14, 17, 3);
  takeEvaluation(17);
  takeSteps(15, 18, 2);  // from a checkpoint of step 14
  takeEvaluation(18);
  EXPECT_EQ(file_.stepsDone(), 8);
  EXPECT_EQ(file_.stepsLeftOut(), 2);  // 12 and 16, which was done twice
  EXPECT_EQ(file_.firstLoss(), 3);
  EXPECT_EQ(file_.lastLoss(), 2);
  file_.finish(JobResult{});
  const nlohmann::json json = read();
  EXPECT_EQ(stepsOf(json.at("steps")), (std::vector<int64_t>{11, 12, 13, 14, 15, 16, 17, 18}));
  EXPECT_EQ(json.at("steps")[3].at("loss"), 3);
  EXPECT_EQ(json.at("steps")[4].at("loss"), 2);
  EXPECT_EQ(stepsOf(json.at("evaluations")), (std::vector<int64_t>{10, 13, 18}));
  EXPECT_FALSE(json.contains("ended"));
}

TEST_F(RunFileTest, CountsFromWhereTheJobWentBackTo) {
  takeSteps(11, 13, 3);
  takeSteps(6, 9, 2);
  EXPECT_EQ(file_.stepsDone(), 4);
  EXPECT_EQ(file_.firstLoss(), 2);
  file_.finish(JobResult{});
  EXPECT_EQ(stepsOf(read().at("steps")), (std::vector<int64_t>{6, 7, 8, 9}));
}

TEST_F(RunFileTest, IsWrittenOfARunThatEndsEarly) {
  file_.finishEarly("nothing was done");
  EXPECT_FALSE(std::filesystem::exists(folder_.file("run.json")));
  takeSteps(1, 2, 3);
  file_.finishEarly("stopped by SIGTERM");
  const nlohmann::json json = read();
  EXPECT_EQ(stepsOf(json.at("steps")), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(json.at("ended"), "stopped by SIGTERM");
}

}  // namespace
}  // namespace pipeshard
