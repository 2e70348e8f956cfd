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

// As of a classifier of scikit-learn, whose labels need an operator of another domain.
TEST_F(Evaluation, LeavesOutOutputsWhoseOperatorsAreNotSupported) {
  const auto withLabel = [&](bool keep_prediction) {
    Graph graph = readModel(PIPESHARD_SOURCE_DIR "/examples/mlp.onnx");
    const ValueId prediction = findValue(graph, "relu_3");
    graph.opset_imports["ai.onnx.ml"] = 3;
    GraphBuilder builder(graph);
    const ValueId label = builder.addValue("label", DataType::kFloat32, {8, 32});
    builder.addNode("ai.onnx.ml", "Scaler", {prediction}, {label});
    graph.outputs = {label};
    if (keep_prediction) graph.outputs.push_back(prediction);
    std::erase(graph.inputs, findValue(graph, "y"));
    removeDeadCode(graph);
    writeModel(graph, folder_.file("label.onnx"));
    return folder_.file("label.onnx");
  };
  const std::string note =
      "note: outputs left out, as their operators are not supported: label (ai.onnx.ml::Scaler)";
  const std::string data = writeData();
  expectRuntimesNumbers(evaluate(withLabel(true), {"--cluster", "1x2"}, data));
  const CommandResult inspected =
      runPipeshard({"inspect", folder_.file("label.onnx"), "--external-data-root", "examples"});
  EXPECT_EQ(inspected.exit_code, 0) << inspected.errors;
  EXPECT_NE(inspected.output.find(note), std::string::npos) << inspected.output;
  const CommandResult validated = runPipeshard({"validate", folder_.file("plan1")});
  EXPECT_EQ(validated.exit_code, 0) << validated.errors;
  EXPECT_NE(validated.output.find(note), std::string::npos) << validated.output;
  const CommandResult refused =
      runPipeshard({"plan", withLabel(false), "--external-data-root", "examples", "--dim", "batch=8",
                    "--schedule", "forward-only", "-o", folder_.file("refused")});
  EXPECT_EQ(refused.exit_code, 65);
  EXPECT_NE(refused.errors.find("every output needs an operator that is not supported: label ("),
            std::string::npos)
      << refused.errors;
}

// y = Relu(x), and outputs that preparation computes beforehand (the shape of x, sevens of it), a constant of
// the file, and x itself. `places`: also the numbers of the rows, which a part of the batch has not.
std::string writeUnmadeOutputs(const TemporaryFolder& folder, bool places) {
  Graph graph;
  graph.name = "unmade";
  graph.opset_imports[""] = 18;
  GraphBuilder builder(graph);
  const auto rows = [&](const char* name, Shape shape, DataType type = DataType::kFloat32) {
    const ValueId id = builder.addValue(name, type, std::move(shape));
    graph.value(id).symbols.assign(graph.value(id).shape->size(), "");
    graph.value(id).symbols[0] = "batch";
    return id;
  };
  const ValueId x = rows("x", {kUnknownSize, 3}), y = rows("y", {kUnknownSize, 3});
  const ValueId size = builder.addValue("size", DataType::kInt64, {2});
  const ValueId sevens = rows("sevens", {kUnknownSize, 3});
  const ValueId anchors = builder.addConstant("anchors", makeConstant<float>({5}, {1, 2, 3, 4, 5}));
  builder.addNode("", "Relu", {x}, {y});
  builder.addNode("", "Shape", {x}, {size});
  builder.addNode("", "ConstantOfShape", {size}, {sevens}, {{"value", makeConstant<float>({1}, {7})}});
  graph.inputs = {x};
  graph.outputs = {y, size, sevens, anchors, x};
  if (places) {
    const ValueId zero = builder.addConstant("zero", makeConstant<int64_t>({}, {0}));
    const ValueId one = builder.addConstant("one", makeConstant<int64_t>({}, {1}));
    const ValueId count = builder.addValue("count", DataType::kInt64, {});
    const ValueId numbers = rows("places", {kUnknownSize}, DataType::kInt64);
    builder.addNode("", "Gather", {size, zero}, {count});
    builder.addNode("", "Range", {zero, count, one}, {numbers});
    graph.outputs.push_back(numbers);
  }
  writeModel(graph, folder.file("unmade.onnx"));
  return folder.file("unmade.onnx");
}

TEST_F(Evaluation, GivesOutputsThatNoOperatorMakes) {
  const std::string model = writeUnmadeOutputs(folder_, false), data = folder_.file("data.npz");
  std::vector<float> numbers(24 * 3);
  std::iota(numbers.begin(), numbers.end(), -9.0F);
  NpzArray x{DataType::kFloat32, {24, 3}, {}};
  x.bytes.resize(numbers.size() * sizeof(float));
  std::memcpy(x.bytes.data(), numbers.data(), x.bytes.size());
  writeNpz(data, {{"x", x}});
  const std::vector<std::vector<std::string>> plans = {
      {"--cluster", "1x1", "--microbatches", "1"},
      {"--cluster", "1x1", "--microbatches", "3"},
      {"--cluster", "1x2", "--stages", "uniform:2", "--microbatches", "2"},
      {"--cluster", "1x2", "--stages", "uniform:1", "--microbatches", "2", "--method", "data-parallel"},
  };
  for (const std::vector<std::string>& plan : plans) {
    SCOPED_TRACE(plan.back());
    const NpzFile outputs = evaluate(model, plan, data);
    ASSERT_EQ(outputs.names().size(), 5U);
    EXPECT_EQ(floatsOf(outputs.read("x")), numbers);
    EXPECT_EQ(floatsOf(outputs.read("sevens")), std::vector<float>(numbers.size(), 7));
    EXPECT_EQ(outputs.read("sevens").shape, (Shape{24, 3}));
    EXPECT_EQ(floatsOf(outputs.read("anchors")), (std::vector<float>{1, 2, 3, 4, 5}));
    const NpzArray size = outputs.read("size");  // of a batch, not of a microbatch
    EXPECT_EQ(integerElements(Constant{DataType::kInt64, {2}, size.bytes}), (std::vector<int64_t>{8, 3}));
  }
  const CommandResult validated =
      runPipeshard({"validate", model, "--dim", "batch=8", "--cluster", "1x2", "--stages", "uniform:2",
                    "--microbatches", "2", "--schedule", "forward-only", "--json", folder_.file("v.json")});
  EXPECT_EQ(validated.exit_code, 0) << validated.output << validated.errors;
  for (const char* name : {"size", "sevens", "anchors", "x"})
    EXPECT_NE(readFile(folder_.file("v.json")).find('"' + std::string(name) + '"'), std::string::npos)
        << name;
}

TEST_F(Evaluation, RefusesOutputsOfWhichAMicrobatchHasNoPart) {
  const std::string model = writeUnmadeOutputs(folder_, true);
  const auto planned = [&](const std::string& microbatches) {
    return runPipeshard({"plan", model, "--dim", "batch=8", "--cluster", "1x1", "--microbatches",
                         microbatches, "--schedule", "forward-only", "-o", folder_.file("plan")});
  };
  const CommandResult refused = planned("2");
  EXPECT_EQ(refused.exit_code, 65) << refused.output << refused.errors;
  EXPECT_NE(refused.errors.find("'places'"), std::string::npos) << refused.errors;
  EXPECT_NE(refused.errors.find("--microbatches 1"), std::string::npos) << refused.errors;
  const CommandResult whole = planned("1");
  ASSERT_EQ(whole.exit_code, 0) << whole.errors;
  ASSERT_EQ(runPipeshard({"run", folder_.file("plan"), "--steps", "1", "--outputs", folder_.file("o.npz")})
                .exit_code,
            0);
  const NpzArray places = NpzFile::open(folder_.file("o.npz")).read("places");
  EXPECT_EQ(integerElements(Constant{DataType::kInt64, {8}, places.bytes}),
            (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
}

// y = x weight, all of `type`; the weight is [[-0.5, 0.5], [1.5, 2.5]].
std::string writeHalves(const TemporaryFolder& folder, DataType type) {
  Graph graph;
  graph.name = "halves";
  graph.opset_imports[""] = 18;
  GraphBuilder builder(graph);
  const ValueId x = builder.addValue("x", type, {kUnknownSize, 2});
  const ValueId y = builder.addValue("y", type, {kUnknownSize, 2});
  for (const ValueId id : {x, y}) graph.value(id).symbols = {"batch", ""};
  Constant content{type, {2, 2}, {}};
  for (const double number : {-0.5, 0.5, 1.5, 2.5}) {
    const Constant element = makeScalar(type, number);
    content.bytes.insert(content.bytes.end(), element.bytes.begin(), element.bytes.end());
  }
  builder.addNode("", "MatMul", {x, builder.addConstant("weight", std::move(content))}, {y});
  graph.inputs = {x};
  graph.outputs = {y};
  writeModel(graph, folder.file("halves.onnx"));
  return folder.file("halves.onnx");
}

// Halves cannot be trained as they are; what is only evaluated computes in them.
TEST_F(Evaluation, ComputesInTheHalvesOfTheFile) {
  for (const DataType type : {DataType::kFloat16, DataType::kBfloat16}) {
    SCOPED_TRACE(dataTypeName(type));
    for (const char* precision : {"float32", "float64", "bfloat16"}) {
      const CommandResult validated =
          runPipeshard({"validate", writeHalves(folder_, type), "--dim", "batch=4", "--cluster", "1x2",
                        "--schedule", "forward-only", "--precision", precision});
      EXPECT_EQ(validated.exit_code, 0) << precision << validated.output << validated.errors;
    }
  }
  const std::string data = folder_.file("data.npz");
  NpzArray x{DataType::kFloat16, {8, 2}, {}};
  for (int i = 0; i < 16; ++i) {
    const Constant element = makeScalar(DataType::kFloat16, i % 4 == 0 || i % 4 == 3 ? 1 : 0);
    x.bytes.insert(x.bytes.end(), element.bytes.begin(), element.bytes.end());
  }
  writeNpz(data, {{"x", x}});
  const std::string plan = folder_.file("plan");
  const CommandResult planned =
      runPipeshard({"plan", writeHalves(folder_, DataType::kFloat16), "--dim", "batch=8", "--cluster", "1x1",
                    "--schedule", "forward-only", "-o", plan});
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  const CommandResult ran =
      runPipeshard({"run", plan, "--data", data, "--steps", "1", "--outputs", folder_.file("outputs.npz")});
  ASSERT_EQ(ran.exit_code, 0) << ran.errors;
  const NpzArray y = NpzFile::open(folder_.file("outputs.npz")).read("y");
  ASSERT_EQ(y.data_type, DataType::kFloat16);
  const std::vector<double> numbers = numericElements(Constant{y.data_type, y.shape, y.bytes});
  for (size_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(numbers[i], static_cast<double>(i % 4) - 0.5) << i;
}

// A file whose batch has a name, but is one row inside.
TEST_F(Evaluation, OfABatchOfOneRowNeedsNoOther) {
  Graph graph;
  graph.opset_imports = {{"", 18}};
  GraphBuilder builder(graph);
  const ValueId x = builder.addValue("x", DataType::kFloat32, {kUnknownSize, kWidth});
  graph.value(x).symbols = {"batch", ""};
  const ValueId y = builder.addValue("y", DataType::kFloat32, {1, 2, kWidth / 2});
  const ValueId shape = builder.addConstant("shape", makeConstant<int64_t>({3}, {1, 2, kWidth / 2}));
  builder.addNode("", "Reshape", {x, shape}, {y});
  graph.inputs = {x};
  graph.outputs = {y};
  const std::string model = folder_.file("row.onnx"), plan = folder_.file("plan");
  writeModel(graph, model);
  const CommandResult planned = runPipeshard({"plan", model, "--dim", "batch=1", "--schedule", "forward-only",
                                              "--cluster", "1x1", "--microbatches", "1", "-o", plan});
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  const CommandResult ran = runPipeshard(
      {"run", plan, "--data", writeData(), "--steps", "3", "--outputs", folder_.file("outputs.npz")});
  ASSERT_EQ(ran.exit_code, 0) << ran.errors;
  EXPECT_EQ(NpzFile::open(folder_.file("outputs.npz")).read("y").shape, (Shape{3, 2, kWidth / 2}));
  EXPECT_EQ(runPipeshard({"inspect", model}).exit_code, 0);
  const CommandResult larger =
      runPipeshard({"plan", model, "--dim", "batch=4", "--schedule", "forward-only", "-o", plan});
  EXPECT_EQ(larger.exit_code, 65);
  EXPECT_NE(larger.errors.find("batch = 4 is given"), std::string::npos) << larger.errors;
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
