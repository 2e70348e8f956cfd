// Files with forward and backward pass: which outputs are gradients, and of what. The files of golden/forms
// are PyTorch's (tests/oracle/make_forms.py).
#include "onnx_import/forms/joint_gradients.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "onnx_import/format/reader.h"
#include "onnx_import/forms/model_form.h"
#include "tests/onnx_import/forms/recognised_form.h"
#include "tests/onnx_import/model_files.h"

namespace pipeshard::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Graph formFile(const std::string& name) {
  return readModel(PIPESHARD_SOURCE_DIR "/tests/golden/forms/" + name + ".onnx");
}

// "output_1: fc.weight"
std::vector<std::string> pairs(const JointGradients& found) {
  std::vector<std::string> text;
  for (const ImportedGradient& gradient : found.gradients)
    text.push_back(gradient.output + ": " + gradient.parameter);
  return text;
}
std::vector<std::string> pairs(const Graph& graph) { return pairs(findGradients(StepGraph(graph))); }

TEST(JointGradients, ArePairedInTheOrderOfTheWeights) {
  EXPECT_THAT(pairs(formFile("joint")),
              ElementsAre("output_1: scale", "output_2: first_weight", "output_3: first_bias",
                          "output_4: second_weight", "output_5: second_bias", "output_6: third_weight",
                          "output_7: third_bias", "output_8: head_weight", "output_9: head_bias"));
}

TEST(JointGradients, OfSomeOfTheWeightsArePairedByWhatTheyAreMadeOf) {
  // [8,8] is second or third, [5] scale or head_bias, [8] first or second or third
  EXPECT_THAT(pairs(formFile("joint_frozen")),
              ElementsAre("output_1: first_weight", "output_2: first_bias", "output_3: third_weight",
                          "output_4: third_bias", "output_5: head_weight", "output_6: head_bias"));
}

TEST(JointGradients, WithAPenaltyOnWeightsAreNoUpdates) {
  EXPECT_THAT(pairs(formFile("joint_decay")),
              ElementsAre("output_1: scale", "output_2: first_weight", "output_3: first_bias",
                          "output_4: second_weight", "output_5: second_bias", "output_6: third_weight",
                          "output_7: third_bias", "output_8: head_weight", "output_9: head_bias"));
}

TEST(JointGradients, AreNoRunningStatistics) {
  const JointGradients found = findGradients(StepGraph(formFile("joint_running")));
  EXPECT_THAT(pairs(found),
              ElementsAre("output_1: first_weight", "output_2: first_bias", "output_3: norm_weight",
                          "output_4: norm_bias", "output_5: head_weight", "output_6: head_bias"));
  EXPECT_THAT(found.others, ElementsAre("output_7", "output_8"));
}

TEST(JointGradients, OfInputsThatAreWeights) {
  const Graph graph = formFile("joint_inputs");
  const FoundForm form = recogniseForm(graph);
  EXPECT_EQ(form.form, ModelForm::kForwardAndBackward);
  EXPECT_THAT(form.weight_inputs, ElementsAre("primals_1", "primals_2", "primals_3", "primals_4", "primals_5",
                                              "primals_6", "primals_7", "primals_8", "primals_9"));
  EXPECT_EQ(pairs(graph)[1], "output_2: primals_2");
}

TEST(JointGradients, ByName) {
  const Graph graph = readModel(PIPESHARD_SOURCE_DIR "/tests/oracle/golden/joint.onnx");
  const JointGradients found = findGradients(StepGraph(graph));
  EXPECT_TRUE(found.by_name);
  EXPECT_EQ(found.gradients.size(), 8u);
  EXPECT_THAT(found.weight_inputs, IsEmpty());
  EXPECT_THAT(recogniseForm(graph).why, HasSubstr("grad_first.weight, grad_first.bias"));
}

// y = x w + b and loss = mean((y - t)^2), then the given nodes and outputs.
std::string regression(const std::string& outputs, const std::string& more) {
  return R"(<ir_version: 8, opset_import: ["" : 18]>
    agraph (float[n,4] x, float[n,4] t) => (float loss)" +
         outputs + R"()
    <float[4,4] w = {1,0,0,0,0,1,0,0,0,0,1,0,0,0,0,1}, float[4] b = {0,0,0,0}>
    {
      product = MatMul(x, w)
      y = Add(product, b)
      difference = Sub(y, t)
      squares = Mul(difference, difference)
      loss = ReduceMean<keepdims = 0>(squares)
      two = Constant<value = float {0.5}>()
      dy = Mul(difference, two)
    )" + more +
         "}";
}

TEST(JointGradients, OfPartOfTheWeights) {
  const Graph graph = graphFromText(regression(
      ", float[4] g", "zero = Constant<value_ints = [0]>()\ng = ReduceSum<keepdims = 0>(dy, zero)"));
  EXPECT_EQ(recogniseForm(graph).form, ModelForm::kForwardWithLoss) << "one output of two may be anything";
}

// As ONNX Runtime writes the gradient of a first layer: that of its input is not asked for.
TEST(JointGradients, NodesMayLeaveOutTheirFirstOutput) {
  const StepGraph step(graphFromText(R"(<ir_version: 8, opset_import: ["" : 18, "com.microsoft" : 1]>
    agraph (float[2,1,4,4] x, float[2,1,4,4] t) => (float loss, float[1,1,1,1] dw)
    <float[1,1,1,1] w = {1}>
    {
      y = Conv(x, w)
      difference = Sub(y, t)
      squares = Mul(difference, difference)
      loss = ReduceMean<keepdims = 0>(squares)
      "", dw = com.microsoft.ConvGrad(difference, x, w)
    })"));
  const auto makerOf = [&](const char* name) { return step.producer(findValue(step.graph(), name)); };
  ASSERT_NE(makerOf("dw"), nullptr);
  EXPECT_FALSE(step.feedsLoss(*makerOf("dw")));
  EXPECT_TRUE(step.feedsLoss(*makerOf("y")));
}

TEST(JointGradients, OutputsOfAForwardPassAreNone) {
  for (const auto& [outputs, nodes] : std::vector<std::pair<std::string, std::string>>{
           {", float[n,4] y", ""},
           {", float[4] mean",
            "zero = Constant<value_ints = [0]>()\nmean = ReduceMean<keepdims = 0>(y, zero)"},
           {", float[4,4] w_copy", "w_copy = Identity(w)"},
           {", float[4,4] w_next", "xt = Transpose(x)\nchange = MatMul(xt, dy)\nw_next = Sub(w, change)"},
           {", float[4] zeros", "zeros = Sub(b, b)"}}) {
    const Graph graph = graphFromText(regression(outputs, nodes));
    EXPECT_THAT(pairs(graph), IsEmpty()) << outputs;
  }
}

TEST(JointGradients, ThatMayBelongToSeveralWeightsAreRefused) {
  // y = (x + a) + b, summed: nothing tells the gradients of the three biases apart, and one is frozen.
  const Graph graph = graphFromText(R"(<ir_version: 8, opset_import: ["" : 18]>
    agraph (float[n,4] x) => (float loss, float[4] p, float[4] q)
    <float[4] a = {0,0,0,0}, float[4] b = {0,0,0,0}, float[4] c = {0,0,0,0}>
    {
      with_a = Add(x, a)
      with_b = Add(with_a, b)
      y = Add(with_b, c)
      squares = Mul(y, y)
      loss = ReduceSum<keepdims = 0>(squares)
      zero = Constant<value_ints = [0]>()
      two = Constant<value = float {2}>()
      dy = Mul(y, two)
      p = ReduceSum<keepdims = 0>(dy, zero)
      q = ReduceSum<keepdims = 0>(dy, zero)
    })");
  EXPECT_ERROR(recogniseForm(graph), ErrorCode::kBadModel,
               "'p' float32[4], 'q' float32[4] look like gradients",
               "several ways to pair them with the weights 'a' float32[4], 'b' float32[4], 'c' float32[4]",
               "grad_<weight>");
}

TEST(JointGradients, AreTakenOutByTheirMarks) {
  Graph graph = formFile("joint_frozen");
  markGradients(graph, findGradients(StepGraph(graph)).gradients);
  const ImportedBackward backward = takeBackward(graph);
  ASSERT_EQ(backward.gradients.size(), 6u);
  EXPECT_EQ(backward.gradients[2].parameter, "third_weight");
  EXPECT_EQ(backward.gradients[2].output, "output_3");
  EXPECT_EQ(graph.outputs.size(), 1u);
  EXPECT_EQ(recogniseForm(graph).form, ModelForm::kForwardWithLoss);
}

TEST(JointGradients, TheSeedIsOne) {
  Graph graph = graphFromText(R"(<ir_version: 8, opset_import: ["" : 18]>
    agraph (float[4] w, float[n,4] x, float tangents_1) => (float loss, float[4] g)
    {
      y = Mul(x, w)
      squares = Mul(y, y)
      loss = ReduceSum<keepdims = 0>(squares)
      zero = Constant<value_ints = [0]>()
      two = Constant<value = float {2}>()
      scaled = Mul(y, two)
      seeded = Mul(scaled, tangents_1)
      of_w = Mul(seeded, x)
      g = ReduceSum<keepdims = 0>(of_w, zero)
    })");
  const ReducedForm reduced = reduceForm(graph);
  EXPECT_THAT(reduced.found.weight_inputs, ElementsAre("w"));
  EXPECT_EQ(elementsOf(graph, "tangents_1"), std::vector<double>{1});
  EXPECT_EQ(graph.inputs.size(), 2u);
  EXPECT_THAT(reduced.notes, ElementsAre(HasSubstr("'tangents_1' is the gradient of the loss")));
}

TEST(JointGradients, AMarkOfSomethingThatIsNotThereIsRefused) {
  Graph graph = formFile("joint");
  markGradients(graph, {{"second_weight", "output_8"}});
  EXPECT_ERROR(takeBackward(graph), ErrorCode::kBadModel,
               "output 'output_8' float32[5,8] is marked as the gradient of 'second_weight'");
}

// What is wrong with it is told by preparation, which knows the sizes.
TEST(ModelForm, OfAGraphThatContradictsItselfIsFoundAllTheSame) {
  Graph graph = testing::graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[batch,3] x) => (float loss) <float[4,2] w = {1, 2, 3, 4, 5, 6, 7, 8}> {
      y = MatMul(x, w)
      loss = ReduceMean <keepdims = 0> (y) })");
  EXPECT_EQ(reduceForm(graph).found.form, ModelForm::kForwardWithLoss);
}

}  // namespace
}  // namespace pipeshard::testing
