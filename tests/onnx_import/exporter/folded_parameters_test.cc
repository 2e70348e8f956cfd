// Parameters that the exporter's optimizer has folded into constants, and what looks like it. Whole files are
// in tests/golden/traps; gradients of real modules are compared with PyTorch's by
// tests/oracle/real_models.py.
#include "onnx_import/exporter/folded_parameters.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "onnx_import/exporter/lost_parameters.h"
#include "tests/expect_error.h"
#include "tests/onnx_import/exporter/exported_module.h"

namespace pipeshard {
namespace {

using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::SizeIs;

class FoldedParametersTest : public ExportedModule {
 protected:
  ValueId folded(const std::string& name, const Shape& shape, const std::vector<float>& numbers,
                 const std::string& from) {
    const ValueId id = weight(name, shape, from);
    graph.initializers.at(id) = makeConstant<float>(shape, numbers);
    return id;
  }
  std::vector<double> numbersOf(const std::string& name) const {
    return numericElements(*graph.constant(findValue(graph, name)));
  }
  Shape shapeOf(const std::string& name) const { return graph.shape(findValue(graph, name)); }
  // Of the nodes in front of the last one.
  std::vector<std::string> before() const {
    std::vector<std::string> kinds;
    for (size_t n = 0; n + 1 < graph.nodes.size(); ++n) kinds.push_back(graph.nodes[n].op_type);
    return kinds;
  }
  void code(const std::string& line) {
    graph.nodes.back().metadata.emplace_back("pkg.torch.onnx.stack_trace",
                                             "File \"model.py\", line 5, in forward\n    " + line);
  }
  // A token of a class for three rows, read by a concatenation.
  void token(const std::vector<float>& numbers, const Shape& shape,
             const std::string& from = "['token', 'val_6', 'val_7']") {
    parameter("token");
    node("Concat", {folded("expand", shape, numbers, from)}, "cat", "aten.cat.default", "[%x, %expand], 1");
  }
};

std::vector<float> countUp(size_t count, float first = 0) {
  std::vector<float> numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

TEST_F(FoldedParametersTest, ATokenOfEveryRowIsOneAgain) {
  token({1, 2, 3, 1, 2, 3}, {2, 1, 3});
  const ModuleParameters found = restore();
  EXPECT_EQ(found.unfolded, 1);
  EXPECT_THAT(found.lost, SizeIs(0));
  EXPECT_TRUE(isParameter("token"));
  EXPECT_EQ(shapeOf("token"), (Shape{1, 1, 3}));
  EXPECT_THAT(numbersOf("token"), ElementsAre(1, 2, 3));
  EXPECT_THAT(before(), ElementsAre("Expand"));
  EXPECT_EQ(read(1, 1), "expand");  // calls that mention it find it
  verifyGraph(graph);
}

TEST_F(FoldedParametersTest, ATokenOfZerosIsOneOfTheBatch) {
  token(std::vector<float>(6, 0), {2, 1, 3});
  EXPECT_EQ(restore().unfolded, 1);
  EXPECT_EQ(shapeOf("token"), (Shape{1, 1, 3}));
}

TEST_F(FoldedParametersTest, ZerosThatMayBeRepeatedAlongTwoAxesAreLost) {
  token(std::vector<float>(12, 0), {2, 2, 3});
  const ModuleParameters found = restore();
  EXPECT_EQ(found.unfolded, 0);
  EXPECT_THAT(found.lost, SizeIs(1));
}

TEST_F(FoldedParametersTest, WhatIsMoreThanMovedIsLost) {
  for (const char* call : {"detach", "mul", "square", "slice_2", "index_1", "add_3"}) {
    begin();
    token({1, 2, 3, 1, 2, 3}, {2, 1, 3}, std::string("['token', 'val_6', '") + call + "']");
    const ModuleParameters found = restore();
    EXPECT_EQ(found.unfolded, 0) << call;
    EXPECT_THAT(found.lost, SizeIs(1)) << call;
  }
}

TEST_F(FoldedParametersTest, WhatNoGradComputesIsLost) {
  token({1, 2, 3, 1, 2, 3}, {2, 1, 3});
  graph.nodes.back().metadata.emplace_back("pkg.torch.onnx.stack_trace",
                                           "File \"<eval_with_key>.36\", line 5, in forward\n    cat");
  EXPECT_EQ(restore().unfolded, 0);
}

TEST_F(FoldedParametersTest, AxesThatWereAddedAreGone) {
  parameter("scale");
  node("Mul", {folded("unsqueeze_1", {4, 1, 1}, countUp(4), "['scale', 'unsqueeze', 'val_3']")}, "mul",
       "aten.mul.Tensor", "%x, %unsqueeze_1");
  EXPECT_EQ(restore().unfolded, 1);
  EXPECT_EQ(shapeOf("scale"), (Shape{4}));
  EXPECT_THAT(numbersOf("scale"), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(before(), ElementsAre("Reshape"));
  verifyGraph(graph);
}

TEST_F(FoldedParametersTest, ATemperatureIsTheLogarithm) {
  parameter("temperature");
  node("Mul", {folded("exp", {}, {14.2857F}, "['temperature']")}, "mul", "aten.mul.Tensor", "%x, %exp");
  EXPECT_EQ(restore().unfolded, 1);
  EXPECT_EQ(shapeOf("temperature"), Shape());
  EXPECT_THAT(numbersOf("temperature"), ElementsAre(DoubleNear(std::log(14.2857), 1e-6)));
  EXPECT_THAT(before(), ElementsAre("Exp"));
  verifyGraph(graph);
}

TEST_F(FoldedParametersTest, FunctionsAndViewsAreUndoneTogether) {
  parameter("gate");
  node(
      "Mul",
      {folded("unsqueeze_1", {3, 1, 1}, {0.25F, 0.5F, 0.75F}, "['gate', 'sigmoid_2', 'unsqueeze', 'val_3']")},
      "mul", "aten.mul.Tensor", "%x, %unsqueeze_1");
  EXPECT_EQ(restore().unfolded, 1);
  EXPECT_EQ(shapeOf("gate"), Shape{3});
  const double third = std::log(3);
  EXPECT_THAT(numbersOf("gate"),
              ElementsAre(DoubleNear(-third, 1e-6), DoubleNear(0, 1e-6), DoubleNear(third, 1e-6)));
  EXPECT_THAT(before(), ElementsAre("Sigmoid", "Reshape"));
}

TEST_F(FoldedParametersTest, AFunctionKeepsItsParametersAxes) {
  parameter("gate");
  node("Mul", {folded("tanh", {1, 4, 1}, {0, 0.1F, 0.2F, 0.3F}, "['gate']")}, "mul", "aten.mul.Tensor",
       "%x, %tanh");
  EXPECT_EQ(restore().unfolded, 1);
  EXPECT_EQ(shapeOf("gate"), (Shape{1, 4, 1}));
}

TEST_F(FoldedParametersTest, TheSignTellsWhichOfTwoFunctionsWasFirst) {
  for (const float sign : {-1.0F, 1.0F}) {
    begin();
    parameter("rates");
    const std::string last = sign < 0 ? "neg" : "exp", first = sign < 0 ? "exp" : "neg";
    node("Mul", {folded(last, {2}, {sign * 2, sign * 3}, "['rates', '" + first + "']")}, "mul",
         "aten.mul.Tensor", "%x, %" + last);
    EXPECT_EQ(restore().unfolded, 1);
    EXPECT_THAT(numbersOf("rates"),
                ElementsAre(DoubleNear(-sign * std::log(2), 1e-6), DoubleNear(-sign * std::log(3), 1e-6)));
    EXPECT_EQ(before().front(), sign < 0 ? "Exp" : "Neg");
  }
}

TEST_F(FoldedParametersTest, WhatAFunctionHasSwallowedIsLost) {
  for (const float saturated : {0.999994F, 1.0F, 0.0F}) {
    begin();
    parameter("gate");
    node("Mul", {folded("sigmoid", {2}, {0.5F, saturated}, "['gate']")}, "mul", "aten.mul.Tensor",
         "%x, %sigmoid");
    const ModuleParameters found = restore();
    EXPECT_EQ(found.unfolded, 0) << saturated;
    EXPECT_THAT(found.lost, SizeIs(1)) << saturated;
  }
}

// Parameters that the file has, and constants of them for other calls (parameter_copies.h).
class ParameterCopiesTest : public FoldedParametersTest {
 protected:
  // x * p, with all of p 0.5, and then what the constant goes into.
  ModuleParameters copied(const std::string& constant, const Shape& shape, const std::vector<float>& numbers,
                          const std::string& from, const Shape& own = {4}) {
    begin();
    parameter("p", own);
    node("Mul", {findValue(graph, "p")}, "mul", "aten.mul.Tensor", "%x, %p_p");
    node("Mul", {folded(constant, shape, numbers, from)}, "mul_1", "aten.mul.Tensor", "%mul, %" + constant);
    return restore();
  }
};

TEST_F(ParameterCopiesTest, WhatTheFileTellsIsComputedOfTheParameterAgain) {
  const std::vector<float> halves(4, 0.5F);
  EXPECT_THAT(copied("sub", {4}, halves, "['p', 'scalar_tensor_default', 'val_3']").lost, SizeIs(0));
  EXPECT_THAT(before(), ElementsAre("Mul", "Sub"));
  EXPECT_THAT(copied("t", {1, 4}, halves, "['p']", {4, 1}).lost, SizeIs(0));
  EXPECT_THAT(before(), ElementsAre("Mul", "Transpose"));
  EXPECT_THAT(copied("unsqueeze", {1, 4}, halves, "['p', 'val_3']").lost, SizeIs(0));
  EXPECT_THAT(before(), ElementsAre("Mul", "Reshape"));
  const std::vector<float> exponentials(4, std::exp(0.5F));
  EXPECT_THAT(copied("unsqueeze", {1, 4}, exponentials, "['p', 'exp']").lost, SizeIs(0));
  EXPECT_THAT(before(), ElementsAre("Mul", "Exp", "Reshape"));
  verifyGraph(graph);
}

TEST_F(ParameterCopiesTest, OthersAreListed) {
  const ModuleParameters found = copied("pow_1", {}, {0.25F}, "['p', 'sub', 'val_3']");
  ASSERT_THAT(found.lost, SizeIs(1));
  EXPECT_EQ(found.lost[0].name, "p");
  EXPECT_EQ(found.lost[0].reason, "folded into the constant 'pow_1', too");
  EXPECT_THAT(copied("sub", {4}, std::vector<float>(4, 0.4F), "['p', 'scalar_tensor_default']").lost,
              SizeIs(1));
  EXPECT_THAT(copied("exp", {4}, std::vector<float>(4, 0.5F), "['p']").lost, SizeIs(1));
  EXPECT_THAT(copied("detach", {4}, std::vector<float>(4, 0.5F), "['p']").lost, SizeIs(1));
}

TEST_F(ParameterCopiesTest, WhatTakesItsSizeAloneMayStay) {
  EXPECT_THAT(copied("zeros_like", {4}, std::vector<float>(4, 0), "['p']").lost, SizeIs(0));
  EXPECT_THAT(copied("add", {4}, {0, 1, 2, 3}, "['p', 'zeros_like']").lost, SizeIs(1));
}

TEST_F(ParameterCopiesTest, OneThatIsToBeTrainedIsRefusedAlsoWhereAllElseIsFrozen) {
  const ModuleParameters found = copied("pow_1", {}, {0.25F}, "['p', 'val_3']");
  const std::vector<std::string> all = {"."}, one = {"^p$"};
  EXPECT_NO_THROW(refuseLostParameters(found, all));
  EXPECT_ERROR(refuseLostParameters(found, all, one), ErrorCode::kBadModel,
               "p (folded into the constant 'pow_1', too)");
}

// Uses of which no constant is left, as they were neutral at the first numbers.
class GoneUsesTest : public FoldedParametersTest {
 protected:
  // x * p, and what reads that under another name: the call between is gone.
  ModuleParameters leftOut(const std::string& name, const std::vector<float>& numbers,
                           const std::string& lost, const std::string& module = "") {
    begin();
    parameter(name, {4});
    const ValueId parameter = findValue(graph, name);
    graph.initializers.at(parameter) = makeConstant<float>({4}, numbers);
    std::string argument = "%p_" + name;
    std::replace(argument.begin(), argument.end(), '.', '_');
    node("Mul", {parameter}, "mul", "aten.mul.Tensor", "%x, " + argument);
    scope(module);
    node("ReduceMean", {}, "mean", "aten.mean.default", "%" + lost);
    scope(module);
    return restore();
  }
};

TEST_F(GoneUsesTest, ASumThatIsLeftOutMayReadWhatIsNeutral) {
  const ModuleParameters found = leftOut("fc.g", {0, 0, 0, 0}, "sub");
  ASSERT_THAT(found.lost, SizeIs(1));
  EXPECT_EQ(found.lost[0].reason, "'sub' may read it, too, which is left out, as one side of it was 0");
  EXPECT_THAT(found.absent(), SizeIs(0));
  EXPECT_ERROR(refuseLostParameters(found, {}), ErrorCode::kBadModel, "optimize=False");
  EXPECT_NO_THROW(refuseLostParameters(found, {}, {"g"}));
  EXPECT_THAT(leftOut("g", {2, 2, 2, 2}, "add_1").lost, SizeIs(1));  // (g - 2).square().sum()
  EXPECT_THAT(leftOut("g", {0.5F, 0, 2, 3}, "add_1").lost, SizeIs(1));
  EXPECT_THAT(leftOut("g", {0.5F, 0.25F, 2, 3}, "add_1").lost, SizeIs(0));
  EXPECT_THAT(leftOut("g", {0, 0, 0, 0}, "view").lost, SizeIs(0));
  EXPECT_THAT(leftOut("a.g", {0, 0, 0, 0}, "add", "b").lost, SizeIs(0));  // another module's
}

TEST_F(GoneUsesTest, AFactorThatIsLeftOutIsAModulesOwn) {
  EXPECT_THAT(leftOut("norm.g", {1, 1, 1, 1}, "mul_1", "head").lost, SizeIs(0));
  EXPECT_THAT(leftOut("norm.g", {1, 1, 1, 1}, "div", "norm").lost, SizeIs(1));
}

TEST_F(GoneUsesTest, AResultThatIsLeftOutIsNoUseOfTheFiles) {
  leftOut("g", {0, 0, 0, 0}, "view");
  graph.outputs = {last};
  signature += "\n# outputs\nadd: USER_OUTPUT\n";
  EXPECT_THAT(restore().lost, SizeIs(1));
}

// Two equal calls: the one that is kept has the users that the file tells.
TEST_F(GoneUsesTest, AMergedCallIsNotLeftOut) {
  parameter("g", {4});
  const ValueId product = node("Mul", {findValue(graph, "g")}, "mul", "aten.mul.Tensor", "%x, %p_g");
  node("Exp", {}, "exp", "aten.exp.default", "%mul");
  last = product;
  node("ReduceMean", {}, "mean", "aten.mean.default", "%mul_1");
  EXPECT_THAT(restore().lost, SizeIs(0));
}

TEST_F(GoneUsesTest, AConstantThatIsReadInTheirPlaceIsNamed) {
  for (const std::string& reader : std::vector<std::string>{"sub", "sigmoid"}) {
    begin();
    parameter("g");
    const ValueId constant = folded("sigmoid", {2}, {0.5F, 0.5F}, "['g']");
    node("Mul", {constant}, "mul", "aten.mul.Tensor", "%x, %sigmoid");
    node("Mul", {constant}, "mul_1", "aten.mul.Tensor", "%mul, %" + reader);
    const ModuleParameters found = restore();
    ASSERT_THAT(found.lost, SizeIs(reader == "sub" ? 1 : 0));
    if (!found.lost.empty()) {
      EXPECT_EQ(found.lost[0].reason, "'mul_1' reads 'sigmoid' in the place of 'sub', which was equal to it");
    }
  }
}

TEST_F(FoldedParametersTest, EveryGroupNormHasItsOwn) {
  for (const char* name : {"a.weight", "a.bias", "b.weight", "b.bias"}) parameter(name);
  const ValueId scale = folded("val_22", {4, 1, 1}, {1, 1, 1, 1}, "['a.weight', 'val_3']");
  const ValueId bias = folded("val_24", {4, 1, 1}, {0, 0, 0, 0}, "['a.bias', 'val_3']");
  const auto norm = [&](const std::string& module) {
    const std::string call = "group_norm_" + module;
    const std::string arguments = "%x, 2, %p_" + module + "_weight, %p_" + module + "_bias, 1e-05";
    node("Mul", {scale}, call, "aten.group_norm.default", arguments);
    node("Add", {bias}, call + "_sum", "aten.group_norm.default", arguments);
  };
  norm("a");
  norm("b");
  const ModuleParameters found = restore();
  EXPECT_EQ(found.unfolded, 4);
  EXPECT_THAT(found.lost, SizeIs(0));
  EXPECT_THAT(before(), ElementsAre("Reshape", "Mul", "Reshape", "Add", "Reshape", "Mul", "Reshape"));
  EXPECT_EQ(read(4, 0), "b.weight");
  EXPECT_EQ(read(6, 0), "b.bias");
  EXPECT_THAT(numbersOf("b.weight"), Each(1));
  EXPECT_THAT(numbersOf("b.bias"), Each(0));
  EXPECT_FALSE(graph.initializers.contains(scale));  // nothing reads it any more
  verifyGraph(graph);
}

// The exporter's optimizer has brought it to the rank of what it is for, inside the call, and has one
// constant for slopes that are equal. (All are 0.25 at first.)
TEST_F(FoldedParametersTest, EveryPReluHasItsOwnSlope) {
  for (const char* name : {"a.weight", "b.weight", "c.weight"}) parameter(name);
  const ValueId slope = folded("val_1", {1, 1}, {0.25F}, "['a.weight', 'val_0']");
  const ValueId slopes = folded("val_3", {1, 4}, countUp(4), "['c.weight', 'val_0']");
  node("PRelu", {slope}, "prelu", "aten.prelu.default", "%x, %p_a_weight");
  node("PRelu", {slope}, "prelu_1", "aten.prelu.default", "%prelu, %p_b_weight");
  node("PRelu", {slopes}, "prelu_2", "aten.prelu.default", "%prelu_1, %p_c_weight");
  node("PRelu", {slope}, "prelu_3", "aten.prelu.default", "%prelu_2, %p_b_weight");
  const ModuleParameters found = restore();
  EXPECT_EQ(found.unfolded, 4);  // the last one reads what another has
  EXPECT_THAT(found.lost, SizeIs(0));
  EXPECT_THAT(before(), ElementsAre("Reshape", "PRelu", "Reshape", "PRelu", "Reshape", "PRelu", "Reshape"));
  EXPECT_EQ(read(0, 0), "a.weight");
  EXPECT_EQ(read(2, 0), "b.weight");
  EXPECT_EQ(read(4, 0), "c.weight");
  EXPECT_EQ(read(6, 0), "b.weight");
  EXPECT_EQ(shapeOf("a.weight"), Shape{1});
  EXPECT_EQ(shapeOf("c.weight"), Shape{4});
  EXPECT_THAT(numbersOf("b.weight"), ElementsAre(0.25));
  EXPECT_FALSE(graph.initializers.contains(slope));  // nothing reads it any more
  verifyGraph(graph);
}

// What was computed of a parameter is not the parameter.
TEST_F(FoldedParametersTest, ASlopeThatWasComputedIsLost) {
  parameter("w");
  node("PRelu", {folded("val_1", {1, 4}, countUp(4), "['abs_1', 'val_0', 'w']")}, "prelu",
       "aten.prelu.default", "%x, %abs_1");
  const ModuleParameters found = restore();
  EXPECT_EQ(found.unfolded, 0);
  ASSERT_THAT(found.lost, SizeIs(1));
  EXPECT_EQ(found.lost[0].name, "w");
}

TEST_F(FoldedParametersTest, GatesOfAnLstmAreInPyTorchsOrder) {
  for (const char* name : {"w_ih", "w_hh", "b_ih", "b_hh"}) parameter(name);
  // One row per gate: ONNX has input, output, forget, cell.
  const ValueId weights = folded("val_41", {1, 4, 1}, {0, 1, 2, 3}, "['w_ih', 'val_0', 'zeros']");
  const ValueId recurrent = folded("val_42", {1, 4, 1}, {4, 5, 6, 7}, "['w_hh', 'val_0']");
  const ValueId biases = folded("val_64", {1, 8}, countUp(8, 8), "['b_hh', 'b_ih', 'val_0']");
  node("LSTM", {weights, recurrent, biases}, "lstm", "aten.lstm.input",
       "%x, [%zeros, %zeros_1], [%p_w_ih, %p_w_hh, %p_b_ih, %p_b_hh], True");
  const ModuleParameters found = restore();
  EXPECT_EQ(found.unfolded, 4);
  EXPECT_THAT(found.lost, SizeIs(0));
  EXPECT_THAT(numbersOf("w_ih"), ElementsAre(0, 2, 3, 1));
  EXPECT_THAT(numbersOf("w_hh"), ElementsAre(4, 6, 7, 5));
  EXPECT_THAT(numbersOf("b_ih"), ElementsAre(8, 10, 11, 9));
  EXPECT_THAT(numbersOf("b_hh"), ElementsAre(12, 14, 15, 13));
  EXPECT_EQ(shapeOf("w_ih"), (Shape{4, 1}));
  EXPECT_EQ(shapeOf("b_hh"), (Shape{4}));
  verifyGraph(graph);
}

TEST_F(FoldedParametersTest, AnLstmThatMentionsOneOfTwoIsLeftAsItIs) {
  for (const char* name : {"b_ih", "b_hh"}) parameter(name);
  const ValueId biases = folded("val_64", {1, 8}, countUp(8), "['b_hh', 'b_ih']");
  node("LSTM", {weight("w", {1, 4, 1}), weight("r", {1, 4, 1}), biases}, "lstm", "aten.lstm.input",
       "%x, [%p_b_ih]");
  const ModuleParameters found = restore();
  EXPECT_EQ(found.unfolded, 0);
  EXPECT_THAT(found.lost, SizeIs(2));
}

// The table of a window of 2 x 2 places for one head; by pair of places, which differ by -1 to 1 rows,
// columns.
const std::vector<float> kPairs = {4, 3, 1, 0, 5, 4, 2, 1, 7, 6, 4, 3, 8, 7, 5, 4};

constexpr const char* kIndex = "b_relative_position_index: BUFFER target='relative_position_index'\n";

TEST_F(FoldedParametersTest, AWindowsTableHasARowPerDifference) {
  parameter("relative_position_bias_table");
  const ValueId biases = folded("unsqueeze", {1, 1, 4, 4}, kPairs,
                                "['clone', 'index', 'permute', 'relative_position_bias_table', "
                                "'relative_position_index', 'view']");
  signature += kIndex;
  node("Add", {biases}, "add", "aten.add.Tensor", "%x, %unsqueeze");
  EXPECT_EQ(restore().unfolded, 1);
  EXPECT_EQ(shapeOf("relative_position_bias_table"), (Shape{9, 1}));
  EXPECT_THAT(numbersOf("relative_position_bias_table"), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_THAT(before(), ElementsAre("Gather", "Transpose", "Reshape"));
  verifyGraph(graph);
}

TEST_F(FoldedParametersTest, AnotherTableIsLost) {
  parameter("relative_position_bias_table");
  std::vector<float> other = kPairs;
  other.back() = 9;  // of the same difference as the first
  signature += kIndex;
  node("Add",
       {folded("index", {16, 1}, other, "['relative_position_bias_table', 'relative_position_index']")},
       "add", "aten.add.Tensor", "%x, %index");
  EXPECT_EQ(restore().unfolded, 0);
}

TEST_F(FoldedParametersTest, OnePlusAWeightIsKnownByItsCode) {
  for (const char* name : {"a.weight", "b.weight"}) parameter(name);
  const ValueId sum = folded("add_4", {3}, {1, 1.5, 0.25}, "['a.weight', 'val_3']");
  for (const char* module : {"a", "b"}) {  // equal weights: one sum
    node("Mul", {sum}, std::string("mul_") + module, "aten.mul.Tensor", "%x, %add_4");
    scope(module);
    code("output = output * (1.0 + self.weight.float())");
  }
  const ModuleParameters found = restore();
  EXPECT_EQ(found.unfolded, 2);
  EXPECT_THAT(found.lost, SizeIs(0));
  EXPECT_THAT(numbersOf("a.weight"), ElementsAre(0, 0.5, -0.75));
  EXPECT_THAT(numbersOf("b.weight"), ElementsAre(0, 0.5, -0.75));
  EXPECT_THAT(before(), ElementsAre("Add", "Mul", "Add"));
  verifyGraph(graph);
}

TEST_F(FoldedParametersTest, ASumOfOtherCodeIsLost) {
  parameter("a.weight");
  node("Mul", {folded("add_4", {3}, {1, 2, 3}, "['a.weight', 'val_3']")}, "mul", "aten.mul.Tensor",
       "%x, %add_4");
  scope("a");
  code("output = output * (self.offset + self.weight)");
  EXPECT_EQ(restore().unfolded, 0);
}

}  // namespace
}  // namespace pipeshard
