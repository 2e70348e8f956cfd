// The shorter batch that ends an epoch: it is a step like any other, of its own size.

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/execute/dump.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using ::testing::HasSubstr;

struct LastBatch {
  std::string model;
  std::string stages = "1,1,1,1";
  int rows = 3;
};
void PrintTo(const LastBatch& c, std::ostream* stream) {
  *stream << c.model << " " << c.rows << " on " << c.stages;
}

class LastBatchTest : public ::testing::TestWithParam<LastBatch> {};

StepDump validateAndRead(const TemporaryFolder& folder, const std::string& name,
                         const std::vector<std::string>& options, int ranks) {
  std::vector<std::string> line = {"validate", "--precision", "float64", "--optimizer",    "sgd:lr=1e-300",
                                   "--steps",  "4",           "--dump",  folder.file(name)};
  line.insert(line.end(), options.begin(), options.end());
  const CommandResult result = runPipeshard(line);
  EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
  EXPECT_THAT(result.output, HasSubstr("PASS"));
  return StepDump::open(folder.file(name) + "/planned", 2, ranks);
}

// Synthetic data alternate between a whole and a short batch, and row r of step 2 is the same whatever the
// batch. Nothing is learned, so step 2 must be what a plan made for batches of this size gives in step 2, on
// one device and with one microbatch.
TEST_P(LastBatchTest, IsTheStepOfABatchOfThatSize) {
  const auto& [model, stages, rows] = GetParam();
  const std::string file = "examples/" + model + ".onnx";
  const std::string size = std::to_string(rows);
  const TemporaryFolder folder;
  const StepDump last = validateAndRead(
      folder, "last",
      {file, "--cluster", "1x4", "--stage-devices", stages, "--dim", "batch=8", "--last-batch", size}, 4);
  const StepDump alone =
      validateAndRead(folder, "alone", {file, "--dim", "batch=" + size, "--microbatches", "1"}, 1);
  ASSERT_EQ(last.names(), alone.names());
  double squares = 0;
  double elements = 0;
  for (const std::string& name : alone.names()) {
    for (double x : alone.read(name).elements()) squares += name.starts_with("gradient/") ? x * x : 0;
    elements += name.starts_with("gradient/") ? static_cast<double>(alone.read(name).elements().size()) : 0;
  }
  for (const std::string& name : alone.names()) {
    const std::vector<double> got = last.read(name).elements();
    const std::vector<double> want = alone.read(name).elements();
    double difference = 0;
    double norm = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      difference += std::pow(got[i] - want[i], 2);
      norm += want[i] * want[i];
    }
    const double floor = 1e-4 * std::sqrt(squares * static_cast<double>(want.size()) / elements);
    EXPECT_LE(std::sqrt(difference), 1e-11 * std::max(std::sqrt(norm), floor)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Examples, LastBatchTest,
                         ::testing::Values(LastBatch{"mlp"}, LastBatch{"gpt2"}, LastBatch{"llama"},
                                           LastBatch{"gpt2", "2,2", 5}, LastBatch{"llama", "1,3", 3},
                                           LastBatch{"gpt2", "1,1,1,1", 1}));

CommandResult validateMlp(const std::vector<std::string>& options) {
  std::vector<std::string> line = {"validate", "examples/mlp.onnx", "--cluster", "1x2", "--steps", "4"};
  line.insert(line.end(), options.begin(), options.end());
  return runPipeshard(line);
}

// tests/oracle/golden/mlp.npz holds 8 examples: batches of 5 and 3.
TEST(LastBatchOfData, FollowsFromTheLengthOfTheFile) {
  const std::string data = std::string(PIPESHARD_SOURCE_DIR) + "/tests/oracle/golden/mlp.npz";
  const CommandResult result = validateMlp({"--dim", "batch=5", "--data", data});
  EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
  EXPECT_THAT(result.output, HasSubstr("last batch    3 rows"));
  const CommandResult dropped = validateMlp({"--dim", "batch=5", "--data", data, "--drop-last"});
  EXPECT_EQ(dropped.exit_code, 0) << dropped.output << dropped.errors;
  EXPECT_THAT(dropped.output, ::testing::Not(HasSubstr("last batch")));
}

TEST(LastBatchOfData, APlanForOtherDataSaysWhatToDo) {
  const std::string data = std::string(PIPESHARD_SOURCE_DIR) + "/tests/oracle/golden/mlp.npz";
  const TemporaryFolder folder;
  const std::string plan = folder.file("mlp.plan");
  ASSERT_EQ(runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "1x2", "--dim", "batch=5", "-o", plan})
                .exit_code,
            0);
  const CommandResult refused = runPipeshard({"run", plan, "--steps", "2", "--data", data});
  EXPECT_EQ(refused.exit_code, 78) << refused.errors;
  EXPECT_THAT(refused.errors, HasSubstr("8 examples: after batches of 5 a last one of 3 is left"));
  EXPECT_THAT(refused.errors, HasSubstr("--last-batch 3"));
  EXPECT_EQ(runPipeshard({"run", plan, "--steps", "2", "--data", data, "--drop-last"}).exit_code, 0);
  ASSERT_EQ(runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "1x2", "--dim", "batch=5", "--data", data,
                          "-o", plan})
                .exit_code,
            0);
  EXPECT_EQ(runPipeshard({"run", plan, "--steps", "5", "--data", data}).exit_code, 0);
}

TEST(LastBatchOfData, RefusesWhatIsNoLastBatch) {
  const CommandResult longer = validateMlp({"--dim", "batch=5", "--last-batch", "5"});
  EXPECT_EQ(longer.exit_code, 64) << longer.errors;
  EXPECT_THAT(longer.errors, HasSubstr("not shorter than the batch of 5"));
  const CommandResult narrow =
      validateMlp({"--dim", "batch=5", "--stages", "uniform:1", "--microbatches", "2", "--last-batch", "1"});
  EXPECT_EQ(narrow.exit_code, 78) << narrow.errors;
  EXPECT_THAT(narrow.errors, HasSubstr("cannot be shared by 2 data-parallel devices"));
}

}  // namespace
}  // namespace pipeshard
