// LayerNorm as exporters before opset 17 and people write it becomes one operator, of the same value and
// gradient; what is nearly that stays.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "onnx_import/patterns/patterns.h"
#include "tests/onnx_import/autodiff/gradient_check.h"
#include "tests/onnx_import/check_model.h"

namespace pipeshard::testing {
namespace {

using ::testing::HasSubstr;

enum class Root { kQuotient, kReciprocal, kPower };

// How it is written. Defaults: as PyTorch exports it.
struct Form {
  std::string name;
  std::vector<int64_t> axes = {-1};
  Root root = Root::kQuotient;
  bool square_is_product = false;
  bool centred_twice = false;
  std::optional<Shape> weight = Shape{5};
  std::optional<Shape> bias = Shape{5};
  bool weight_first = false;
  bool keeps_axes = true;
  std::vector<int64_t> variance_axes = {};  // empty: as axes
  bool epsilon_outside = false;
  bool no_epsilon = false;
  bool of_opset_16 = false;  // where axes are an attribute
  std::string reason = {};   // near misses
};

ValueId write(TestGraph& test, const Form& form) {
  const auto number = [&](double value) { return test.constant(makeScalar(DataType::kFloat64, value)); };
  if (form.of_opset_16) test.graph().opset_imports[""] = 16;
  const ValueId x = test.parameter("x", {2, 5, 5});
  const auto mean_of = [&](ValueId value, const std::vector<int64_t>& axes) {
    std::map<std::string, Attribute> attributes = {{"keepdims", int64_t{form.keeps_axes}}};
    if (!form.of_opset_16) return test.op("ReduceMean", {value, test.integers(axes)}, attributes);
    attributes["axes"] = axes;
    return test.op("ReduceMean", {value}, attributes);
  };
  const ValueId mean = mean_of(x, form.axes);
  const ValueId centred = test.op("Sub", {x, mean});
  const ValueId again = form.centred_twice ? test.op("Sub", {x, mean}) : centred;
  const ValueId square =
      form.square_is_product ? test.op("Mul", {again, again}) : test.op("Pow", {again, number(2)});
  ValueId deviation = mean_of(square, form.variance_axes.empty() ? form.axes : form.variance_axes);
  const double epsilon = double{1e-3f};
  if (!form.epsilon_outside && !form.no_epsilon) deviation = test.op("Add", {deviation, number(epsilon)});
  ValueId y;
  if (form.root == Root::kPower) {
    y = test.op("Mul", {centred, test.op("Pow", {deviation, number(-0.5)})});
  } else {
    deviation = test.op("Sqrt", {deviation});
    if (form.epsilon_outside) deviation = test.op("Add", {deviation, number(epsilon)});
    y = form.root == Root::kQuotient ? test.op("Div", {centred, deviation})
                                     : test.op("Mul", {test.op("Reciprocal", {deviation}), centred});
  }
  if (form.weight) {
    const ValueId weight = test.parameter("weight", *form.weight);
    y = form.weight_first ? test.op("Mul", {weight, y}) : test.op("Mul", {y, weight});
  }
  if (form.bias) y = test.op("Add", {y, test.parameter("bias", *form.bias)});
  return y;
}

std::vector<Form> forms() {
  return {
      {.name = "Torch"},
      {.name = "SquareIsAProduct", .square_is_product = true},
      {.name = "CentredTwice", .centred_twice = true},
      {.name = "Reciprocal", .root = Root::kReciprocal, .weight_first = true},
      {.name = "Power", .root = Root::kPower},
      {.name = "TwoAxes", .axes = {-2, -1}, .weight = Shape{5, 5}, .bias = Shape{5, 5}},
      {.name = "AxesInOtherOrder", .axes = {2, 1}, .weight = Shape{5, 5}, .bias = std::nullopt},
      {.name = "Opset16", .of_opset_16 = true},
      {.name = "NoBias", .bias = std::nullopt},
      {.name = "NoWeight", .weight = std::nullopt},
      {.name = "NeitherWeightNorBias", .weight = std::nullopt, .bias = std::nullopt},
  };
}

class WrittenLayerNorm : public ::testing::TestWithParam<Form> {};

TEST_P(WrittenLayerNorm, BecomesOneOperatorOfTheSameValueAndGradient) {
  TestGraph test;
  const ValueId y = write(test, GetParam());
  const std::string name = test.graph().value(y).name;
  test.graph().outputs = {y};
  const auto value = [&] { return elementsOf(Interpreter(test.graph()).run(test.contents()).at(name)); };
  const std::vector<double> before = value();
  const FoundPatterns found = recognisePatterns(test.graph());
  EXPECT_EQ(found.found, (std::map<PatternKind, int>{{PatternKind::kLayerNorm, 1}}));
  EXPECT_TRUE(found.missed.empty());
  ASSERT_EQ(test.graph().nodes.size(), 1u);
  EXPECT_TRUE(test.graph().nodes[0].is("LayerNormalization"));
  verifyGraph(test.graph());
  checkModel(test.graph());
  const std::vector<double> after = value();
  for (size_t i = 0; i < before.size(); ++i) EXPECT_NEAR(after[i], before[i], 1e-13);
  checkGradients(test, {findValue(test.graph(), name)});
}

INSTANTIATE_TEST_SUITE_P(Patterns, WrittenLayerNorm, ::testing::ValuesIn(forms()),
                         [](const auto& info) { return info.param.name; });

std::vector<Form> nearMisses() {
  const std::string divided = "is not divided by the root of its variance and an epsilon";
  return {
      {.name = "EpsilonOutside", .epsilon_outside = true, .reason = divided},
      {.name = "NoEpsilon", .no_epsilon = true, .reason = divided},
      {.name = "OverAnInnerAxis", .axes = {1}},
      {.name = "OverTheFirstAxis", .axes = {0}},
      {.name = "OverOuterAxes", .axes = {0, 1}},
      {.name = "VarianceOverMore", .variance_axes = {1, 2}},
  };
}

class NearlyALayerNorm : public ::testing::TestWithParam<Form> {};

TEST_P(NearlyALayerNorm, StaysAsItIs) {
  TestGraph test;
  test.graph().outputs = {write(test, GetParam())};
  const size_t nodes = test.graph().nodes.size();
  const FoundPatterns found = recognisePatterns(test.graph());
  EXPECT_TRUE(found.found.empty());
  EXPECT_EQ(test.graph().nodes.size(), nodes);
  ASSERT_EQ(found.missed.size(), GetParam().reason.empty() ? 0u : 1u);
  if (GetParam().reason.empty()) return;
  EXPECT_EQ(found.missed[0].kind, PatternKind::kLayerNorm);
  EXPECT_THAT(found.missed[0].reason, HasSubstr(GetParam().reason));
}

INSTANTIATE_TEST_SUITE_P(Patterns, NearlyALayerNorm, ::testing::ValuesIn(nearMisses()),
                         [](const auto& info) { return info.param.name; });

TEST(LayerNormPattern, AVarianceThatSomebodyElseReadsStays) {
  TestGraph test;
  write(test, {});
  const auto variance = [&] {
    for (const Node& node : test.graph().nodes) {
      if (node.is("Sqrt")) return node.outputs[0];
    }
    return ValueId();
  };
  const ValueId y = test.graph().nodes.back().outputs[0];
  test.graph().outputs = {test.op("Add", {y, test.op("Cos", {variance()})})};
  const FoundPatterns found = recognisePatterns(test.graph());
  EXPECT_FALSE(found.found.contains(PatternKind::kLayerNorm));
  ASSERT_FALSE(found.missed.empty());
  EXPECT_THAT(found.missed[0].reason, HasSubstr("is also read by node 'Cos'"));
}

// A weight or bias of another shape is no part of it, and stays behind it.
TEST(LayerNormPattern, OtherWeightsStayBehindIt) {
  for (const Shape& shape : {Shape{1}, Shape{5, 1}, Shape{2, 1, 5}, Shape{2, 5, 5}}) {
    TestGraph test;
    Form form;
    form.weight = shape;
    const ValueId y = write(test, form);
    const std::string name = test.graph().value(y).name;
    test.graph().outputs = {y};
    EXPECT_EQ(recognisePatterns(test.graph()).found.at(PatternKind::kLayerNorm), 1);
    EXPECT_EQ(test.graph().nodes.size(), 3u) << "with the product and the sum";
    checkGradients(test, {findValue(test.graph(), name)});
  }
}

// A sum with a tensor of all its elements is a residual connection.
TEST(LayerNormPattern, AResidualIsNoBias) {
  TestGraph test;
  Form form;
  form.bias = Shape{2, 5, 5};
  test.graph().outputs = {write(test, form)};
  EXPECT_EQ(recognisePatterns(test.graph()).found.at(PatternKind::kLayerNorm), 1);
  ASSERT_EQ(test.graph().nodes.size(), 2u);
  EXPECT_TRUE(test.graph().nodes[1].is("Add"));
}

}  // namespace
}  // namespace pipeshard::testing
