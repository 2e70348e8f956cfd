// What a look at a model tells before anything is planned.
#include "planning/model/inspection.h"

#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/onnx_import/model_files.h"

namespace pipeshard {
namespace {

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
  EXPECT_THAT(verdicts.microbatches->text, HasSubstr("no input has a symbolic batch dimension"));
}

TEST_F(Inspection, ASizeThatItChoseItselfIsTold) {
  const std::string model = R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[n,1,t] x, float[1,1,20] w) => (y) { y = Conv(x, w) })";
  EXPECT_ERROR(look(model), ErrorCode::kBadModel, "t = 16", "as nobody gave a size", "--dim t=N");
}

// Each row with each other.
TEST_F(Inspection, ALossOfTheWholeBatchIsTrainedButNotCut) {
  const ModelVerdicts verdicts =
      judgeModel(look(layerAnd("float[n,2] x",
                               "t = Transpose(h) m = MatMul(h, t) p = Softmax <axis = 0> (m) "
                               "q = Mul(p, p) loss = ReduceMean <keepdims = 0> (q)")),
                 "");
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
