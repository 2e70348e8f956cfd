// Log-softmax with the likelihood of labels behind it becomes one operator, of the same value and gradient;
// what is nearly that stays.

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "onnx_import/patterns/patterns.h"
#include "tests/onnx_import/autodiff/gradient_check.h"
#include "tests/onnx_import/check_model.h"

namespace pipeshard::testing {
namespace {

using ::testing::HasSubstr;

struct LossForm {
  std::string name;
  Shape scores;
  int64_t axis = 1;
  Shape viewed = {};  // before the loss; empty: as they are
  Shape labels;
  std::string reduction = "mean";
  bool weighted = false;
  bool ignoring = false;
  std::string reason = {};  // why it is none; "": it is one
};

ValueId writeLoss(TestGraph& test, const LossForm& form) {
  ValueId value = test.op("LogSoftmax", {test.parameter("scores", form.scores)}, {{"axis", form.axis}});
  if (!form.viewed.empty()) value = test.op("Reshape", {value, test.integers(form.viewed)});
  std::vector<int64_t> labels(elementCount(form.labels));
  for (size_t i = 0; i < labels.size(); ++i)
    labels[i] = form.ignoring && i % 3 == 1 ? -100 : static_cast<int64_t>(i) % 3;
  std::vector<ValueId> inputs = {value, test.constant(makeConstant<int64_t>(form.labels, labels))};
  const Shape& read = form.viewed.empty() ? form.scores : form.viewed;
  if (form.weighted) {
    std::vector<double> weights;
    for (int64_t c = 0; c < read[1]; ++c) weights.push_back(0.5 + static_cast<double>(c));
    inputs.push_back(test.constant(makeTensor({read[1]}, weights)));
  }
  std::map<std::string, Attribute> attributes = {{"reduction", form.reduction}};
  if (form.ignoring) attributes["ignore_index"] = int64_t{-100};
  return test.op("NegativeLogLikelihoodLoss", inputs, attributes);
}

std::vector<LossForm> forms() {
  return {
      {.name = "Plain", .scores = {4, 5}, .labels = {4}},
      {.name = "LastAxis", .scores = {4, 5}, .axis = -1, .labels = {4}, .ignoring = true},
      {.name = "Weighted", .scores = {4, 5}, .labels = {4}, .reduction = "sum", .weighted = true},
      {.name = "Pixels", .scores = {2, 5, 3}, .labels = {2, 3}, .reduction = "none", .ignoring = true},
      {.name = "Tokens", .scores = {2, 3, 5}, .axis = 2, .viewed = {6, 5}, .labels = {6}, .ignoring = true},
      {.name = "PixelsInOneAxis", .scores = {2, 4, 3, 2}, .axis = -3, .viewed = {2, 4, 6}, .labels = {2, 6}},
      {.name = "RowsOfOne", .scores = {1, 3, 5}, .axis = 2, .viewed = {3, 5}, .labels = {3}},
  };
}

class WrittenLoss : public ::testing::TestWithParam<LossForm> {};

TEST_P(WrittenLoss, BecomesOneOperatorOfTheSameValueAndGradient) {
  TestGraph test;
  const ValueId loss = writeLoss(test, GetParam());
  const std::string name = test.graph().value(loss).name;
  test.graph().outputs = {loss};
  const auto value = [&] { return elementsOf(Interpreter(test.graph()).run(test.contents()).at(name)); };
  const std::vector<double> before = value();
  const FoundPatterns found = recognisePatterns(test.graph());
  EXPECT_EQ(found.found, (std::map<PatternKind, int>{{PatternKind::kCrossEntropy, 1}}));
  EXPECT_TRUE(found.missed.empty());
  EXPECT_EQ(test.graph().nodes.size(), GetParam().viewed.empty() ? 1u : 2u);
  EXPECT_TRUE(test.graph().nodes.back().is("SoftmaxCrossEntropyLoss"));
  verifyGraph(test.graph());
  checkModel(test.graph());
  const std::vector<double> after = value();
  for (size_t i = 0; i < before.size(); ++i) EXPECT_NEAR(after[i], before[i], 1e-14);
  checkGradients(test, {findValue(test.graph(), name)});
}

INSTANTIATE_TEST_SUITE_P(Patterns, WrittenLoss, ::testing::ValuesIn(forms()),
                         [](const auto& info) { return info.param.name; });

std::vector<LossForm> nearMisses() {
  return {
      {.name = "OverTheRows",
       .scores = {4, 5},
       .axis = 0,
       .labels = {4},
       .reason = "is over axis 0 of [4,5]"},
      {.name = "OverThePixels", .scores = {2, 3, 3}, .axis = 2, .labels = {2, 3}, .reason = "is over axis 2"},
      // Both have as many elements before the classes, or as many classes, but not both.
      {.name = "ViewOfOtherClasses",
       .scores = {2, 6, 3},
       .axis = 1,
       .viewed = {6, 6},
       .labels = {6},
       .reason = "classes are axis 1 of [6,6]"},
      {.name = "ViewOfFewerClasses",
       .scores = {2, 3, 4},
       .axis = 2,
       .viewed = {6, 2, 2},
       .labels = {6, 2},
       .reason = "classes are axis 1 of [6,2,2]"},
  };
}

void expectStays(TestGraph& test, const std::string& reason) {
  const size_t nodes = test.graph().nodes.size();
  const FoundPatterns found = recognisePatterns(test.graph());
  EXPECT_TRUE(found.found.empty());
  EXPECT_EQ(test.graph().nodes.size(), nodes);
  ASSERT_EQ(found.missed.size(), reason.empty() ? 0u : 1u);
  if (reason.empty()) return;
  EXPECT_EQ(found.missed[0].kind, PatternKind::kCrossEntropy);
  EXPECT_THAT(found.missed[0].reason, HasSubstr(reason));
}

class NearlyALoss : public ::testing::TestWithParam<LossForm> {};

TEST_P(NearlyALoss, StaysAsItIs) {
  TestGraph test;
  test.graph().outputs = {writeLoss(test, GetParam())};
  expectStays(test, GetParam().reason);
}

INSTANTIATE_TEST_SUITE_P(Patterns, NearlyALoss, ::testing::ValuesIn(nearMisses()),
                         [](const auto& info) { return info.param.name; });

TEST(CrossEntropyPattern, LogProbabilitiesThatSomebodyElseReadsStay) {
  TestGraph test;
  const ValueId logarithms = test.op("LogSoftmax", {test.parameter("x", {4, 3})}, {{"axis", int64_t{1}}});
  const ValueId labels = test.constant(makeConstant<int64_t>({4}, {0, 1, 2, 1}));
  const ValueId loss = test.op("NegativeLogLikelihoodLoss", {logarithms, labels});
  // as label smoothing has it
  test.graph().outputs = {test.op("Add", {loss, test.op("ReduceMean", {logarithms})})};
  expectStays(test, "is also read by node 'ReduceMean'");
}

TEST(CrossEntropyPattern, LogProbabilitiesThatAreAnOutputStay) {
  TestGraph test;
  const ValueId logarithms = test.op("LogSoftmax", {test.parameter("x", {4, 3})}, {{"axis", int64_t{1}}});
  const ValueId labels = test.constant(makeConstant<int64_t>({4}, {0, 1, 2, 1}));
  test.graph().outputs = {test.op("NegativeLogLikelihoodLoss", {logarithms, labels}), logarithms};
  expectStays(test, "is also an output");
}

TEST(CrossEntropyPattern, OtherLogarithmsAreNothingLikeIt) {
  for (const char* scores : {"Softmax", "HardSigmoid"}) {
    TestGraph test;
    const ValueId x = test.parameter("x", {4, 3});
    // The logarithm of a rounded softmax is -inf where ours is a number.
    const ValueId probabilities = test.op(scores, {x});
    const ValueId labels = test.constant(makeConstant<int64_t>({4}, {0, 1, 2, 1}));
    test.graph().outputs = {test.op("NegativeLogLikelihoodLoss", {test.op("Log", {probabilities}), labels})};
    expectStays(test, "");
  }
}

// Logarithms of the sigmoid of x, and of 1 minus it.
std::vector<ValueId> writeLogSigmoids(TestGraph& test, ValueId x) {
  const ValueId sigmoid = test.op("Sigmoid", {x});
  const ValueId rest = test.op("Sub", {test.constant(makeScalar(DataType::kFloat64, 1)), sigmoid});
  return {test.op("Log", {sigmoid}), test.op("Log", {rest})};
}

TEST(LogSigmoids, BecomeSoftplusOfTheSameValueAndGradient) {
  TestGraph test;
  test.graph().outputs = writeLogSigmoids(test, test.parameter("x", {3, 4}, -3, 3));
  std::vector<std::string> names;
  std::vector<std::vector<double>> before;
  for (const ValueId output : test.graph().outputs) {
    names.push_back(test.graph().value(output).name);
    before.push_back(elementsOf(Interpreter(test.graph()).run(test.contents()).at(names.back())));
  }
  EXPECT_EQ(recognisePatterns(test.graph()).found,
            (std::map<PatternKind, int>{{PatternKind::kLogSigmoid, 2}}));
  checkModel(test.graph());
  for (const Node& node : test.graph().nodes) EXPECT_FALSE(node.is("Sigmoid") || node.is("Log"));
  for (size_t i = 0; i < names.size(); ++i) {
    const std::vector<double> after = elementsOf(Interpreter(test.graph()).run(test.contents()).at(names[i]));
    for (size_t k = 0; k < after.size(); ++k) EXPECT_NEAR(after[k], before[i][k], 1e-12);
  }
  checkGradients(test, {findValue(test.graph(), names[0]), findValue(test.graph(), names[1])});
}

TEST(LogSigmoids, AreFiniteWhereTheSigmoidRounds) {
  TestGraph test;
  test.graph().outputs =
      writeLogSigmoids(test, test.parameter("x", makeConstant<double>({4}, {800, -800, 40, -40})));
  recognisePatterns(test.graph());
  const ValueId loss = test.weightedSum(test.graph().outputs);
  for (const double slope : elementsOf(trainAndRun(test, loss).gradients.at("x")))
    EXPECT_TRUE(std::isfinite(slope)) << slope;
}

TEST(LogSigmoids, StayWhereTheyAreBounded) {
  TestGraph test;
  const ValueId logarithm = test.op("Log", {test.op("Sigmoid", {test.parameter("x", {3})})});
  const ValueId least = test.constant(makeScalar(DataType::kFloat64, -100));
  test.graph().outputs = {test.op("Clip", {logarithm, least})};
  EXPECT_TRUE(recognisePatterns(test.graph()).found.empty());
}

}  // namespace
}  // namespace pipeshard::testing
