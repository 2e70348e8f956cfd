// Evaluation (--schedule forward-only): models without a loss, and the outputs of models (run --outputs). The
// numbers of the mlp example are ONNX Runtime's (1.32) for x[i] = (i mod 7 - 3) / 3. Also modules that were
// exported in training mode.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

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

// A batch normalisation and a dropout of 0.5, in training mode as exported; x has three channels:
//   y = Dropout(2 (x - (1, 2, 3)) / sqrt(4 + 1e-5) + 1)
// Its further output is an updated statistic.
std::string writeTrainingMode(const TemporaryFolder& folder) {
  Graph graph;
  graph.opset_imports = {{"", 18}};
  GraphBuilder builder(graph);
  const auto rows = [&](const char* name) {
    const ValueId id = builder.addValue(name, DataType::kFloat32, {kUnknownSize, 3});
    graph.value(id).symbols = {"batch", ""};
    return id;
  };
  const auto channels = [&](const char* name, const std::vector<float>& numbers) {
    return builder.addConstant(name, makeConstant<float>({3}, numbers));
  };
  const ValueId x = rows("x"), normalized = rows("normalized"), y = rows("y");
  const ValueId mean = builder.addValue("mean.updated", DataType::kFloat32, {3});
  const ValueId variance = builder.addValue("variance.updated", DataType::kFloat32, {3});
  builder.addNode("", "BatchNormalization",
                  {x, channels("norm.weight", {2, 2, 2}), channels("norm.bias", {1, 1, 1}),
                   channels("norm.running_mean", {1, 2, 3}), channels("norm.running_var", {4, 4, 4})},
                  {normalized, mean, variance}, {{"training_mode", int64_t{1}}});
  const ValueId ratio = builder.addConstant("ratio", makeConstant<float>({}, {0.5F}));
  const ValueId yes = builder.addConstant("yes", Constant{DataType::kBool, {}, {std::byte{1}}});
  builder.addNode("", "Dropout", {normalized, ratio, yes}, {y});
  graph.inputs = {x};
  graph.outputs = {y, mean};
  writeModel(graph, folder.file("training.onnx"));
  return folder.file("training.onnx");
}

TEST_F(Evaluation, IsInEvaluationModeUnlessTrainingModeIsAskedFor) {
  constexpr int64_t kExamples = 40;
  const std::string model = writeTrainingMode(folder_), data = folder_.file("data.npz");
  std::vector<float> numbers(kExamples * 3);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i % 11) + 10;
  NpzArray x{DataType::kFloat32, {kExamples, 3}, {}};
  x.bytes.resize(numbers.size() * sizeof(float));
  std::memcpy(x.bytes.data(), numbers.data(), x.bytes.size());
  writeNpz(data, {{"x", x}});
  const auto given = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {"plan", model, "--dim", "batch=8", "--schedule", "forward-only",
                                     "--cluster", "1x1", "-o", folder_.file("plan")});
    const CommandResult planned = runPipeshard(options);
    EXPECT_EQ(planned.exit_code, 0) << planned.output << planned.errors;
    last_output_ = planned.output;
    const CommandResult ran = runPipeshard({"run", folder_.file("plan"), "--data", data, "--steps", "5",
                                            "--outputs", folder_.file("outputs.npz")});
    EXPECT_EQ(ran.exit_code, 0) << ran.errors;
    return floatsOf(NpzFile::open(folder_.file("outputs.npz")).read("y"));
  };
  for (const char* microbatches : {"1", "3"}) {
    const std::vector<float> y = given({"--microbatches", microbatches});
    ASSERT_EQ(y.size(), numbers.size());
    for (size_t i = 0; i < y.size(); ++i) {
      const float mean = static_cast<float>(i % 3) + 1;
      EXPECT_NEAR(y[i], 2 * (numbers[i] - mean) / std::sqrt(4 + 1e-5F) + 1, 1e-4) << i;
    }
    EXPECT_NE(last_output_.find("as --schedule forward-only evaluates: 1 batch normalization and 1 dropout"),
              std::string::npos)
        << last_output_;
    EXPECT_EQ(last_output_.find("drawn in every step"), std::string::npos) << last_output_;
  }
  const std::vector<float> y = given({"--microbatches", "1", "--mode", "training"});
  EXPECT_GT(std::count(y.begin(), y.end(), 0.0F), 0) << "dropped";
  EXPECT_EQ(last_output_.find("evaluation mode"), std::string::npos) << last_output_;
  EXPECT_NE(last_output_.find("1 tensor is drawn in every step"), std::string::npos) << last_output_;
  const CommandResult validated = runPipeshard({"validate", folder_.file("plan")});
  EXPECT_EQ(validated.exit_code, 0) << validated.output << validated.errors;
}

// The resnet example is exported in training mode, with its updated statistics as outputs.
TEST_F(Evaluation, OfAnExportedModelIsTheSameInEitherMode) {
  const std::string saved = folder_.file("saved"), plan = folder_.file("plan");
  const CommandResult planned =
      runPipeshard({"plan", "examples/resnet.onnx", "--cluster", "1x2", "-o", plan});
  EXPECT_EQ(planned.exit_code, 0) << planned.errors;
  EXPECT_NE(planned.output.find("batch normalizations in training mode see 2 rows at a time, those of a "
                                "microbatch (--microbatches 1: all 8)"),
            std::string::npos)
      << planned.output;
  ASSERT_EQ(runPipeshard({"run", plan, "--steps", "2", "--checkpoint", saved}).exit_code, 0);
  const auto lossOf = [&](const std::string& name, const std::vector<std::string>& options) {
    const std::string model = folder_.file(name + ".onnx"), json = folder_.file(name + ".json");
    std::vector<std::string> line = {"export", saved, "-o", model};
    line.insert(line.end(), options.begin(), options.end());
    const CommandResult exported = runPipeshard(line);
    EXPECT_EQ(exported.exit_code, 0) << exported.errors;
    last_output_ = exported.output;
    const CommandResult evaluates = runPipeshard(
        {"plan", model, "--cluster", "1x2", "--schedule", "forward-only", "-o", folder_.file(name)});
    EXPECT_EQ(evaluates.exit_code, 0) << evaluates.errors;
    EXPECT_EQ(evaluates.output.find("rows at a time"), std::string::npos) << evaluates.output;
    EXPECT_EQ(runPipeshard({"run", folder_.file(name), "--steps", "1", "--json", json}).exit_code, 0);
    return nlohmann::json::parse(readFile(json)).at("steps").at(0).at("loss").get<double>();
  };
  const double as_exported = lossOf("training", {});
  EXPECT_NE(last_output_.find("in training mode, as the file that was planned: 16 batch normalizations"),
            std::string::npos)
      << last_output_;
  EXPECT_NEAR(lossOf("inference", {"--mode", "evaluation"}), as_exported, 1e-6 * as_exported);
  EXPECT_NE(last_output_.find("put into inference mode: 16 batch normalizations"), std::string::npos)
      << last_output_;
  const Graph written = readModel(folder_.file("inference.onnx"));
  for (const Node& node : written.nodes) {
    if (!node.is("BatchNormalization")) continue;
    EXPECT_EQ(node.intAttribute("training_mode", 0), 0) << describeNode(node);
    EXPECT_EQ(node.outputs.size(), 1U) << describeNode(node);
  }
  EXPECT_LT(written.outputs.size(), readModel(folder_.file("training.onnx")).outputs.size());
  for (const std::vector<std::string>& other : std::vector<std::vector<std::string>>{
           {"--safetensors", folder_.file("t")}, {"-o", folder_.file("t"), "--training-info"}}) {
    std::vector<std::string> line = {"export", saved, "--mode", "evaluation"};
    line.insert(line.end(), other.begin(), other.end());
    EXPECT_EQ(runPipeshard(line).exit_code, 64);
  }
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
