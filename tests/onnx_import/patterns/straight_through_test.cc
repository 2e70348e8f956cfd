// x + (f(x) - x) without its detach() is named; with it, and where f is smooth, nothing is.
#include "onnx_import/patterns/straight_through.h"

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/graph/stopped_gradient.h"

namespace pipeshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class StraightThrough : public ::testing::Test {
 protected:
  StraightThrough() : builder_(graph_) {
    graph_.opset_imports = {{"", 18}};
    graph_.inputs = {builder_.addValue("data", DataType::kFloat32, {2})};
    const ValueId weight = builder_.addConstant("fc.weight", makeConstant<float>({2}, {0.5F, 3}));
    x_ = op("x", "Mul", {graph_.inputs[0], weight});
    round_ = op("round", "Round", {x_});
  }
  ValueId op(const std::string& name, const std::string& op_type, const std::vector<ValueId>& inputs,
             DataType type = DataType::kFloat32) {
    const ValueId output = builder_.addValue(name, type, {2});
    graph_.node(builder_.addNode("", op_type, inputs, {output})).name = "/" + name;
    return output;
  }

  Graph graph_;
  GraphBuilder builder_;
  ValueId x_, round_;
};

TEST_F(StraightThrough, IsNamedInAnyOrder) {
  const auto sum = [&](ValueId a, ValueId b) { return op("sum", "Add", {a, b}); };
  const auto difference = [&](ValueId a, ValueId b) { return op("difference", "Sub", {a, b}); };
  const Graph begun = graph_;
  const std::vector<std::function<void()>> forms = {[&] { sum(x_, difference(round_, x_)); },
                                                    [&] { sum(difference(round_, x_), x_); },
                                                    [&] {
                                                      difference(x_, op("less", "Sub", {x_, round_}));
                                                    },
                                                    [&] { difference(sum(round_, x_), x_); },
                                                    [&] { difference(x_, x_); },
                                                    [&] {
                                                      op("one", "Div", {x_, op("copy", "Identity", {x_})});
                                                    }};
  for (size_t i = 0; i < forms.size(); ++i) {
    EXPECT_EQ(straightThroughs(graph_), "") << i;
    forms[i]();
    EXPECT_THAT(straightThroughs(graph_), AllOf(HasSubstr("'x' in "), HasSubstr("default (dynamo=True")))
        << i;
    graph_ = begun;
  }
}

// As bitnet's weights: the scale is smooth, the rounding is not.
TEST_F(StraightThrough, IsNamedWhereAGradientPassesBesideTheStep) {
  const ValueId scaled = op("scaled", "Mul", {round_, op("scale", "Abs", {x_})});
  op("sum", "Add", {x_, op("difference", "Sub", {scaled, x_})});
  EXPECT_THAT(straightThroughs(graph_), HasSubstr("'x' in "));
}

TEST_F(StraightThrough, IsNotSeenWhereTheFileDetaches) {
  const ValueId difference = op("difference", "Sub", {round_, x_});
  const ValueId detached = op("detach", "Identity", {difference});
  stopGradientAt(graph_.nodes.back());
  op("sum", "Add", {x_, detached});
  EXPECT_EQ(straightThroughs(graph_), "");
}

TEST_F(StraightThrough, IsNotSeenInWhatIsSmoothOrNotTrained) {
  op("sum", "Add", {x_, op("difference", "Sub", {op("tanh", "Tanh", {x_}), x_})});
  const ValueId data = graph_.inputs[0];
  op("sum_of_data", "Add", {data, op("of_data", "Sub", {op("floor", "Floor", {data}), data})});
  op("another", "Add", {x_, op("other", "Sub", {op("floor_of_data", "Floor", {data}), data})});
  EXPECT_EQ(straightThroughs(graph_), "");
}

}  // namespace
}  // namespace pipeshard
