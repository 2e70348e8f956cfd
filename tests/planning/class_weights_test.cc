// A buffer that the file does not mark, the class weights of a loss: no gradient reaches it, so the batch is
// cut as if it were a constant. The reference is the whole batch, row by row, as
// torch.nn.functional.cross_entropy defines the weighted mean.
#include <array>
#include <cmath>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "onnx_import/format/reader.h"
#include "tests/onnx_import/model_files.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using testing::elementsOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kModel = R"(<ir_version: 8, opset_import: ["": 17]>
  g (float[N, 2] x, int64[N] label) => (float loss)
    <float[2, 3] dense = {0.5, -0.25, 0.125, -0.5, 0.25, 1}, float[3] classes = {1, 4, 0.5}> {
    scores = MatMul(x, dense)
    loss = SoftmaxCrossEntropyLoss <reduction = "mean"> (scores, label, classes)
  })";

struct Row {
  std::array<double, 2> x;
  int label;
};
constexpr Row kRows[] = {{{0.5, -1}, 0}, {{1, 0.25}, 1},  {{-0.75, 0.5}, 2},
                         {{2, 1}, 1},    {{-1, -0.5}, 2}, {{0.25, 0.75}, 0}};
constexpr std::array<double, 3> kClasses = {1, 4, 0.5};
constexpr double kRate = 0.5;
using Matrix = std::array<std::array<double, 3>, 2>;
constexpr Matrix kDense = {{{0.5, -0.25, 0.125}, {-0.5, 0.25, 1}}};

struct Step {
  double loss = 0;
  Matrix gradient = {};
};

// Sums of w[label] -log p[label], divided by the sum of w[label].
Step stepOf(const Matrix& dense) {
  Step step;
  double divisor = 0;
  for (const Row& row : kRows) divisor += kClasses[row.label];
  for (const Row& row : kRows) {
    std::array<double, 3> powers = {};
    double all = 0;
    for (int c = 0; c < 3; ++c) all += powers[c] = std::exp(row.x[0] * dense[0][c] + row.x[1] * dense[1][c]);
    const double weight = kClasses[row.label] / divisor;
    step.loss -= weight * std::log(powers[row.label] / all);
    for (int c = 0; c < 3; ++c) {
      const double wrong = powers[c] / all - (c == row.label ? 1 : 0);
      for (int i = 0; i < 2; ++i) step.gradient[i][c] += weight * row.x[i] * wrong;
    }
  }
  return step;
}

class ClassWeights : public ::testing::Test {
 protected:
  std::string at(const std::string& name) const { return folder_.file(name); }
  std::string writeData() const {
    std::string text = "x[0],x[1],label\n";
    for (const Row& row : kRows) text += fmt::format("{},{},{}\n", row.x[0], row.x[1], row.label);
    return folder_.write("rows.csv", text);
  }
  CommandResult plan(const std::vector<std::string>& more) const {
    const std::string model = folder_.write("m.onnx", testing::parseText(kModel));
    std::vector<std::string> words = {"plan", model,         "--loss",     "loss", "--dim",
                                      "N=6",  "--optimizer", "sgd:lr=0.5", "-o",   at("plan")};
    words.insert(words.end(), more.begin(), more.end());
    return runPipeshard(words);
  }

  testing::ModelFolder folder_;
};

TEST_F(ClassWeights, OfTheWholeBatchDivideTheLossOfEveryMicrobatch) {
  const std::string data = writeData();
  const Step first = stepOf(kDense);
  Matrix trained = kDense;
  for (int i = 0; i < 2; ++i) {
    for (int c = 0; c < 3; ++c) trained[i][c] -= kRate * first.gradient[i][c];
  }
  for (const char* microbatches : {"1", "2", "4"}) {  // four: of one and of two rows
    SCOPED_TRACE(microbatches);
    const CommandResult planned = plan({"--cluster", "1x1", "--microbatches", microbatches});
    ASSERT_EQ(planned.exit_code, 0) << planned.errors;
    const CommandResult ran = runPipeshard({"run", at("plan"), "--data", data, "--eval", data, "--steps", "1",
                                            "--checkpoint", at("saved"), "--log", at("log")});
    ASSERT_EQ(ran.exit_code, 0) << ran.errors;
    ASSERT_EQ(runPipeshard({"export", at("saved"), "-o", at("out.onnx")}).exit_code, 0);
    const Graph graph = readModel(at("out.onnx"));
    const std::vector<double> dense = elementsOf(graph, "dense");
    ASSERT_EQ(dense.size(), 6u);
    for (int i = 0; i < 6; ++i) EXPECT_NEAR(dense[i], trained[i / 3][i % 3], 1e-6) << i;
    EXPECT_EQ(elementsOf(graph, "classes"), (std::vector<double>{1, 4, 0.5}));
    const auto loss = [&](const char* name) {
      const std::string text = readFile(at("log") + "/" + name);
      return nlohmann::json::parse(text.substr(0, text.find('\n'))).at("loss").get<double>();
    };
    EXPECT_NEAR(loss("steps.jsonl"), first.loss, 1e-6);
    EXPECT_NEAR(loss("evaluations.jsonl"), stepOf(trained).loss, 1e-6);
    for (const char* name : {"plan", "saved", "log"}) std::filesystem::remove_all(at(name));
  }
}

TEST_F(ClassWeights, MicrobatchesAreChosenAndDevicesShareRows) {
  const CommandResult planned =
      plan({"--cluster", "1x2", "--stages", "uniform:1", "--method", "data-parallel"});
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  EXPECT_THAT(planned.output + planned.errors, Not(HasSubstr("is not cut along the batch")));
  EXPECT_THAT(planned.output + planned.errors,
              HasSubstr("no gradient of the loss reaches these parameters, which stay as they are: classes"));
  const CommandResult compared = runPipeshard({"validate", at("plan")});
  EXPECT_EQ(compared.exit_code, 0) << compared.output << compared.errors;
  const CommandResult seen = runPipeshard({"inspect", at("m.onnx")});
  EXPECT_EQ(seen.exit_code, 0) << seen.errors;
  EXPECT_THAT(seen.output, HasSubstr("microbatches: the batch (N) can be cut"));
}

// As the TorchScript exporter writes BCEWithLogitsLoss(pos_weight=..); a mask; a tensor by a name of its own.
constexpr const char* kBinary = R"(<ir_version: 8, opset_import: ["": 17], producer_name: "pytorch">
  g (float[N, 2] x, float[N, 2] y) => (float loss)
    <float[2, 2] weight = {0.5, -0.25, 0.125, -0.5}, float[2] pos_weight = {2, 5},
     float[2] keep = {0, 1}, float[2] grid = {0.5, 3}, float[1] one = {1}> {
    h = Mul(x, keep)
    logits = MatMul(h, weight)
    moved = Add(logits, grid)
    p = Sigmoid(moved)
    log_p = Log(p)
    q = Sub(one, p)
    untrue = Sub(one, y)
    log_q = Log(q)
    hit = Mul(y, log_p)
    weighed = Mul(hit, pos_weight)
    miss = Mul(untrue, log_q)
    sum = Add(weighed, miss)
    negative = Neg(sum)
    loss = ReduceMean <keepdims = 0> (negative)
  })";

TEST(UnmarkedBuffers, OfALossAreNotTrainedAndOthersAreNamed) {
  const testing::ModelFolder folder;
  const std::string model = folder.write("m.onnx", testing::parseText(kBinary));
  const auto planned = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {
        "plan",        model,       "--loss", "loss", "--dim",
        "N=4",         "--cluster", "1x1",    "-o",   folder.file(fmt::format("plan{}", more.size())),
        "--optimizer", "sgd:lr=0.1"};
    words.insert(words.end(), more.begin(), more.end());
    const CommandResult result = runPipeshard(words);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    return result.output + result.errors;
  };
  const std::string plan = planned({});
  EXPECT_THAT(plan, HasSubstr("trains 6 of 6 parameters in 2 tensors"));
  EXPECT_THAT(plan, HasSubstr("taken for constants, not trained: pos_weight, keep"));
  EXPECT_THAT(plan, HasSubstr("parameters or buffers; they are trained: grid (--freeze"));
  EXPECT_THAT(planned({"--train", "pos_weight", "--freeze", "grid"}),
              HasSubstr("trains 6 of 8 parameters in 2 tensors"));
}

// Weights of a loss that is written out, by a name that layers have, too: of a square they are taken for
// constants; of another, where nothing tells what it is, they are trained and named. A scale of activations
// is neither.
TEST(UnmarkedBuffers, ThatOnlyWeighALossAreNoLayersWeights) {
  const auto notesOf = [](const std::string& losses) {
    const testing::ModelFolder folder;
    const std::string text = fmt::format(
        R"(<ir_version: 8, opset_import: ["": 17], producer_name: "pytorch">
  g (float[N, 2] x, float[N, 3] y) => (float loss)
    <float[2, 3] fc = {{0.5, -0.25, 0.125, -0.5, 0.25, 1}}, float[2] norm_weight = {{0.5, 2}},
     float[3] weight = {{1, 4, 0.5}}, float two = {{2}}> {{
    h = Mul(x, norm_weight)
    logits = MatMul(h, fc)
    {}
  }})",
        losses);
    const std::string model = folder.write("m.onnx", testing::parseText(text.c_str()));
    const CommandResult result =
        runPipeshard({"plan", model, "--loss", "loss", "--dim", "N=4", "--cluster", "1x1", "--optimizer",
                      "sgd:lr=0.1", "-o", folder.file("plan")});
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    return result.output + result.errors;
  };
  const std::string square = notesOf(R"(d = Sub(logits, y)
    e = Pow(d, two)
    w = Mul(weight, e)
    loss = ReduceMean <keepdims = 0> (w))");
  EXPECT_THAT(square, HasSubstr("taken for constants, not trained: weight (--train"));
  const std::string written_out = notesOf(R"(p = LogSoftmax(logits)
    e = Mul(y, p)
    w = Mul(weight, e)
    sum = ReduceSum <keepdims = 0> (w)
    negative = Neg(sum)
    all = ReduceSum <keepdims = 0> (weight)
    loss = Div(negative, all))");
  EXPECT_THAT(written_out, Not(HasSubstr("taken for constants, not trained: weight")));
  EXPECT_THAT(written_out, HasSubstr("as the class weights of a loss do: weight (--freeze"));
}

}  // namespace
}  // namespace pipeshard
