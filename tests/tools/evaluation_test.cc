// Evaluation (--schedule forward-only): models without a loss, and the outputs of models (run --outputs). The
// numbers of the mlp example are ONNX Runtime's (1.32) for x[i] = (i mod 7 - 3) / 3.
#include <cmath>
#include <cstring>
#include <numeric>

#include <gtest/gtest.h>

#include "onnx_import/format/reader.h"
#include "onnx_import/format/writer.h"
#include "runtime/files/npz.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

constexpr int64_t kRows = 20;
constexpr int64_t kWidth = 32;

std::vector<float> floatsOf(const NpzArray& array) {
  std::vector<float> numbers(array.bytes.size() / sizeof(float));
  std::memcpy(numbers.data(), array.bytes.data(), array.bytes.size());
  return numbers;
}

class Evaluation : public ::testing::Test {
 protected:
  // The mlp example, with its prediction as an output; with or without its loss.
  std::string writeMlp(bool with_loss) {
    Graph graph = readModel(PIPESHARD_SOURCE_DIR "/examples/mlp.onnx");
    const ValueId prediction = findValue(graph, "relu_3");
    EXPECT_TRUE(prediction.valid());
    if (with_loss) {
      graph.outputs.push_back(prediction);
    } else {
      graph.outputs = {prediction};
      std::erase(graph.inputs, findValue(graph, "y"));
      removeDeadCode(graph);
    }
    writeModel(graph, folder_.file("mlp.onnx"));
    return folder_.file("mlp.onnx");
  }

  std::string writeData() {
    NpzArray x{DataType::kFloat32, {kRows, kWidth}, {}};
    std::vector<float> numbers(kRows * kWidth);
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = (static_cast<float>(i % 7) - 3) / 3;
    x.bytes.resize(numbers.size() * sizeof(float));
    std::memcpy(x.bytes.data(), numbers.data(), x.bytes.size());
    NpzArray y = x;
    std::fill(y.bytes.begin(), y.bytes.end(), std::byte{0});
    writeNpz(folder_.file("data.npz"), {{"x", x}, {"y", y}});
    return folder_.file("data.npz");
  }

  // The outputs of all rows: batches of 8, 8 and 4.
  NpzFile evaluate(const std::string& model, std::vector<std::string> options, const std::string& data) {
    const std::string plan = folder_.file("plan" + std::to_string(++plans_));
    options.insert(options.begin(), {"plan", model, "--external-data-root", "examples", "--dim", "batch=8",
                                     "--schedule", "forward-only", "--data", data, "-o", plan});
    const CommandResult planned = runPipeshard(options);
    EXPECT_EQ(planned.exit_code, 0) << planned.errors;
    const CommandResult ran =
        runPipeshard({"run", plan, "--data", data, "--steps", "3", "--outputs", folder_.file("outputs.npz")});
    EXPECT_EQ(ran.exit_code, 0) << ran.errors;
    last_output_ = ran.output;
    return NpzFile::open(folder_.file("outputs.npz"));
  }

  const TemporaryFolder folder_;
  std::string last_output_;
  int plans_ = 0;
};

void expectRuntimesNumbers(const NpzFile& outputs) {
  ASSERT_EQ(outputs.names(), std::vector<std::string>{"relu_3"});
  const NpzArray prediction = outputs.read("relu_3");
  ASSERT_EQ(prediction.shape, (Shape{kRows, kWidth}));
  const std::vector<float> numbers = floatsOf(prediction);
  const auto expectRow = [&](size_t row, const std::vector<float>& want) {
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(numbers[row * kWidth + i], want[i], 2e-6) << row;
  };
  expectRow(0, {2.6167347F, 0, 0, 1.1024607F, 0, 0});
  expectRow(19, {1.3909758F, 0, 0, 0.2427052F, 0.49799043F, 0});
  EXPECT_NEAR(std::accumulate(numbers.begin(), numbers.end(), 0.0), 366.5293092727661, 1e-3);
}

TEST_F(Evaluation, GivesTheOutputsOfAModelWithoutLossWhateverThePlan) {
  const std::string model = writeMlp(false);
  const std::string data = writeData();
  const std::vector<std::vector<std::string>> plans = {
      {"--cluster", "1x1", "--microbatches", "1"},
      {"--cluster", "1x1", "--microbatches", "3"},
      {"--cluster", "1x4", "--stages", "uniform:4", "--microbatches", "4"},
      {"--cluster", "1x4", "--stages", "uniform:2", "--microbatches", "2"},
      {"--cluster", "1x4", "--stages", "uniform:2", "--microbatches", "2", "--method", "auto"},
      {"--cluster", "1x2", "--stages", "uniform:1", "--microbatches", "2", "--method", "megatron:1,2"},
  };
  for (const std::vector<std::string>& plan : plans) {
    SCOPED_TRACE(plan.back());
    expectRuntimesNumbers(evaluate(model, plan, data));
    EXPECT_EQ(last_output_.find("loss"), std::string::npos) << last_output_;
  }
}

TEST_F(Evaluation, GivesLossAndOutputsOfAModelThatHasBoth) {
  expectRuntimesNumbers(evaluate(
      writeMlp(true), {"--cluster", "1x2", "--stages", "uniform:2", "--microbatches", "2"}, writeData()));
  EXPECT_NE(last_output_.find("loss 0.8"), std::string::npos) << last_output_;
}

TEST_F(Evaluation, IsWhatValidateCompares) {
  const CommandResult result = runPipeshard({"validate", writeMlp(false), "--external-data-root", "examples",
                                             "--dim", "batch=8", "--cluster", "1x4", "--stages", "uniform:2",
                                             "--microbatches", "4", "--schedule", "forward-only"});
  EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
  EXPECT_NE(result.output.find("output"), std::string::npos) << result.output;
}

TEST_F(Evaluation, TrainingSaysWhichOutputsItLeavesOut) {
  const CommandResult result =
      runPipeshard({"plan", writeMlp(true), "--external-data-root", "examples", "--dim", "batch=8",
                    "--cluster", "1x2", "-o", folder_.file("plan")});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_NE(result.output.find("1 output beside the loss"), std::string::npos) << result.output;
  const CommandResult ran = runPipeshard({"run", folder_.file("plan"), "--outputs", folder_.file("o.npz")});
  EXPECT_EQ(ran.exit_code, 64) << ran.errors;
  EXPECT_NE(ran.errors.find("--schedule forward-only"), std::string::npos) << ran.errors;
}

TEST_F(Evaluation, OfALossAloneHasNoOutputs) {
  const CommandResult planned =
      runPipeshard({"plan", "examples/mlp.onnx", "--schedule", "forward-only", "-o", folder_.file("plan")});
  EXPECT_EQ(planned.exit_code, 0) << planned.errors;
  const CommandResult ran = runPipeshard({"run", folder_.file("plan"), "--outputs", folder_.file("o.npz")});
  EXPECT_EQ(ran.exit_code, 64) << ran.errors;
  EXPECT_NE(ran.errors.find("is its loss; `run --json FILE`"), std::string::npos) << ran.errors;
}

TEST_F(Evaluation, RefusesToTrainWithoutALoss) {
  const CommandResult result =
      runPipeshard({"plan", writeMlp(true), "--external-data-root", "examples", "--dim", "batch=8",
                    "--cluster", "1x2", "--loss", "none", "-o", folder_.file("plan")});
  EXPECT_EQ(result.exit_code, 64) << result.errors;
  EXPECT_NE(result.errors.find("forward-only"), std::string::npos) << result.errors;
}

}  // namespace
}  // namespace pipeshard
