// Views around Transposes come in fewer nodes, of the same values; heads that are one axis with the rows of
// the batch become an axis of their own.
#include "onnx_import/patterns/turned_views.h"

#include <functional>

#include <gtest/gtest.h>

#include "ir/graph/stopped_gradient.h"
#include "onnx_import/patterns/attention_views.h"
#include "onnx_import/patterns/patterns.h"
#include "tests/onnx_import/autodiff/gradient_check.h"

namespace pipeshard::testing {
namespace {

class Views {
 public:
  ValueId reshape(ValueId value, const Shape& shape) {
    return test.op("Reshape", {value, test.integers(shape)});
  }
  ValueId transpose(ValueId value, const std::vector<int64_t>& order) {
    return test.op("Transpose", {value}, {{"perm", order}});
  }
  TestGraph test;
};

struct ViewForm {
  std::string name;
  Shape shape;
  std::function<ValueId(Views&, ValueId)> write;
  std::vector<std::string> left;  // operators
};

std::vector<ViewForm> forms() {
  return {
      {"HeadsOfMultiheadAttention",
       {3, 2, 8},
       [](Views& v, ValueId x) {
         return v.reshape(v.transpose(v.reshape(x, {3, 4, 4}), {1, 0, 2}), {2, 2, 3, 4});
       },
       {"Reshape", "Transpose"}},
      {"TransposedTwice",
       {3, 2, 8},
       [](Views& v, ValueId x) {
         const ValueId heads = v.transpose(v.reshape(x, {3, 4, 4}), {1, 0, 2});
         return v.reshape(v.transpose(heads, {0, 2, 1}), {2, 2, 4, 3});
       },
       {"Reshape", "Transpose"}},
      {"BackToRows",
       {2, 2, 3, 4},
       [](Views& v, ValueId x) {
         return v.reshape(v.transpose(v.reshape(x, {4, 3, 4}), {1, 0, 2}), {6, 8});
       },
       {"Transpose", "Reshape"}},
      {"ThereAndBack",
       {2, 3, 5, 7},
       [](Views& v, ValueId x) {
         const ValueId back = v.reshape(v.transpose(v.reshape(x, {6, 5, 7}), {0, 2, 1}), {2, 3, 7, 5});
         return v.test.op("Sin", {back});
       },
       {"Transpose", "Sin"}},
      {"Squeezed",
       {2, 1, 6},
       [](Views& v, ValueId x) {
         const ValueId squeezed = v.test.op("Squeeze", {x, v.test.integers({1})});
         return v.test.op("Unsqueeze", {v.reshape(squeezed, {2, 2, 3}), v.test.integers({0})});
       },
       {"Reshape"}},
      // Windows of an image: the last view divides nothing, and the first one merges nothing.
      {"Windows",
       {2, 4, 6, 5},
       [](Views& v, ValueId x) {
         return v.reshape(v.transpose(v.reshape(x, {2, 2, 2, 3, 2, 5}), {0, 1, 3, 2, 4, 5}), {12, 4, 5});
       },
       {"Reshape", "Transpose", "Reshape"}},
      {"DividesWhatWasNoView",
       {6, 5},
       [](Views& v, ValueId x) {
         return v.reshape(v.transpose(v.test.op("Sin", {x}), {1, 0}), {5, 2, 3});
       },
       {"Sin", "Transpose", "Reshape"}},
  };
}

class TurnedViews : public ::testing::TestWithParam<ViewForm> {};

TEST_P(TurnedViews, HaveTheSameValues) {
  Views v;
  const ValueId y = GetParam().write(v, v.test.parameter("x", GetParam().shape));
  v.test.graph().outputs = {y};
  const std::string name = v.test.graph().value(y).name;
  const auto value = [&] { return Interpreter(v.test.graph()).run(v.test.contents()).at(name); };
  const Constant before = value();
  const auto nodes = std::ssize(v.test.graph().nodes);
  EXPECT_EQ(turnViews(v.test.graph()), nodes - std::ssize(GetParam().left));
  verifyGraph(v.test.graph());
  std::vector<std::string> left;
  for (const Node& node : v.test.graph().nodes) left.push_back(node.op_type);
  EXPECT_EQ(left, GetParam().left);
  EXPECT_EQ(value(), before);
}

INSTANTIATE_TEST_SUITE_P(Patterns, TurnedViews, ::testing::ValuesIn(forms()),
                         [](const auto& info) { return info.param.name; });

TEST(TurnedViews, WhatOthersReadStays) {
  Views v;
  const ValueId heads = v.reshape(v.test.parameter("x", {3, 2, 8}), {3, 4, 4});
  const ValueId turned = v.transpose(heads, {1, 0, 2});
  v.test.graph().outputs = {v.reshape(turned, {2, 2, 3, 4}), v.test.op("Sin", {heads})};
  EXPECT_EQ(turnViews(v.test.graph()), 0);
  v.test.graph().outputs = {v.test.graph().outputs[0], turned};
  v.test.graph().nodes.pop_back();
  EXPECT_EQ(turnViews(v.test.graph()), 0);
}

// nn.MultiheadAttention that was asked for its weights: sequences first, and one axis for rows and heads. At
// one row the graph is the same.
class HeadsOfRows : public ::testing::TestWithParam<int64_t> {};

TEST_P(HeadsOfRows, GetAnAxisOfTheirOwn) {
  const int64_t rows = GetParam();
  Views v;
  const ValueId x = v.test.parameter("x", {3, rows, 8});
  const auto heads = [&](const char* op, const std::vector<int64_t>& order) {
    return v.transpose(v.reshape(v.test.op(op, {x}), {3, rows * 2, 4}), order);
  };
  const ValueId scores = v.test.op("MatMul", {heads("Sin", {1, 0, 2}), heads("Cos", {1, 2, 0})});
  const ValueId weights = v.test.op("Softmax", {scores}, {{"axis", int64_t{-1}}});
  const ValueId attended = v.test.op("MatMul", {weights, heads("Tanh", {1, 0, 2})});
  const ValueId y = v.reshape(v.transpose(attended, {1, 0, 2}), {3 * rows, 8});
  v.test.graph().outputs = {y};
  const std::string name = v.test.graph().value(y).name;
  const auto value = [&] { return elementsOf(Interpreter(v.test.graph()).run(v.test.contents()).at(name)); };
  const std::vector<double> before = value();
  recognisePatterns(v.test.graph());
  verifyGraph(v.test.graph());
  size_t calls = 0;
  for (const Node& node : v.test.graph().nodes) {
    if (node.op_type != "Attention") continue;
    ++calls;
    for (size_t i = 0; i < 3; ++i)
      EXPECT_EQ(v.test.graph().shape(node.inputs[i]), (Shape{rows, 2, 3, 4})) << i;
  }
  EXPECT_EQ(calls, 1U);
  EXPECT_EQ(v.test.graph().nodes.size(), 3 + 2 * 3 + 1 + 2U);  // three activations, views, attention, views
  const std::vector<double> after = value();
  for (size_t i = 0; i < before.size(); ++i) EXPECT_NEAR(after[i], before[i], 1e-12);
}

INSTANTIATE_TEST_SUITE_P(Patterns, HeadsOfRows, ::testing::Values(1, 2, 3));

TEST(TurnedViews, AStoppedGradientStaysStopped) {
  Views v;
  const ValueId stopped = v.test.op("Identity", {v.test.parameter("x", {3, 4})});
  stopGradientAt(v.test.graph().nodes.back());
  v.test.graph().outputs = {v.reshape(v.transpose(stopped, {1, 0}), {2, 2, 3})};
  EXPECT_EQ(turnViews(v.test.graph()), 0);
}

}  // namespace
}  // namespace pipeshard::testing
