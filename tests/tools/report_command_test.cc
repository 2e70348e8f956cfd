// `report` after `plan`, `validate` and `run --trace`.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ReportCommand, ShowsWhatWasPlannedThenWhatWasMeasured) {
  const TemporaryFolder folder;
  const std::string plan = folder.file("mlp.plan");
  const CommandResult planned = runPipeshard(
      {"plan", "examples/mlp.onnx", "--cluster", "1x2", "--dim", "batch=8", "--microbatches", "4", "--schedule", "1f1b", "-o", plan});
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  const std::string first = readFile(plan + "/report.html");
  EXPECT_THAT(first, HasSubstr("Planned, not validated yet"));
  EXPECT_THAT(first, HasSubstr("this plan, predicted"));
  EXPECT_THAT(first, HasSubstr("Box widths are times."));
  EXPECT_THAT(first, Not(HasSubstr("this plan, measured")));
  EXPECT_THAT(first, HasSubstr("What each rank holds over the step, predicted."));

  // Made anew, it is the same.
  const CommandResult again = runPipeshard({"report", plan, "-o", folder.file("again.html"), "--svg", folder.file("pictures")});
  ASSERT_EQ(again.exit_code, 0) << again.errors;
  EXPECT_EQ(readFile(folder.file("again.html")), first);
  for (const char* name : {"cluster.svg", "schedule.svg", "memory.svg"})
    EXPECT_THAT(readFile(folder.file("pictures") + "/" + name), HasSubstr("</svg>"));

  const CommandResult validated = runPipeshard({"validate", plan, "--steps", "2"});
  ASSERT_EQ(validated.exit_code, 0) << validated.errors;
  const std::string second = readFile(plan + "/report.html");
  EXPECT_THAT(second, HasSubstr("PASS: equals one device"));
  EXPECT_THAT(second, HasSubstr("this plan, measured"));
  const CommandResult third = runPipeshard({"report", plan, "-o", folder.file("third.html")});
  ASSERT_EQ(third.exit_code, 0) << third.errors;
  EXPECT_THAT(third.output, HasSubstr("trace.json"));
  EXPECT_EQ(readFile(folder.file("third.html")), second);

  const CommandResult run = runPipeshard({"run", plan, "--steps", "3", "--trace", folder.file("run.json")});
  ASSERT_EQ(run.exit_code, 0) << run.errors;
  EXPECT_EQ(runPipeshard({"report", plan, "--trace", folder.file("run.json"), "--step", "2"}).exit_code, 0);
  EXPECT_EQ(runPipeshard({"report", plan, "--measured", folder.file("run.json"), "-o", folder.file("fourth.html")}).exit_code, 0);
  EXPECT_NE(readFile(folder.file("fourth.html")), second);  // another prediction
  const CommandResult missing = runPipeshard({"report", plan, "--trace", folder.file("run.json"), "--step", "9"});
  EXPECT_EQ(missing.exit_code, 78);
  EXPECT_THAT(missing.errors, HasSubstr("no events of step 9"));
}

TEST(ReportCommand, RefusesWhatIsNoPlanDirectory) {
  const TemporaryFolder folder;
  EXPECT_EQ(runPipeshard({"report", folder.path().string()}).exit_code, 66);
  EXPECT_EQ(runPipeshard({"report"}).exit_code, 64);
}

}  // namespace
}  // namespace pipeshard
