// The shorter batch that ends an epoch: it is a step like any other, of its own size.

#include <cmath>
#include <cstring>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "runtime/execute/dump.h"
#include "runtime/files/npz.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using ::testing::HasSubstr;

struct LastBatch {
  std::string model;
  std::string stages = "1,1,1,1";
  int rows = 3;
  std::string method = {};
};
void PrintTo(const LastBatch& c, std::ostream* stream) {
  *stream << c.model << " " << c.rows << " on " << c.stages << " " << c.method;
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
  const auto& [model, stages, rows, method] = GetParam();
  const std::string file = "examples/" + model + ".onnx";
  const std::string size = std::to_string(rows);
  const TemporaryFolder folder;
  std::vector<std::string> options = {file,      "--cluster",    "1x4", "--stage-devices", stages, "--dim",
                                      "batch=8", "--last-batch", size};
  if (!method.empty()) options.insert(options.end(), {"--method", method});
  const StepDump last = validateAndRead(folder, "last", options, 4);
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

// What a method shards: rows that the devices do not divide, among them of one microbatch that is larger than
// those of a whole batch; and one row, in which a Reshape has fewer factors.
INSTANTIATE_TEST_SUITE_P(
    Methods, LastBatchTest,
    ::testing::Values(LastBatch{"gpt2", "4", 5, "data-parallel"}, LastBatch{"gpt2", "4", 7, "zero2"},
                      LastBatch{"gpt2", "4", 5, "zero3"}, LastBatch{"llama", "4", 3, "megatron:2,2"},
                      LastBatch{"gpt2", "2,2", 3, "zero3"}, LastBatch{"gpt2", "2,2", 1, "megatron:1,2"}));

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

// A step of a schedule with windows takes whole ones: the plan says so, and nobody advises otherwise.
TEST(LastBatchOfData, OfAScheduleWithWindowsIsLeftOut) {
  const std::string data = std::string(PIPESHARD_SOURCE_DIR) + "/tests/oracle/golden/mlp.npz";
  const TemporaryFolder folder;
  const std::vector<std::string> line = {
      "examples/mlp.onnx", "--cluster", "1x2", "--dim",  "batch=2", "--schedule",
      "pipedream",         "--window",  "3",   "--data", data};
  const auto planned = [&](std::vector<std::string> arguments, const std::vector<std::string>& more) {
    arguments.insert(arguments.end(), line.begin(), line.end());
    arguments.insert(arguments.end(), more.begin(), more.end());
    return runPipeshard(arguments);
  };
  const std::string why = "under the schedule pipedream a step takes whole windows of updates";
  const CommandResult noted = planned({"plan"}, {"-o", folder.file("plan")});
  EXPECT_EQ(noted.exit_code, 0) << noted.errors;
  EXPECT_THAT(noted.output, HasSubstr("the last 2 examples of"));
  EXPECT_THAT(noted.output, HasSubstr(why));
  EXPECT_THAT(planned({"plan"}, {"--drop-last", "-o", folder.file("other")}).output,
              ::testing::Not(HasSubstr(why)));
  const CommandResult ran = runPipeshard({"run", folder.file("plan"), "--steps", "2", "--data", data});
  for (const CommandResult& refused : {ran, planned({"validate"}, {})}) {
    EXPECT_EQ(refused.exit_code, 78) << refused.errors;
    EXPECT_THAT(refused.errors, HasSubstr("after batches of 6 a last one of 2 is left, but " + why));
    EXPECT_THAT(refused.errors, HasSubstr("--drop-last"));
    EXPECT_THAT(refused.errors, ::testing::Not(HasSubstr("plan again")));
  }
  EXPECT_EQ(
      runPipeshard({"run", folder.file("plan"), "--steps", "2", "--data", data, "--drop-last"}).exit_code, 0);
}

// Figures are of the step itself: 4 examples, and one; by 16 tokens.
TEST(LastBatchOfData, HasFewerExamplesAndTokensInTheLog) {
  const TemporaryFolder folder;
  ASSERT_EQ(runPipeshard({"plan", "examples/gpt2.onnx", "--cluster", "1x1", "--dim", "batch=4",
                          "--last-batch", "1", "-o", folder.file("plan")})
                .exit_code,
            0);
  const CommandResult ran =
      runPipeshard({"run", folder.file("plan"), "--steps", "4", "--log", folder.file("log")});
  ASSERT_EQ(ran.exit_code, 0) << ran.errors;
  std::istringstream lines(readFile(folder.file("log") + "/steps.jsonl"));
  int64_t step = 0;
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json figures = nlohmann::json::parse(line);
    const double seconds = figures["seconds"], examples = ++step % 2 == 0 ? 1 : 4;
    EXPECT_NEAR(figures["examples_per_second"].get<double>() * seconds, examples, 1e-3) << line;
    EXPECT_NEAR(figures["tokens_per_second"].get<double>() * seconds, 16 * examples, 1e-2) << line;
  }
  EXPECT_EQ(step, 4);
}

// The rest in one microbatch of three rows, where two devices share each: larger than those of a batch. One
// row cannot be shared: then no number is called exact.
TEST(LastBatchOfData, HeldOutRowsCountWhereverDevicesCanShareThem) {
  const TemporaryFolder folder;
  const std::string data = std::string(PIPESHARD_SOURCE_DIR) + "/tests/oracle/golden/mlp.npz";
  const auto heldOut = [&](int64_t rows, const std::vector<std::string>& devices) {
    std::vector<float> numbers;
    for (int64_t i = 0; i < rows * 32; ++i) numbers.push_back(static_cast<float>(i * i % 101) / 30);
    NpzArray array{DataType::kFloat32, {rows, 32}, std::vector<std::byte>(numbers.size() * sizeof(float))};
    std::memcpy(array.bytes.data(), numbers.data(), array.bytes.size());
    writeNpz(folder.file("held.npz"), {{"x", array}, {"y", array}});
    std::vector<std::string> line = {"plan",     "examples/mlp.onnx", "--dim", "batch=4",
                                     "--stages", "uniform:1",         "-o",    folder.file("plan")};
    line.insert(line.end(), devices.begin(), devices.end());
    EXPECT_EQ(runPipeshard(line).exit_code, 0);
    const CommandResult ran =
        runPipeshard({"run", folder.file("plan"), "--data", data, "--steps", "1", "--eval",
                      folder.file("held.npz"), "--eval-at-start", "--json", folder.file("run.json")});
    EXPECT_EQ(ran.exit_code, 0) << ran.errors;
    EXPECT_EQ(ran.output.find("left out") != std::string::npos,
              ran.output.find("approximate") != std::string::npos)
        << ran.output;
    return nlohmann::json::parse(readFile(folder.file("run.json")))["evaluations"][0];
  };
  const nlohmann::json whole = heldOut(7, {"--cluster", "1x1", "--microbatches", "1"});
  for (const bool with_method : {false, true}) {
    std::vector<std::string> devices = {"--cluster", "1x2", "--microbatches", "2"};
    if (with_method) devices.insert(devices.end(), {"--method", "data-parallel"});
    const nlohmann::json seven = heldOut(7, devices), five = heldOut(5, devices);
    EXPECT_TRUE(seven["exact"].get<bool>());
    EXPECT_NEAR(seven["loss"].get<double>(), whole["loss"].get<double>(), 1e-5);
    EXPECT_FALSE(five["exact"].get<bool>());
  }
}

TEST(LastBatchOfData, OfAFileSmallerThanAStepSaysWhatHelps) {
  const std::string data = std::string(PIPESHARD_SOURCE_DIR) + "/tests/oracle/golden/mlp.npz";  // 8 examples
  const TemporaryFolder folder;
  const auto planned = [&](const std::vector<std::string>& options) {
    std::vector<std::string> line = {"plan", "examples/mlp.onnx", "--cluster", "1x2", "--data", data,
                                     "-o",   folder.file("plan")};
    line.insert(line.end(), options.begin(), options.end());
    const CommandResult result = runPipeshard(line);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    return result.output;
  };
  const auto ran = [&] { return runPipeshard({"run", folder.file("plan"), "--steps", "1", "--data", data}); };
  const auto refused = [&](const std::vector<std::string>& options, const std::string& advice) {
    EXPECT_THAT(planned(options), HasSubstr("`run` and `validate` would refuse these data: " + advice));
    const CommandResult result = ran();
    EXPECT_EQ(result.exit_code, 78) << result.errors;
    EXPECT_THAT(result.errors, HasSubstr(advice));
  };
  refused({"--dim", "batch=12"}, "8 examples are fewer than the 12 of a step; plan with --dim batch=8");
  EXPECT_THAT(planned({"--dim", "batch=8"}), ::testing::Not(HasSubstr("fewer than")));
  EXPECT_EQ(ran().exit_code, 0);
  refused({"--dim", "batch=2", "--schedule", "pipedream", "--window", "6"},
          "8 examples are fewer than the 12 of a step; plan with --window 4");
  planned({"--dim", "batch=2", "--schedule", "pipedream", "--window", "4"});
  EXPECT_EQ(ran().exit_code, 0);
  refused({"--dim", "batch=12", "--schedule", "pipedream", "--window", "2"},
          "8 examples are fewer than the 24 of a step; plan with --dim batch=8 --window 1");
}

}  // namespace
}  // namespace pipeshard
