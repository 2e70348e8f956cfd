// `run --operators`: what a step's operators took.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using ::testing::HasSubstr;

TEST(OperatorTable, HasTheWorkOfAStepOfAllRanks) {
  const TemporaryFolder folder;
  const std::string plan = folder.file("plan"), file = folder.file("run.json");
  const CommandResult planned =
      runPipeshard({"plan", "examples/mlp.onnx", "--dim", "batch=8", "--cluster", "1x2", "--stages",
                    "uniform:2", "--microbatches", "2", "-o", plan});
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  const CommandResult ran = runPipeshard({"run", plan, "--steps", "4", "--operators", "--json", file});
  ASSERT_EQ(ran.exit_code, 0) << ran.errors;
  EXPECT_THAT(ran.output, HasSubstr("operators of a step, all ranks together, mean over 3 steps"));
  EXPECT_THAT(ran.output, HasSubstr("the rest of the step"));
  const nlohmann::json operators = nlohmann::json::parse(readFile(file)).at("operators");
  double flops = 0, seconds = 0;
  int64_t updates = 0;
  for (const nlohmann::json& row : operators.at("rows")) {
    flops += row.at("flops").get<double>();
    seconds += row.at("seconds").get<double>();
    if (row.at("operator") == "SGD") updates = row.at("runs");
  }
  // Four layers of 32 x 128 weights; 8 rows forward, as often for weights, and for the inputs of all but the
  // first.
  const double products = 2.0 * 8 * 32 * 128 * (4 + 4 + 3);
  EXPECT_GE(flops, products);
  EXPECT_LT(flops, 1.1 * products) << "additions of biases are little beside them";
  EXPECT_EQ(updates, 8) << "a weight and a bias of each layer";
  EXPECT_GT(seconds, 0);
  EXPECT_LE(seconds, operators.at("step_seconds").get<double>());
  EXPECT_GT(operators.at("flops_per_second").get<double>(), 1e8);
  EXPECT_GT(operators.at("bytes_per_second").get<double>(), 1e8);
}

TEST(OperatorTable, IsOfTheCpu) {
  const CommandResult refused = runPipeshard({"run", "nowhere", "--operators", "--device", "cuda"});
  EXPECT_EQ(refused.exit_code, 64);
  EXPECT_THAT(refused.errors, HasSubstr("--operators times operators on the CPU"));
}

}  // namespace
}  // namespace pipeshard
