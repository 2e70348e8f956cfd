// `run --check-replicas`: equal copies are let be, a bit that changes in one of them is told.
#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using ::testing::HasSubstr;

class Replicas : public ::testing::Test {
 protected:
  ~Replicas() override { ::unsetenv("PIPESHARD_FLIP_BIT"); }

  void plan(const std::string& model, const std::vector<std::string>& options) {
    std::vector<std::string> arguments = {"plan", model, "--optimizer", "adamw:lr=1e-3", "-o", plan_};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const CommandResult planned = runPipeshard(arguments);
    ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  }
  CommandResult run() const { return runPipeshard({"run", plan_, "--steps", "9", "--check-replicas", "2"}); }

  TemporaryFolder folder_;
  std::string plan_ = folder_.file("job.plan");
};

// The first pipeline stage and the last one share a weight of gpt2; resnet has running statistics.
TEST_F(Replicas, CopiesStayEqual) {
  const std::vector<std::vector<std::string>> ways = {
      {"--cluster", "2x2", "--stages", "uniform:2", "--microbatches", "2"},
      {"--cluster", "1x4", "--stages", "uniform:1", "--method", "zero2"},
      {"--cluster", "2x2", "--method", "megatron:2,1,2"}};
  for (const char* model : {"examples/gpt2.onnx", "examples/resnet.onnx"}) {
    for (size_t i = 0; i < ways.size() && (i == 0 || model == std::string("examples/gpt2.onnx")); ++i) {
      plan(model, ways[i]);
      const CommandResult result = run();
      EXPECT_EQ(result.exit_code, 0) << model << i << result.errors;
    }
  }
}

TEST_F(Replicas, APlanWithoutCopiesIsToldSoOnce) {
  plan("examples/mlp.onnx", {"--cluster", "1x2", "--stages", "uniform:2"});
  const CommandResult result = run();
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  const std::string text = "there is nothing to compare";
  const size_t found = result.errors.find(text);
  EXPECT_NE(found, std::string::npos) << result.errors;
  EXPECT_EQ(result.errors.find(text, found + 1), std::string::npos) << result.errors;
}

TEST_F(Replicas, AChangedBitNamesTensorAndRanks) {
  plan("examples/mlp.onnx", {"--cluster", "1x2", "--stages", "uniform:1"});
  ::setenv("PIPESHARD_FLIP_BIT", "1:4", 1);
  const CommandResult result = run();
  EXPECT_EQ(result.exit_code, 86) << result.errors;
  EXPECT_THAT(result.errors, HasSubstr("after step 4 rank "));
  EXPECT_THAT(result.errors, HasSubstr("hold different numbers in 'parameter/"));
}

TEST_F(Replicas, OfSeveralTheOddOneIsNamed) {
  plan("examples/mlp.onnx", {"--cluster", "1x4", "--stages", "uniform:1"});
  ::setenv("PIPESHARD_FLIP_BIT", "2:2", 1);
  const CommandResult result = run();
  EXPECT_EQ(result.exit_code, 86) << result.errors;
  EXPECT_THAT(result.errors, HasSubstr("after step 2 rank 2 holds other numbers than rank 0, 1, 3 in '"));
}

}  // namespace
}  // namespace pipeshard
