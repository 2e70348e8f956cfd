// Files whose batch has a fixed size, as exporters write them where nobody names dynamic shapes: each
// microbatch is one such batch.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "onnx_import/format/reader.h"
#include "onnx_import/format/writer.h"
#include "runtime/files/npz.h"
#include "tests/onnx_import/model_files.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

constexpr int64_t kFixed = 8;
const std::string kDynamic = "examples/mlp.onnx";

class FixedBatch : public ::testing::Test {
 protected:
  void SetUp() override {
    makeFixed(PIPESHARD_SOURCE_DIR "/" + kDynamic);
    std::filesystem::copy_file(PIPESHARD_SOURCE_DIR "/examples/mlp.onnx.data", folder_.file("mlp.onnx.data"));
    writeData("data.npz", 72);
  }

  void makeFixed(const std::string& dynamic) const {
    Graph graph = readModel(dynamic);
    for (const ValueId input : graph.inputs) {
      graph.value(input).shape->front() = kFixed;
      graph.value(input).symbols.clear();
    }
    graph.model_metadata.clear();  // the size that the example has for its batch
    writeModel(graph, model_);
  }

  void writeData(const std::string& name, int64_t rows) const {
    std::vector<float> numbers(rows * 32);
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = std::sin(static_cast<float>(i));
    NpzArray array{DataType::kFloat32, {rows, 32}, std::vector<std::byte>(numbers.size() * 4)};
    std::memcpy(array.bytes.data(), numbers.data(), array.bytes.size());
    writeNpz(folder_.file(name), {{"x", array}, {"y", array}});
  }

  CommandResult plan(const std::string& model, const Words& words) const {
    Words line = {"plan", model, "--cluster", "1x2", "-o", folder_.file("plan")};
    const bool trains = std::find(words.begin(), words.end(), "forward-only") == words.end();
    if (trains) line.insert(line.end(), {"--optimizer", "sgd:lr=0.1"});
    line.insert(line.end(), words.begin(), words.end());
    return runPipeshard(line);
  }
  CommandResult run(const Words& words) const {
    Words line = {"run", folder_.file("plan"), "--json", folder_.file("run.json")};
    line.insert(line.end(), words.begin(), words.end());
    return runPipeshard(line);
  }
  std::vector<double> losses(const std::string& model, const Words& words, int steps) const {
    const CommandResult planned = plan(model, words);
    EXPECT_EQ(planned.exit_code, 0) << planned.errors;
    const CommandResult ran = run({"--data", folder_.file("data.npz"), "--steps", std::to_string(steps)});
    EXPECT_EQ(ran.exit_code, 0) << ran.errors;
    const auto report = nlohmann::json::parse(readFile(folder_.file("run.json")));
    std::vector<double> losses;
    for (const auto& step : report.at("steps")) losses.push_back(step.at("loss"));
    return losses;
  }
  std::string heldOut(int64_t rows) const {
    writeData("held_out.npz", rows);
    const CommandResult result =
        run({"--data", folder_.file("data.npz"), "--steps", "1", "--eval", folder_.file("held_out.npz")});
    return result.exit_code == 0 ? result.output + result.errors : result.errors;
  }

  const TemporaryFolder folder_;
  const std::string model_ = folder_.file("fixed.onnx");
};

TEST_F(FixedBatch, TrainsAsTheSameModelWithADynamicBatch) {
  for (const Words& words :
       {Words{"--microbatches", "3"}, Words{"--microbatches", "3", "--schedule", "gpipe"},
        Words{"--stages", "uniform:1", "--method", "zero2", "--microbatches", "3"},
        Words{"--accumulate", "3"}, Words{"--dim", "batch=24"},
        Words{"--stages", "auto", "--dim", "batch=24"}, Words{"--stages", "auto", "--accumulate", "3"}}) {
    const std::vector<double> fixed = losses(model_, words, 6);
    const std::vector<double> dynamic =
        losses(kDynamic, {"--dim", "batch=24", "--microbatches", "3", "--stages", "uniform:2"}, 6);
    ASSERT_EQ(fixed.size(), 6u) << words.back();
    ASSERT_EQ(dynamic.size(), 6u);
    for (size_t step = 0; step < fixed.size(); ++step)
      EXPECT_NEAR(fixed[step], dynamic[step], 1e-6 * dynamic[step]) << words.back() << " step " << step;
  }
}

// Masks belong to places of the whole batch.
TEST_F(FixedBatch, DropsWhatTheSameModelWithADynamicBatchDrops) {
  const std::string with_dropout = PIPESHARD_SOURCE_DIR "/tests/golden/traps/dropout.onnx";
  makeFixed(with_dropout);
  const auto loss = [&](const std::string& model, const Words& words) {
    Words line = {"run",    folder_.file("plan"),    "--steps", "2", "--seed", "7",
                  "--json", folder_.file("run.json")};
    EXPECT_EQ(plan(model, words).exit_code, 0);
    EXPECT_EQ(runPipeshard(line).exit_code, 0);
    return nlohmann::json::parse(readFile(folder_.file("run.json")))
        .at("steps")
        .at(1)
        .at("loss")
        .get<double>();
  };
  const double fixed = loss(model_, {"--microbatches", "3"});
  EXPECT_NEAR(fixed, loss(with_dropout, {"--dim", "batch=24", "--microbatches", "3"}), 1e-6 * fixed);
}

TEST_F(FixedBatch, TakesABatchAtATimeFromData) {
  const std::vector<double> twice = losses(model_, {}, 18);  // of nine batches
  ASSERT_EQ(twice.size(), 18u);
  EXPECT_LT(twice[9], twice[0]);
  EXPECT_THAT(
      plan(model_, {}).output,
      HasSubstr("the batch of the file has a fixed size of 8 examples: one microbatch, so that stages take "
                "turns (--microbatches N takes N such batches in a step)"));
}

TEST_F(FixedBatch, EqualsOneDevice) {
  for (const char* schedule : {"1f1b", "zb-h1", "interleaved:v=2"}) {
    const CommandResult result =
        runPipeshard({"validate", model_, "--cluster", "1x2", "--microbatches", "4", "--schedule", schedule});
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_THAT(result.output,
                HasSubstr("a step takes 4 such batches, one per microbatch, and the mean of their"));
  }
}

TEST_F(FixedBatch, LeavesOutWhatFillsNoBatch) {
  writeData("data.npz", 70);
  const CommandResult planned = plan(model_, {"--microbatches", "3", "--data", folder_.file("data.npz")});
  EXPECT_THAT(planned.output, HasSubstr("the last 22 examples of"));
  EXPECT_EQ(run({"--data", folder_.file("data.npz"), "--epochs", "1"}).exit_code, 78);
  EXPECT_EQ(run({"--data", folder_.file("data.npz"), "--epochs", "1", "--drop-last"}).exit_code, 0);
  const CommandResult refused = plan(model_, {"--last-batch", "3"});
  EXPECT_EQ(refused.exit_code, 64);
  EXPECT_THAT(refused.errors, HasSubstr("so it takes no shorter batch"));
}

TEST_F(FixedBatch, IsEvaluatedInWholeBatches) {
  ASSERT_EQ(plan(model_, {"--microbatches", "3"}).exit_code, 0);
  EXPECT_THAT(heldOut(48), HasSubstr("48 examples in 2 batches"));
  EXPECT_THAT(heldOut(40), HasSubstr("40 examples in 2 batches"));  // 24 and 16
  EXPECT_THAT(heldOut(8), HasSubstr("8 examples in 1 batch,"));
  EXPECT_THAT(heldOut(50),
              HasSubstr("the last 2 examples that the plan's devices cannot share are left out"));
  EXPECT_THAT(heldOut(5), HasSubstr("(the file takes 8 at a time)"));
}

TEST_F(FixedBatch, HasAWholeNumberOfTheFilesBatches) {
  for (const Words& words : {Words{"--dim", "batch=20"}, Words{"--dim", "batch=24", "--microbatches", "2"}}) {
    const CommandResult result = plan(model_, words);
    EXPECT_EQ(result.exit_code, 78);
    EXPECT_THAT(result.errors, HasSubstr("does not fit: the batch of the file has a fixed size of 8"));
  }
}

// Rows and columns of a product of all with all: a loss of twice the examples is no mean of two losses.
TEST_F(FixedBatch, IsTheWholeBatchWhereExamplesMeet) {
  std::string numbers = "1";
  for (int i = 1; i < 32; ++i) numbers += ",1";
  writeModel(testing::graphFromText("<ir_version: 10, opset_import: [\"\" : 18]> "
                                    "g (float[8,32] x) => (float loss) <float[32] w = {" +
                                    numbers +
                                    "}> { h = Mul(x, w) t = Transpose(h) m = MatMul(h, t) "
                                    "loss = ReduceMean <keepdims = 0> (m) }"),
             model_);
  const auto plan = [&](const Words& words) {
    Words line = {"plan", model_, "--cluster", "1x1", "-o", folder_.file("plan")};
    line.insert(line.end(), words.begin(), words.end());
    return runPipeshard(line);
  };
  const CommandResult refused = plan({"--dim", "batch=24"});
  EXPECT_EQ(refused.exit_code, 65) << refused.output;
  EXPECT_THAT(refused.errors,
              AllOf(HasSubstr("--dim asks for the loss of 24 examples"), HasSubstr("(onnx::MatMul)"),
                    HasSubstr("--microbatches 3 without --dim")));
  EXPECT_EQ(plan({"--dim", "batch=8"}).exit_code, 0);
  const CommandResult several = plan({"--microbatches", "3"});
  EXPECT_EQ(several.exit_code, 0) << several.errors;
  EXPECT_THAT(several.output, HasSubstr("examples meet in a batch of the file, not beyond it"));
}

// What this one size does not tell is no reason to refuse: two rows under two more, as in attention with the
// batch on axis 1.
TEST_F(FixedBatch, IsTakenWithAWordWhereItDoesNotTellWhetherExamplesMeet) {
  writeModel(testing::graphFromText("<ir_version: 10, opset_import: [\"\" : 18]> "
                                    "g (float[8,2,3] x) => (float loss) <float[3] w = {1,2,3}, "
                                    "int64[2] rows = {16,3}> { "
                                    "t = Transpose <perm = [1,0,2]> (x) m = Reshape(t, rows) h = Mul(m, w) "
                                    "q = Mul(h, h) loss = ReduceMean <keepdims = 0> (q) }"),
             model_);
  const CommandResult result =
      runPipeshard({"plan", model_, "--cluster", "1x1", "--dim", "batch=24", "-o", folder_.file("plan")});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(result.output, HasSubstr("does not show whether examples meet"));
}

// Random numbers are the same for no two examples, but let none meet.
TEST_F(FixedBatch, MayHaveDropout) {
  makeFixed(PIPESHARD_SOURCE_DIR "/tests/golden/traps/dropout.onnx");
  const CommandResult result = plan(model_, {"--dim", "batch=24"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(result.output, Not(HasSubstr("does not show whether")));
}

// `make` computes "loss" of h, float[8,3], and the mean of the squares of h, float[8], by examples.
class LossOfAFixedBatch : public FixedBatch {
 protected:
  CommandResult planned(const std::string& make, const Words& words, const std::string& outputs = "") const {
    writeModel(testing::graphFromText(
                   "<ir_version: 10, opset_import: [\"\" : 18]> g (float[8,3] x, float[8] mask) => (" +
                   (outputs.empty() ? "float loss" : outputs) +
                   ") <float[3] w = {1,2,3}, int64[1] last = {1}, float eighth = {0.125}, float half = "
                   "{0.5}> { h = Mul(x, w) s = Mul(h, h) e = ReduceMean <keepdims = 0> (s, last) " +
                   make + " }"),
               model_);
    Words line = {"plan", model_, "--cluster", "1x1", "-o", folder_.file("plan")};
    line.insert(line.end(), words.begin(), words.end());
    return runPipeshard(line);
  }
};

// Of several batches it is the mean of quotients.
TEST_F(LossOfAFixedBatch, MayBeAQuotientOfSums) {
  const std::string by_mask =
      "t = Mul(e, mask) n = ReduceSum <keepdims = 0> (t) d = ReduceSum <keepdims = 0> (mask) loss = Div(n, "
      "d)";
  for (const Words& words : {Words{"--dim", "batch=24"}, Words{"--microbatches", "3"}}) {
    const CommandResult result = planned(by_mask, words);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_THAT(result.output, HasSubstr("the loss reads 'd', a sum over the batch"));
  }
  EXPECT_THAT(planned(by_mask, {}).output, Not(HasSubstr("a sum over the batch")));
}

TEST_F(LossOfAFixedBatch, MayBeAPlainSum) {
  const Words words = {"--dim", "batch=24"};
  for (const char* sum :
       {"loss = ReduceSum <keepdims = 0> (e)", "n = ReduceSum <keepdims = 0> (e) loss = Mul(n, half)",
        "m = ReduceMean <keepdims = 0> (e) n = ReduceSum <keepdims = 0> (s) loss = Add(m, n)"}) {
    const CommandResult result = planned(sum, words);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_THAT(result.output, HasSubstr("the loss is a sum over the batch, or has one")) << sum;
  }
  for (const char* mean :
       {"loss = ReduceMean <keepdims = 0> (e)", "n = ReduceSum <keepdims = 0> (e) loss = Mul(n, eighth)"}) {
    const CommandResult result = planned(mean, words);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_THAT(result.output, Not(HasSubstr("a sum over the batch"))) << mean;
  }
}

// The root of a mean (RMSE) is not linear in what batches give.
TEST_F(LossOfAFixedBatch, IsNoMeanBehindARoot) {
  const std::string root = "m = ReduceMean <keepdims = 0> (e) loss = Sqrt(m)";
  const CommandResult refused = planned(root, {"--dim", "batch=24"});
  EXPECT_EQ(refused.exit_code, 65) << refused.output;
  EXPECT_THAT(refused.errors,
              AllOf(HasSubstr("--dim asks for the loss of 24 examples"), HasSubstr("it is not linear in")));
  EXPECT_EQ(planned(root, {"--microbatches", "3"}).exit_code, 0);
}

TEST_F(LossOfAFixedBatch, IsNotAskedForWhereOutputsAloneAreWanted) {
  const CommandResult result =
      planned("t = Transpose(h) similarities = MatMul(h, t)",
              {"--dim", "batch=24", "--schedule", "forward-only"}, "float[8,8] similarities");
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(result.output,
              HasSubstr("outputs are those of each batch of the file, in which examples meet"));
}

// A group of channels may be one example's (StyleGAN2's convolutions with a kernel for each).
TEST_F(LossOfAFixedBatch, IsNotToldWhereExamplesAreGroupsOfAConvolution) {
  const CommandResult result = planned(
      "rows = Constant <value_ints = [1,8,3]> () one = Constant <value_ints = [8,1,1]> () "
      "c = Reshape(h, rows) k = Reshape(e, one) v = Conv <group = 8> (c, k) q = Mul(v, v) "
      "loss = ReduceMean <keepdims = 0> (q)",
      {"--dim", "batch=24"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(result.output, HasSubstr("does not show whether examples meet"));
}

TEST_F(FixedBatch, IsInspectedAsItIsPlanned) {
  const CommandResult result = runPipeshard({"inspect", model_, "--dim", "batch=24"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(result.output, HasSubstr("a step takes 3 such batches"));
}

TEST_F(FixedBatch, IsNotSharedByDataParallelStages) {
  const CommandResult result = plan(model_, {"--stages", "uniform:1", "--microbatches", "2"});
  EXPECT_EQ(result.exit_code, 78);
  EXPECT_THAT(result.errors, HasSubstr("or stages that a --method shards"));
}

TEST_F(FixedBatch, GivesItsOutputsInTheOrderOfTheData) {
  const auto outputs = [&](const std::string& model, const Words& words) {
    const CommandResult planned = plan(model, words);
    EXPECT_EQ(planned.exit_code, 0) << planned.errors;
    const CommandResult result =
        run({"--data", folder_.file("data.npz"), "--steps", "3", "--outputs", folder_.file("outputs.npz")});
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    const NpzFile file = NpzFile::open(folder_.file("outputs.npz"));
    return file.read(file.names().at(0));
  };
  Graph graph = readModel(PIPESHARD_SOURCE_DIR "/" + kDynamic);
  ValueId product;  // the last one
  for (const Node& node : graph.nodes) {
    if (node.is("Gemm") || node.is("MatMul")) product = node.outputs[0];
  }
  ASSERT_TRUE(product.valid());
  graph.outputs = {product};
  writeModel(graph, folder_.file("dynamic.onnx"));
  makeFixed(folder_.file("dynamic.onnx"));
  const NpzArray fixed = outputs(model_, {"--microbatches", "3", "--schedule", "forward-only"});
  const NpzArray dynamic = outputs(folder_.file("dynamic.onnx"), {"--dim", "batch=24", "--microbatches", "3",
                                                                  "--schedule", "forward-only"});
  EXPECT_EQ(fixed.shape.at(0), 72);
  EXPECT_EQ(fixed.shape, dynamic.shape);
  EXPECT_EQ(fixed.bytes, dynamic.bytes);
}

// What stays while others go on would be paired with what does not belong to it.
TEST_F(FixedBatch, IsNoneWhereInputsHaveOtherNumbersOfExamples) {
  Graph graph = readModel(model_);
  graph.value(graph.inputs.at(1)).shape->front() = 1;  // broadcast to the other
  writeModel(graph, model_);
  for (const char* option : {"--microbatches", "--accumulate"}) {
    const CommandResult result = plan(model_, {option, "3"});
    EXPECT_EQ(result.exit_code, 78) << result.output;
    EXPECT_THAT(result.errors, HasSubstr("do not all have the same number of examples on axis 0"));
  }
  EXPECT_EQ(plan(model_, {}).exit_code, 0);
  EXPECT_EQ(run({"--data", folder_.file("data.npz"), "--steps", "1"}).exit_code, 78);
}

}  // namespace
}  // namespace pipeshard
