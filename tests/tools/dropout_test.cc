// Models that drop, or choose classes, at random: what is drawn depends on the seed, the step and the place
// in the whole batch alone, so every plan trains the same.
#include <cmath>

#include <gtest/gtest.h>

#include "onnx_import/format/reader.h"
#include "onnx_import/format/writer.h"
#include "runtime/execute/dump.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

// The GPT-2 example with a Dropout of 0.1 behind every softmax and every normalisation: 2 + 5.
std::string writeDroppingModel(const TemporaryFolder& folder) {
  Graph graph = readModel(PIPESHARD_SOURCE_DIR "/examples/gpt2.onnx");
  GraphBuilder builder(graph);
  const ValueId ratio = builder.addConstant("ratio", makeConstant<float>({}, {0.1F}));
  const ValueId training = builder.addConstant("training", Constant{DataType::kBool, {}, {std::byte{1}}});
  std::vector<Node> nodes;
  nodes.swap(graph.nodes);
  int dropouts = 0;
  for (Node& node : nodes) {
    const bool drops = node.is("Softmax") || node.is("LayerNormalization");
    const ValueId output = node.outputs[0];
    if (drops) node.outputs[0] = builder.addValue("whole", graph.dataType(output), {});
    if (drops) graph.value(node.outputs[0]).shape.reset();
    const ValueId whole = node.outputs[0];
    graph.nodes.push_back(std::move(node));
    if (!drops) continue;
    const NodeId dropout = builder.addNode("", "Dropout", {whole, ratio, training}, {output});
    graph.node(dropout).name = "dropout_" + std::to_string(dropouts++);
  }
  EXPECT_GE(dropouts, 7);
  writeModel(graph, folder.file("gpt2.onnx"));
  return folder.file("gpt2.onnx");
}

// Rows of a table for classes that are drawn by scores x w; the loss is the mean of their squares and of the
// scores'.
std::string writeSamplingModel(const TemporaryFolder& folder) {
  Graph graph;
  graph.opset_imports = {{"", 18}};
  GraphBuilder builder(graph);
  const auto value = [&](const char* name, Shape shape, DataType type = DataType::kFloat32) {
    const ValueId id = builder.addValue(name, type, shape);
    graph.value(id).symbols.assign(shape.size(), "");
    if (!shape.empty()) graph.value(id).symbols[0] = "batch";
    return id;
  };
  const auto weight = [&](const char* name, Shape shape) {
    std::vector<float> elements(elementCount(shape));
    for (size_t i = 0; i < elements.size(); ++i) elements[i] = 0.2F * static_cast<float>(i % 7) - 0.5F;
    return builder.addConstant(name, makeConstant<float>(std::move(shape), elements));
  };
  const auto meanOfSquares = [&](const char* name, const char* square_name, ValueId x) {
    const ValueId squares = value(square_name, *graph.value(x).shape);
    builder.addNode("", "Mul", {x, x}, {squares});
    const ValueId mean = value(name, {});
    builder.addNode("", "ReduceMean", {squares}, {mean}, {{"keepdims", int64_t{0}}});
    return mean;
  };
  const ValueId x = value("x", {kUnknownSize, 6});
  const ValueId scores = value("scores", {kUnknownSize, 5});
  const ValueId classes = value("classes", {kUnknownSize, 4}, DataType::kInt64);
  const ValueId rows = value("rows", {kUnknownSize, 4, 3});
  builder.addNode("", "MatMul", {x, weight("dense.weight", {6, 5})}, {scores});
  const NodeId drawing = builder.addNode("", "Multinomial", {scores}, {classes},
                                         {{"sample_size", int64_t{4}}, {"dtype", int64_t{7}}});
  graph.node(drawing).name = "drawing";
  builder.addNode("", "Gather", {weight("table.weight", {5, 3}), classes}, {rows});
  const ValueId of_rows = meanOfSquares("of_rows", "row_squares", rows);
  const ValueId of_scores = meanOfSquares("of_scores", "score_squares", scores);
  const ValueId loss = value("loss", {});
  builder.addNode("", "Add", {of_rows, of_scores}, {loss});
  graph.inputs = {x};
  graph.outputs = {loss};
  writeModel(graph, folder.file("sampling.onnx"));
  return folder.file("sampling.onnx");
}

struct Steps {
  double first_loss = 0;
  double second_loss = 0;
  std::vector<double> gradient;  // of one weight, in the second step
};

class RandomModel : public ::testing::Test {
 protected:
  explicit RandomModel(std::string (*write)(const TemporaryFolder&)) : model_(write(folder_)) {}

  Steps run(const std::vector<std::string>& options, int ranks, const std::string& seed = "0") {
    const std::string plan = folder_.file("plan" + std::to_string(++runs_));
    std::vector<std::string> line = {"plan",  model_,    "--external-data-root", "examples",
                                     "--dim", "batch=8", "--precision",          "float64",
                                     "-o",    plan};
    line.insert(line.end(), options.begin(), options.end());
    const CommandResult planned = runPipeshard(line);
    EXPECT_EQ(planned.exit_code, 0) << planned.errors;
    const CommandResult ran =
        runPipeshard({"run", plan, "--steps", "2", "--seed", seed, "--dump", plan + ".dump"});
    EXPECT_EQ(ran.exit_code, 0) << ran.errors;
    const StepDump first = StepDump::open(plan + ".dump", 1, ranks);
    const StepDump second = StepDump::open(plan + ".dump", 2, ranks);
    Steps steps{first.read("loss").elements().at(0), second.read("loss").elements().at(0), {}};
    for (const std::string& name : second.names()) {
      if (steps.gradient.empty() && name.starts_with("parameter/"))
        steps.gradient = second.read(name).elements();
    }
    return steps;
  }

  const TemporaryFolder folder_;
  const std::string model_;
  int runs_ = 0;
};

class Dropping : public RandomModel {
 protected:
  Dropping() : RandomModel(writeDroppingModel) {}
};

class Sampling : public RandomModel {
 protected:
  Sampling() : RandomModel(writeSamplingModel) {}
};

void expectClose(const Steps& got, const Steps& want, double bound) {
  EXPECT_NEAR(got.first_loss, want.first_loss, bound);
  EXPECT_NEAR(got.second_loss, want.second_loss, bound);
  ASSERT_EQ(got.gradient.size(), want.gradient.size());
  for (size_t i = 0; i < got.gradient.size(); ++i)
    ASSERT_NEAR(got.gradient[i], want.gradient[i], bound) << "element " << i;
}

TEST_F(Dropping, TrainsTheSameWhateverThePlan) {
  const Steps alone = run({"--cluster", "1x1", "--microbatches", "4"}, 1);
  const std::vector<std::vector<std::string>> stages = {
      {"--cluster", "1x2"},
      {"--cluster", "1x4"},
      {"--cluster", "1x4", "--schedule", "gpipe"},
      {"--cluster", "1x4", "--schedule", "zb-h1"},
      {"--cluster", "1x4", "--recompute", "always"},
      {"--cluster", "1x2", "--stages", "uniform:4", "--schedule", "interleaved:v=2"},
  };
  for (std::vector<std::string> options : stages) {
    SCOPED_TRACE(options.back());
    const int ranks = options[1] == "1x2" ? 2 : 4;
    options.insert(options.end(), {"--microbatches", "4"});
    const Steps got = run(options, ranks);
    EXPECT_EQ(got.first_loss, alone.first_loss);
    EXPECT_EQ(got.second_loss, alone.second_loss);
    expectClose(got, alone, 1e-12);
  }
  // Sums over rows that devices share are made in another order.
  expectClose(run({"--cluster", "1x4", "--stage-devices", "2,2", "--microbatches", "4"}, 4), alone, 1e-12);
  expectClose(
      run({"--cluster", "1x4", "--stages", "uniform:1", "--method", "auto", "--microbatches", "4"}, 4), alone,
      1e-12);
}

TEST_F(Dropping, TrainsTheSameWhateverTheNumberOfMicrobatches) {
  const Steps whole = run({"--cluster", "1x1", "--microbatches", "1"}, 1);
  expectClose(run({"--cluster", "1x1", "--microbatches", "4"}, 1), whole, 1e-12);
  expectClose(run({"--cluster", "1x1", "--microbatches", "3"}, 1), whole, 1e-12);
  EXPECT_GT(std::abs(whole.second_loss - whole.first_loss), 1e-6);
  const Steps other = run({"--cluster", "1x1", "--microbatches", "1"}, 1, "1");
  EXPECT_GT(std::abs(other.first_loss - whole.first_loss), 1e-6);
}

TEST_F(Sampling, TrainsTheSameWhateverThePlanAndTheNumberOfMicrobatches) {
  const Steps whole = run({"--cluster", "1x1", "--microbatches", "1"}, 1);
  expectClose(run({"--cluster", "1x1", "--microbatches", "4"}, 1), whole, 1e-12);
  expectClose(run({"--cluster", "1x1", "--microbatches", "3"}, 1), whole, 1e-12);
  expectClose(run({"--cluster", "1x2", "--microbatches", "4"}, 2), whole, 1e-12);
  expectClose(
      run({"--cluster", "1x2", "--stages", "uniform:1", "--method", "data-parallel", "--microbatches", "2"},
          2),
      whole, 1e-12);
  EXPECT_GT(std::abs(whole.second_loss - whole.first_loss), 1e-6);
  const Steps other = run({"--cluster", "1x1", "--microbatches", "1"}, 1, "1");
  EXPECT_GT(std::abs(other.first_loss - whole.first_loss), 1e-6);
}

TEST_F(Dropping, IsWhatValidateCompares) {
  const CommandResult result = runPipeshard({"validate", model_, "--external-data-root", "examples",
                                             "--cluster", "1x4", "--dim", "batch=8", "--microbatches", "4"});
  EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
}

}  // namespace
}  // namespace pipeshard
