// Whole training steps: which optimizer an update is, whatever way it is written, and what is left of the
// file without it. The files of golden/forms are PyTorch's optimizers, traced (tests/oracle/make_forms.py).
#include "onnx_import/forms/imported_optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "onnx_import/format/reader.h"
#include "onnx_import/forms/model_form.h"
#include "tests/onnx_import/model_files.h"

namespace pipeshard::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Graph stepFile(const std::string& name) {
  return readModel(PIPESHARD_SOURCE_DIR "/tests/golden/forms/" + name + ".onnx");
}

std::string optimizerOf(Graph graph) {
  const ReducedForm reduced = reduceForm(graph);
  return reduced.optimizer ? optimizerToString(reduced.optimizer->spec) : "none";
}

TEST(ImportedOptimizer, IsKnownByWhatItDoes) {
  EXPECT_EQ(optimizerOf(stepFile("step_sgd")), "sgd:lr=0.1,momentum=0,weight_decay=0.01,nesterov=0");
  EXPECT_EQ(optimizerOf(stepFile("step_momentum")), "sgd:lr=0.1,momentum=0.9,weight_decay=0,nesterov=0");
  EXPECT_EQ(optimizerOf(stepFile("step_nesterov")),
            "sgd:lr=0.05,momentum=0.8,weight_decay=0.0001,nesterov=1");
  EXPECT_EQ(optimizerOf(stepFile("step_adam")),
            "adam:lr=0.001,beta1=0.8,beta2=0.99,eps=1e-08,weight_decay=0.02");
  EXPECT_EQ(optimizerOf(stepFile("step_adamw")),
            "adamw:lr=0.001,beta1=0.9,beta2=0.999,eps=1e-08,weight_decay=0.01");
}

std::vector<std::string> names(const Graph& graph, const std::vector<ValueId>& values) {
  std::vector<std::string> result;
  for (ValueId id : values) result.push_back(graph.value(id).name);
  return result;
}

TEST(ImportedOptimizer, IsTakenOutOfTheGraph) {
  Graph graph = stepFile("step_adamw");
  const ReducedForm reduced = reduceForm(graph);
  EXPECT_EQ(reduced.found.form, ModelForm::kOptimizerInside);
  EXPECT_THAT(reduced.found.weight_inputs, ElementsAre("input_0", "input_1", "input_2", "input_3"));
  EXPECT_THAT(reduced.found.why,
              HasSubstr("outputs are input_0, input_1, input_2, input_3 after an update by adamw:lr=0.001"));
  EXPECT_EQ(reduced.loss, "output_0");
  EXPECT_THAT(reduced.others, IsEmpty());
  EXPECT_EQ(reduced.optimizer->step, "input_12");
  EXPECT_EQ(reduced.optimizer->learning_rate, "");
  ASSERT_THAT(reduced.optimizer->states, SizeIs(8));
  const ImportedState& state = reduced.optimizer->states[1];
  EXPECT_EQ(state.kind, "second_moment");
  EXPECT_EQ(state.parameter + " " + state.value + " " + state.output, "input_0 input_8 output_9");
  EXPECT_THAT(names(graph, graph.inputs),
              ElementsAre("input_0", "input_1", "input_2", "input_3", "input_13", "input_14"));
  ASSERT_THAT(graph.outputs, SizeIs(5)) << "the loss, and four gradients";
  verifyGraph(graph);
  const ImportedBackward backward = takeBackward(graph);
  ASSERT_THAT(backward.gradients, SizeIs(4));
  EXPECT_EQ(backward.gradients[2].parameter, "input_2");
  for (const Node& node : graph.nodes) EXPECT_FALSE(node.is("Pow") || node.is("Sqrt")) << describeNode(node);
}

TEST(ImportedOptimizer, ALearningRateMayBeAnInput) {
  Graph graph = stepFile("step_sgd_rate");
  const ReducedForm reduced = reduceForm(graph);
  EXPECT_EQ(reduced.optimizer->learning_rate, "input_4");
  EXPECT_EQ(reduced.optimizer->spec, OptimizerSpec()) << "the default stands for what is not known";
  EXPECT_THAT(names(graph, graph.inputs),
              ElementsAre("input_0", "input_1", "input_2", "input_3", "input_5", "input_6"));
}

TEST(ImportedOptimizer, WeightsMayBeInTheFile) {
  Graph graph = stepFile("step_adamw_inside");
  const ReducedForm reduced = reduceForm(graph);
  EXPECT_THAT(reduced.found.weight_inputs, IsEmpty());
  EXPECT_THAT(names(graph, graph.inputs), ElementsAre("input_9", "input_10")) << "no states, no step";
  EXPECT_THAT(takeBackward(graph).gradients, SizeIs(4));
}

TEST(ImportedOptimizer, OneThatIsNotOursIsRefused) {
  EXPECT_ERROR(optimizerOf(stepFile("step_amsgrad")), ErrorCode::kBadModel, "the update of 'input_0'",
               "none of SGD, SGD with momentum, Adam and AdamW", "3 states", "--optimizer takes its place");
  EXPECT_ERROR(optimizerOf(stepFile("step_clipped")), ErrorCode::kBadModel,
               "scaled by a number that depends on the batch (clipped by its norm?)");
  EXPECT_ERROR(optimizerOf(stepFile("step_groups")), ErrorCode::kBadModel, "the update of 'input_1'",
               "that of 'input_0' is adamw:", "one optimizer is for all weights");
}

TEST(ImportedOptimizer, AGivenOneTakesThePlaceOfOneThatIsNotOurs) {
  for (const char* name : {"step_amsgrad", "step_clipped", "step_groups"}) {
    Graph graph = stepFile(name);
    const ReducedForm reduced = reduceForm(graph, {.loss = "", .optimizer_given = true});
    EXPECT_EQ(reduced.found.form, ModelForm::kOptimizerInside);
    EXPECT_FALSE(reduced.optimizer.has_value());
    EXPECT_THAT(reduced.notes, ElementsAre(HasSubstr("--optimizer takes its place")));
    EXPECT_THAT(reduced.found.weight_inputs, ElementsAre("input_0", "input_1", "input_2", "input_3"));
    EXPECT_THAT(names(graph, graph.outputs), ElementsAre("output_0")) << "a forward pass";
    EXPECT_THAT(graph.inputs, SizeIs(6)) << "weights and the batch";
  }
}

// One weight of y = x * w, loss = sum(y * y) / 2, so that its gradient g = sum(y * x); then the update.
Graph oneWeight(const std::string& inputs, const std::string& outputs, const std::string& update) {
  return graphFromText(R"(<ir_version: 8, opset_import: ["" : 18]>
    agraph (float[4] w, float[n,4] x)" +
                       inputs + ") => (float loss, float[4] w2" + outputs + R"()
    {
      y = Mul(x, w)
      squares = Mul(y, y)
      half = Constant<value = float {0.5}>()
      halves = Mul(squares, half)
      loss = ReduceSum<keepdims = 0>(halves)
      zero = Constant<value_ints = [0]>()
      yx = Mul(y, x)
      g = ReduceSum<keepdims = 0>(yx, zero)
    )" + update + "}");
}

std::string gradientOf(Graph graph) {
  reduceForm(graph);
  return takeBackward(graph).gradients.at(0).output;
}

TEST(ImportedOptimizer, TheLearningRateIsTheFactorBeforeTheSubtraction) {
  const std::string rate = "rate = Constant<value = float {0.1}>()\n";
  const Graph plain = oneWeight("", "", rate + "step = Mul(rate, g)\nw2 = Sub(w, step)");
  EXPECT_EQ(optimizerOf(plain), "sgd:lr=0.1,momentum=0,weight_decay=0,nesterov=0");
  EXPECT_EQ(gradientOf(plain), "g");
  const Graph scaled = oneWeight(
      "", "", rate + "mean = Mul(g, half)\nstep = Mul(rate, mean)\nback = Neg(step)\nw2 = Add(w, back)");
  EXPECT_EQ(optimizerOf(scaled), "sgd:lr=0.1,momentum=0,weight_decay=0,nesterov=0");
  EXPECT_EQ(gradientOf(scaled), "mean");
  const Graph decayed = oneWeight("", "", rate + R"(
      kept = Constant<value = float {0.998}>()
      old = Mul(w, kept)
      step = Mul(g, rate)
      w2 = Sub(old, step))");
  EXPECT_EQ(optimizerOf(decayed), "sgd:lr=0.1,momentum=0,weight_decay=0.02,nesterov=0");
}

TEST(ImportedOptimizer, AVelocityMayHaveTheLearningRateInIt) {
  const Graph graph = oneWeight(", float[4] v", ", float[4] v2", R"(
      momentum = Constant<value = float {0.9}>()
      rate = Constant<value = float {0.2}>()
      slowed = Mul(v, momentum)
      step = Mul(g, rate)
      v2 = Sub(slowed, step)
      w2 = Add(w, v2))");
  EXPECT_EQ(optimizerOf(graph), "sgd:lr=0.2,momentum=0.9,weight_decay=0,nesterov=0");
}

TEST(ImportedOptimizer, AVelocityMayBeAnAverage) {
  const Graph graph = oneWeight(", float[4] v", ", float[4] v2", R"(
      momentum = Constant<value = float {0.9}>()
      rest = Constant<value = float {0.1}>()
      rate = Constant<value = float {0.5}>()
      slowed = Mul(v, momentum)
      fresh = Mul(g, rest)
      v2 = Add(slowed, fresh)
      step = Mul(v2, rate)
      w2 = Sub(w, step))");
  EXPECT_EQ(optimizerOf(graph), "sgd:lr=0.05,momentum=0.9,weight_decay=0,nesterov=0");
  EXPECT_EQ(gradientOf(graph), "g");
}

// Adam with what is done to the averages before they are divided.
Graph adamLike(const std::string& inputs, const std::string& outputs, const std::string& correction) {
  return oneWeight(", float[4] m, float[4] v" + inputs, ", float[4] m2, float[4] v2" + outputs, R"(
      b1 = Constant<value = float {0.9}>()
      c1 = Constant<value = float {0.1}>()
      b2 = Constant<value = float {0.999}>()
      c2 = Constant<value = float {0.001}>()
      one = Constant<value = float {1}>()
      eps = Constant<value = float {1e-7}>()
      rate = Constant<value = float {0.01}>()
      m_old = Mul(m, b1)
      m_new = Mul(g, c1)
      m2 = Add(m_old, m_new)
      gg = Mul(g, g)
      v_old = Mul(v, b2)
      v_new = Mul(gg, c2)
      v2 = Add(v_old, v_new)
      )" + correction + R"(
      root = Sqrt(v_hat)
      deviation = Add(root, eps)
      direction = Div(m_hat, deviation)
      step = Mul(rate, direction)
      w2 = Sub(w, step))");
}

constexpr const char* kCorrected = R"(
      p1 = Pow(b1, t)
      q1 = Sub(one, p1)
      m_hat = Div(m2, q1)
      p2 = Pow(b2, t)
      q2 = Sub(one, p2)
      v_hat = Div(v2, q2))";

TEST(ImportedOptimizer, AStepMayCountBeforeOrAfter) {
  const std::string adam = "adam:lr=0.01,beta1=0.9,beta2=0.999,eps=1e-07,weight_decay=0";
  const Graph after = adamLike(", int64 count", ", int64 count2", std::string(R"(
      unit = Constant<value = int64 {1}>()
      count2 = Add(count, unit)
      t = Cast<to = 1>(count2))") + kCorrected);
  EXPECT_EQ(optimizerOf(after), adam);
  const Graph before = adamLike(", int64 count", "", std::string("t = Cast<to = 1>(count)") + kCorrected);
  EXPECT_EQ(optimizerOf(before), adam);
}

TEST(ImportedOptimizer, SaysWhatIsMissingOfAdam) {
  EXPECT_ERROR(optimizerOf(adamLike("", "", "m_hat = Identity(m2)\nv_hat = Identity(v2)")),
               ErrorCode::kBadModel, "the update of 'w'", "it is Adam, but no step counts");
  const Graph late = adamLike(", int64 count", "", std::string("t = Cast<to = 1>(count)") + kCorrected);
  Graph wrong = late;
  for (Node& node : wrong.nodes) {  // sqrt(v) + eps is corrected, not sqrt(v)
    if (node.is("Div") && wrong.value(node.outputs[0]).name == "v_hat") node.op_type = "Mul";
  }
  EXPECT_ERROR(optimizerOf(wrong), ErrorCode::kBadModel,
               "it could be Adam (beta1 0.9, beta2 0.999), but its result is another");
}

TEST(ImportedOptimizer, AnAverageOfSquaresAloneIsNone) {
  const Graph graph = oneWeight(", float[4] v", ", float[4] v2", R"(
      gg = Mul(g, g)
      v2 = Add(v, gg)
      root = Sqrt(v2)
      eps = Constant<value = float {1e-7}>()
      deviation = Add(root, eps)
      step = Div(g, deviation)
      w2 = Sub(w, step))");
  EXPECT_ERROR(optimizerOf(graph), ErrorCode::kBadModel,
               "with one state it could be SGD with momentum, but it is not");
}

TEST(ImportedOptimizer, AStateThatNothingUpdatesIsRefused) {
  const Graph graph = oneWeight(", float[4] v", "", R"(
      momentum = Constant<value = float {0.9}>()
      slowed = Mul(v, momentum)
      v2 = Add(slowed, g)
      w2 = Sub(w, v2))");
  EXPECT_ERROR(optimizerOf(graph), ErrorCode::kBadModel,
               "it reads 'v' float32[4], of which no output is the new value");
}

TEST(ImportedOptimizer, APenaltyInTheLossIsNoDecay) {
  Graph graph = graphFromText(R"(<ir_version: 8, opset_import: ["" : 18]>
    agraph (float[4] w, float[n,4] x) => (float loss, float[4] w2)
    {
      y = Mul(x, w)
      fit = ReduceSum<keepdims = 0>(y)
      ww = Mul(w, w)
      size = ReduceSum<keepdims = 0>(ww)
      small = Constant<value = float {0.01}>()
      penalty = Mul(size, small)
      loss = Add(fit, penalty)
      zero = Constant<value_ints = [0]>()
      data = ReduceSum<keepdims = 0>(x, zero)
      double = Constant<value = float {0.02}>()
      pull = Mul(w, double)
      g = Add(data, pull)
      rate = Constant<value = float {0.1}>()
      step = Mul(rate, g)
      w2 = Sub(w, step)
    })");
  EXPECT_EQ(optimizerOf(graph), "sgd:lr=0.1,momentum=0,weight_decay=0,nesterov=0");
  EXPECT_EQ(gradientOf(graph), "g");
}

}  // namespace
}  // namespace pipeshard::testing
