// Plans for fewer devices, made of one whose stages people have cut.
#include "planning/fewer/fewer_plans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planning/directory/plan_directory.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;
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

}  // namespace
}  // namespace pipeshard
