// What a look at a model tells before anything is planned.
#include "planning/model/inspection.h"

#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planning/model/training_step.h"
#include "tests/onnx_import/model_files.h"

namespace pipeshard {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using Kind = Verdict::Kind;

// The layer h = x w, and what is made of it.
std::string layerAnd(const std::string& inputs, const std::string& nodes) {
  return "<ir_version: 10, opset_import: [\"\" : 18]> g (" + inputs +
         ") => (float loss) <float[2,3] w = {1,2,3,4,5,6}> { h = MatMul(x, w) " + nodes + " }";
}

constexpr const char* kMean = "loss = ReduceMean <keepdims = 0> (h)";

class Inspection : public ::testing::Test {
 protected:
  // As `inspect` does.
  ForwardModel look(const std::string& text, const GivenOptions& given = {},
                    const std::map<std::string, int64_t>& dimensions = {{"n", 4}}) const {
    PlanRequest request;
    request.given = given;
    request.model_path = folder_.write("model.onnx", testing::parseText(text));
    request.dimensions = dimensions;
    request.microbatches = 1;
    request.any_sizes = true;
    request.allow_missing_weights = true;
    return loadForward(request, {}, [](const std::string&) {});
  }

  testing::ModelFolder folder_;
};

TEST_F(Inspection, CountsOneForwardPass) {
  const ModelTotals totals = countTotals(look(layerAnd("float[n,2] x", kMean)));
  EXPECT_EQ(totals.parameters, 6);
  EXPECT_EQ(totals.parameter_bytes, 6 * 4);
  EXPECT_EQ(totals.activation_bytes, (4 * 3 + 1) * 4) << "h and the loss";
  EXPECT_GE(totals.flops, 2 * 4 * 2 * 3);
}

TEST_F(Inspection, AModelIsTrainedAndItsBatchCut) {
  const ForwardModel model = look(layerAnd("float[n,2] x", kMean));
  EXPECT_EQ(trainingRefusal(model, {}), "");
  const ModelVerdicts verdicts = judgeModel(model, "");
  EXPECT_EQ(verdicts.training.kind, Kind::kPossible);
  ASSERT_TRUE(verdicts.microbatches);
  EXPECT_EQ(verdicts.microbatches->kind, Kind::kPossible);
  EXPECT_EQ(verdicts.microbatches->text, "the batch (n) can be cut");
}

TEST_F(Inspection, ABatchOfFixedSizeIsNotCut) {
  const ModelVerdicts verdicts = judgeModel(look(layerAnd("float[4,2] x", kMean), {}, {}), "");
  EXPECT_EQ(verdicts.training.kind, Kind::kPossible);
  ASSERT_TRUE(verdicts.microbatches);
  EXPECT_EQ(verdicts.microbatches->kind, Kind::kMissing);
  EXPECT_THAT(verdicts.microbatches->text,
              HasSubstr("the batch of the file has a fixed size of 4 examples and is not cut"));
}

// Each row with each other.
constexpr const char* kMeeting =
    "t = Transpose(h) m = MatMul(h, t) p = Softmax <axis = 0> (m) "
    "q = Mul(p, p) loss = ReduceMean <keepdims = 0> (q)";

// As planning says of the same sizes.
TEST_F(Inspection, SeveralBatchesOfAFileAreNotTheLossOfAllWhereExamplesMeet) {
  const auto judge = [&](const std::string& nodes, int64_t examples) {
    return judgeModel(look(layerAnd("float[4,2] x", nodes), {}, {{"batch", examples}}), "");
  };
  EXPECT_EQ(judge(kMean, 12).training.kind, Kind::kPossible);
  EXPECT_EQ(judge(kMeeting, 4).training.kind, Kind::kPossible);
  const ModelVerdicts verdicts = judge(kMeeting, 12);
  EXPECT_EQ(verdicts.training.kind, Kind::kRefused);
  EXPECT_THAT(verdicts.training.text,
              AllOf(HasSubstr("--dim asks for the loss of 12 examples"),
                    HasSubstr("combines every example of 'h' with every example of 't'"),
                    HasSubstr("--microbatches 3 without --dim"), HasSubstr("x.shape[0]")));
  EXPECT_THAT(verdicts.microbatches->text, HasSubstr("not the loss of all where examples meet"));
  EXPECT_ERROR(judge(kMean, 6), ErrorCode::kConfiguration, "a batch of 6 does not fit",
               "give a multiple of 4");
}

// At one row the parts of the Split, [1,2n,3,2], have the shape of what they are viewed as, [n,2,3,2].
TEST_F(Inspection, RowsThatAreMergedWithHeadsCanBeCutOneByOne) {
  std::string numbers;
  for (int i = 0; i < 48; ++i) numbers += (i == 0 ? "0." : ",0.") + std::to_string(i * 37 % 89);
  const ForwardModel model = look(
      "<ir_version: 10, opset_import: [\"\" : 18]> g (float[n,3,4] x) => (float loss) <float[4,12] w = {" +
      numbers +
      "}, int64[5] all = {-1,3,3,2,2}, int64[4] merged = {3,-1,3,2}, int64[4] heads = {-1,2,3,2}, "
      "int64[1] zero = {0}> { "
      "l = MatMul(x, w) r = Reshape(l, all) p = Transpose <perm = [2,0,3,1,4]> (r) u = Reshape(p, merged) "
      "a, b, c = Split <axis = 0, num_outputs = 3> (u) "
      "a1 = Squeeze(a, zero) b1 = Squeeze(b, zero) c1 = Squeeze(c, zero) "
      "q = Reshape(a1, heads) k = Reshape(b1, heads) v = Reshape(c1, heads) "
      "kt = Transpose <perm = [0,1,3,2]> (k) s = MatMul(q, kt) e = Softmax <axis = -1> (s) o = MatMul(e, v) "
      "f = Mul(o, o) loss = ReduceMean <keepdims = 0> (f) }");
  EXPECT_THAT(model.notes, Contains(HasSubstr("1 Attention")));
  const OptimizerSpec optimizer;
  for (const int64_t microbatches : {2, 4})
    EXPECT_NO_THROW(trainingFamily(model, optimizer, {4, microbatches, true}).base()) << microbatches;
}

TEST_F(Inspection, ASizeThatItChoseItselfIsTold) {
  const std::string model = R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[n,1,t] x, float[1,1,20] w) => (y) { y = Conv(x, w) })";
  EXPECT_ERROR(look(model), ErrorCode::kBadModel, "t = 16", "as nobody gave a size", "--dim t=N");
}

TEST_F(Inspection, ALossOfTheWholeBatchIsTrainedButNotCut) {
  const ModelVerdicts verdicts = judgeModel(look(layerAnd("float[n,2] x", kMeeting)), "");
  EXPECT_EQ(verdicts.training.kind, Kind::kPossible) << verdicts.training.text;
  ASSERT_TRUE(verdicts.microbatches);
  EXPECT_EQ(verdicts.microbatches->kind, Kind::kRefused);
  EXPECT_THAT(verdicts.microbatches->text, HasSubstr("batch"));
}

TEST_F(Inspection, AnOperatorWithoutAGradientIsNamed) {
  const ForwardModel model =
      look(layerAnd("float[n,2] x",
                    "pads = Constant <value = int64[4] {0,0,0,1}> () value = ReduceSum <keepdims = 0> (w) "
                    "p = Pad(h, pads, value) loss = ReduceMean <keepdims = 0> (p)"));
  EXPECT_EQ(trainingRefusal(model, {}), "");
  const Verdict training = judgeModel(model, "").training;
  EXPECT_EQ(training.kind, Kind::kRefused);
  EXPECT_THAT(training.text, HasSubstr("Pad"));
  EXPECT_THAT(training.text, HasSubstr("the value it pads with depends on a parameter"));
}

TEST_F(Inspection, NothingIsAskedOfAModelWithoutALoss) {
  const ForwardModel model = look(
      "<ir_version: 10, opset_import: [\"\" : 18]> g (float[n,2] x) => (float[n,3] y) "
      "<float[2,3] w = {1,2,3,4,5,6}> { y = MatMul(x, w) }");
  const ModelVerdicts verdicts = judgeModel(model, "");
  EXPECT_EQ(verdicts.training.kind, Kind::kMissing);
  EXPECT_THAT(verdicts.training.text, HasSubstr("--loss says which"));
  EXPECT_FALSE(verdicts.microbatches);
}

TEST_F(Inspection, AFileThatTakesOtherSizesSaysItsDimensions) {
  const std::string text =
      "<ir_version: 10, opset_import: [\"\" : 18]> g (float[n,tokens,2] x) => (float[n,tokens,2] y) "
      "<float[8,1] table = {0,0,0,0,0,0,0,0}> { y = Add(x, table) }";
  EXPECT_ERROR(look(text), ErrorCode::kBadModel, "n = 4 is given", "tokens = 16 is chosen", "--dim tokens=N");
  PlanRequest request;
  request.model_path = folder_.file("model.onnx");
  request.dimensions = {{"n", 4}};
  EXPECT_THAT(declaredValues(request),
              ::testing::ElementsAre("input x float32[n,tokens,2]", "output y float32[n,tokens,2]",
                                     "dimensions n = 4, tokens (--dim tokens=N)"));
}

// And its reason stands for that of the step.
TEST_F(Inspection, AModelWithNothingToTrainIsRefusedBeforeAStepIsMade) {
  GivenOptions given;
  given.freeze = {"^w$"};
  const ForwardModel model = look(layerAnd("float[n,2] x", kMean), given);
  const std::string refusal = trainingRefusal(model, given);
  EXPECT_THAT(refusal, HasSubstr("there is no weight to train"));
  const ModelVerdicts verdicts = judgeModel(model, refusal);
  EXPECT_EQ(verdicts.training.kind, Kind::kRefused);
  EXPECT_EQ(verdicts.training.text, refusal);
  EXPECT_TRUE(verdicts.microbatches);
}

// Beside the loss: h, and what a mask selects of it.
constexpr const char* kOutputsInTheWay = R"(<ir_version: 10, opset_import: ["" : 18]>
  g (float[n,2] x) => (float loss, int64[2,k] chosen, float[n,3] h)
  <float[2,3] w = {1,2,3,4,5,6}> {
    h = MatMul(x, w) loss = ReduceMean <keepdims = 0> (h) chosen = NonZero(h) })";

TEST_F(Inspection, OutputsInTheWayOfALossAreLeftOut) {
  const ForwardModel model = look(kOutputsInTheWay);
  EXPECT_EQ(model.outputs, std::vector<std::string>{"h"});
  EXPECT_THAT(model.notes, Contains(HasSubstr("outputs left out, as the loss does not need them and their "
                                              "shapes depend on data or do not go with every part of the "
                                              "batch: chosen")));
  EXPECT_TRUE(findValue(model.graph, "h").valid());
  EXPECT_FALSE(findValue(model.graph, "chosen").valid());
  const ModelVerdicts verdicts = judgeModel(model, "");
  EXPECT_EQ(verdicts.training.kind, Kind::kPossible) << verdicts.training.text;
  ASSERT_TRUE(verdicts.microbatches);
  EXPECT_EQ(verdicts.microbatches->kind, Kind::kPossible) << verdicts.microbatches->text;
}

// Two rows at a time: one row alone is refused where shapes are inferred, before dead code is removed.
TEST_F(Inspection, AnOutputThatDoesNotGoWithEveryPartOfTheBatchIsLeftOut) {
  const ForwardModel model = look(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[n,2] x) => (float loss, float[pairs,2,3] grouped, float[n,3] h)
    <float[2,3] w = {1,2,3,4,5,6}, int64[3] by_two = {-1,2,3}> {
      h = MatMul(x, w) loss = ReduceMean <keepdims = 0> (h) grouped = Reshape(h, by_two) })");
  EXPECT_EQ(model.outputs, std::vector<std::string>{"h"});
  EXPECT_THAT(model.notes, Contains(HasSubstr("every part of the batch: grouped")));
  EXPECT_EQ(model.prepared(1).shape(findValue(model.prepared(1), "h")), (Shape{1, 3}));
  const ModelVerdicts verdicts = judgeModel(model, "");
  ASSERT_TRUE(verdicts.microbatches);
  EXPECT_EQ(verdicts.microbatches->kind, Kind::kPossible) << verdicts.microbatches->text;
}

TEST_F(Inspection, NoOutputIsLeftOutWhereAllAreAskedFor) {
  GivenOptions evaluated;
  evaluated.optimizer.kind = OptimizerSpec::Kind::kNone;
  EXPECT_ERROR(look(kOutputsInTheWay, evaluated), ErrorCode::kBadModel, "'chosen'", "depends on data");
}

TEST_F(Inspection, WhatTheLossNeedsIsNotLeftOut) {
  EXPECT_ERROR(
      look(R"(<ir_version: 10, opset_import: ["" : 18]> g (float[n,2] x) => (float loss, int64[2,k] chosen)
              <float[2,3] w = {1,2,3,4,5,6}> {
                h = MatMul(x, w) chosen = NonZero(h) places = Cast <to = 1> (chosen)
                loss = ReduceMean <keepdims = 0> (places) })"),
      ErrorCode::kBadModel, "'chosen'", "depends on data");
}

}  // namespace
}  // namespace pipeshard
