// The losses of --loss: numbers of PyTorch 2.15 in float64, and gradients against differences.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "onnx_import/loss/loss.h"
#include "onnx_import/prepare/inference.h"
#include "onnx_import/prepare/prepare.h"
#include "tests/onnx_import/autodiff/gradient_check.h"
#include "tests/onnx_import/model_files.h"

namespace pipeshard::testing {
namespace {

const std::vector<double> kScores = {0.5, -1.25, 2.0, 1.5, 0.25, -0.75, -2.0, 0.125, 3.0, 0.1, 0.2, 0.3};
const std::vector<double> kTargets = {0, 1, 0.5, 1, 0, 0.25, 1, 1, 0, 0, 0.75, 1};

// y = f(x) for a trained x, and inputs "labels" and "t". The loss, checked.
double lossOf(const std::string& text, const char* function = "") {
  TestGraph test;
  ValueId y = test.parameter("x", makeTensor({4, 3}, kScores));
  if (*function != 0) {
    y = std::string(function) == "LogSoftmax" ? test.op(function, {y}, {{"axis", int64_t{1}}})
                                              : test.op(function, {y});
  } else {
    y = test.op("Identity", {y});
  }
  test.graph().value(y).name = "y";
  test.input("t", makeTensor({4, 3}, kTargets));
  test.input("labels", makeConstant<int64_t>({4}, {2, 0, -100, 1}));
  const ValueId loss = attachLoss(test.graph(), parseLoss(text));
  inferShapes(test.graph());
  const std::string name = test.graph().value(loss).name;
  checkLossGradients(test, loss);
  return elementsOf(Interpreter(test.graph()).run(test.contents()).at(name)).at(0);
}

TEST(LossValues, AreThoseOfPyTorch) {
  EXPECT_NEAR(lossOf("cross-entropy:y,labels"), 0.5550791469128336, 1e-14);
  EXPECT_NEAR(lossOf("cross-entropy:y,labels,smoothing=0.1"), 0.6467458135795002, 1e-14);
  EXPECT_NEAR(lossOf("cross-entropy:y,labels,axis=1"), 0.5550791469128336, 1e-14);
  EXPECT_NEAR(lossOf("nll:y,labels", "LogSoftmax"), 0.5550791469128336, 1e-14);
  EXPECT_NEAR(lossOf("bce:y,t", "Sigmoid"), 1.0799719127002103, 1e-14);
  EXPECT_NEAR(lossOf("bce-with-logits:y,t"), 1.0799719127002103, 1e-14);
  EXPECT_NEAR(lossOf("mse:y,t"), 2.3702604166666665, 1e-14);
  EXPECT_NEAR(lossOf("l1:y,t"), 1.1854166666666666, 1e-14);
  EXPECT_NEAR(lossOf("smooth-l1:y,t"), 0.7762760416666666, 1e-14);
}

TEST(LossValues, AddUp) {
  EXPECT_NEAR(lossOf("cross-entropy:y,labels+0.5*mse:y,t"), 0.5550791469128336 + 0.5 * 2.3702604166666665,
              1e-14);
}

// Of a file of that opset, whose scores y are such numbers in [4,3,2,2], and labels beside them.
double lossOfOpset(int opset, const std::string& text) {
  const std::string header = "<ir_version: 10, opset_import: [\"\" : " + std::to_string(opset) + "]> ";
  Graph graph = graphFromText(
      header + "g (float[4,3,2,2] x, int64[4,2,2] labels) => (float[4,3,2,2] y) { y = Neg(x) }");
  const ValueId loss = attachLoss(graph, parseLoss(text));
  graph.outputs = {loss};
  const std::string name = graph.value(loss).name;
  const Graph prepared = prepareModel(std::move(graph), {});
  std::vector<float> scores(48);
  std::vector<int64_t> labels(16);
  for (size_t i = 0; i < scores.size(); ++i) scores[i] = static_cast<float>(kScores[(i * 5) % 12]) + 0.1F * i;
  for (size_t i = 0; i < labels.size(); ++i) labels[i] = i == 3 ? -100 : static_cast<int64_t>(i % 3);
  const Tensors inputs = {{"x", makeConstant<float>({4, 3, 2, 2}, scores)},
                          {"labels", makeConstant<int64_t>({4, 2, 2}, labels)}};
  return elementsOf(Interpreter(prepared).run(inputs).at(name)).at(0);
}

// Operators have other meanings in older opsets (LogSoftmax before 13), other forms (ReduceMean before 18),
// or are not there yet (NegativeLogLikelihoodLoss before 12).
TEST(LossValues, AreTheSameInEveryOpsetOfTheFile) {
  for (const char* text :
       {"cross-entropy:y,labels", "cross-entropy:y,labels,smoothing=0.1", "nll:y,labels", "l1:y,x",
        "bce-with-logits:y,x", "smooth-l1:y,x", "mse:y,x+0.5*cross-entropy:y,labels,smoothing=0.2"}) {
    const double expected = lossOfOpset(20, text);
    for (const int opset : {7, 9, 11, 12, 13, 15, 16, 17, 18, 19})
      EXPECT_NEAR(lossOfOpset(opset, text), expected, 1e-5 * std::abs(expected)) << text << " in " << opset;
  }
}

// So that batches can be weighted by it: `run --eval`.
TEST(LossValues, ASmoothedOneIsOneQuotient) {
  Graph graph = graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[batch,3] x) => (float[batch,3] y) { y = Neg(x) })");
  const ValueId loss = attachLoss(graph, parseLoss("cross-entropy:y,labels,smoothing=0.1"));
  const auto maker = [&](ValueId value) {
    return std::find_if(graph.nodes.begin(), graph.nodes.end(),
                        [&](const Node& node) { return node.outputs.at(0) == value; });
  };
  const auto quotient = maker(loss);
  ASSERT_TRUE(quotient->is("Div"));
  EXPECT_TRUE(maker(quotient->inputs[0])->is("ReduceSum"));
  EXPECT_TRUE(maker(quotient->inputs[1])->is("ReduceSum"));
}

// A model whose output y is made of scores s by some nodes.
Graph scoring(const std::string& nodes) {
  const std::string type = "float[batch,3]";
  return graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]> g ()" + type + " x) => (" + type +
                       " y) <" + type + " s, int64[2] rows = {-1, 3}> { s = Relu(x) " + nodes + " }");
}

constexpr const char* kProbabilities = "p = Softmax(s) r = Reshape(p, rows) y = Identity(r)";

TEST(LossForms, ASecondSoftmaxOrSigmoidIsRefusedWithTheLogits) {
  const auto attach = [](const std::string& nodes, const std::string& loss) {
    Graph graph = scoring(nodes);
    attachLoss(graph, parseLoss(loss));
  };
  constexpr auto kUsage = ErrorCode::kUsage;
  EXPECT_ERROR(attach(kProbabilities, "cross-entropy:y,labels,smoothing=0.1"), kUsage,
               "'y' are probabilities", "onnx::Softmax", "--loss cross-entropy:s,labels,smoothing=0.1");
  EXPECT_ERROR(attach("y = Softmax<axis = 1>(s)", "nll:y,labels"), kUsage, "'y' are probabilities",
               "nll reads their logarithms", "--loss cross-entropy:s,labels");
  EXPECT_ERROR(attach("p = Sigmoid(s) y = Cast<to = 1>(p)", "bce-with-logits:y,t"), kUsage,
               "'y' are probabilities", "--loss bce-with-logits:s,t", "--loss bce:y,t");
}

TEST(LossForms, WhatIsRightIsLeft) {
  const auto attach = [](const std::string& nodes, const std::string& loss) {
    Graph graph = scoring(nodes);
    EXPECT_TRUE(attachLoss(graph, parseLoss(loss)).valid()) << loss;
  };
  attach(kProbabilities, "cross-entropy:s,labels");
  attach(kProbabilities, "mse:y,t");
  attach("y = LogSoftmax(s)", "nll:y,labels");
  attach("y = LogSoftmax(s)", "cross-entropy:y,labels");
  attach("y = Softmax<axis = 0>(s)", "cross-entropy:y,labels");  // over the batch
  attach("p = Softmax(s) y = Log(p)", "nll:y,labels");
  attach("y = Sigmoid(s)", "bce:y,t");
}

TEST(LossForms, TheAdviceNamesWhatALossReads) {
  const auto advise = [](const std::string& nodes) {
    Graph graph = scoring(nodes);
    attachLoss(graph, {});
  };
  EXPECT_ERROR(advise(kProbabilities), ErrorCode::kUsage,
               "--loss cross-entropy:s,labels\n  --loss mse:y,target");
  EXPECT_ERROR(advise("y = Sigmoid(s)"), ErrorCode::kUsage, "--loss bce:y,target\n  --loss mse:y,target");
  EXPECT_ERROR(advise("y = Relu(s)"), ErrorCode::kUsage, "--loss cross-entropy:y,labels");
}

}  // namespace
}  // namespace pipeshard::testing
