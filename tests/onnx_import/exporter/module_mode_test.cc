#include "onnx_import/exporter/module_mode.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/onnx_import/model_files.h"

namespace pipeshard {
namespace {

const char* const kModel = R"(<ir_version: 10, opset_import: ["" : 18]>
m (float[2,3,4,4] x) => (float[2,3,4,4] y)
<float[3] scale = {1, 1, 1}, float[3] bias = {0, 0, 0}, float[3] mean = {0, 0, 0}, float[3] var = {1, 1, 1},
 float ratio = {0.5}, bool no = {0}, bool yes = {1}>
{
  a = BatchNormalization (x, scale, bias, mean, var)
  b = Dropout (a, ratio)
  c = Dropout (b, ratio, no)
  y = Dropout (c, ratio, yes)
})";

TEST(ModuleMode, NormalizationsAndDropoutsInInferenceModeAreTrained) {
  Graph graph = testing::graphFromText(kModel);
  const ChangedModes changed = setTrainingMode(graph);
  EXPECT_EQ(changed.normalizations, 1);
  EXPECT_EQ(changed.dropouts, 2);
  const Node& normalization = graph.nodes[0];
  EXPECT_EQ(normalization.intAttribute("training_mode", 0), 1);
  ASSERT_EQ(normalization.outputs.size(), 3U);
  EXPECT_EQ(graph.value(normalization.outputs[1]).name, "mean.updated");
  EXPECT_EQ(graph.value(normalization.outputs[2]).name, "var.updated");
  for (size_t n = 1; n < graph.nodes.size(); ++n) {
    const Constant* mode = graph.constant(graph.nodes[n].inputs.at(2));
    ASSERT_NE(mode, nullptr);
    EXPECT_EQ(mode->bytes[0], std::byte{1}) << n;
  }
  verifyGraph(graph);
  const ChangedModes again = setTrainingMode(graph);
  EXPECT_EQ(again.normalizations + again.dropouts, 0);
}

// A network that is trained, on a backbone whose normalisations are in evaluation mode.
TEST(ModuleMode, WhereTheFileTellsTheOthersStayInEvaluationMode) {
  Graph graph = testing::graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
m (float[2,3,4,4] x) => (float[2,3,4,4] y)
<float[3] scale = {1, 1, 1}, float[3] bias = {0, 0, 0}, float[3] mean = {0, 0, 0}, float[3] var = {1, 1, 1}>
{
  a = BatchNormalization (x, scale, bias, mean, var)
  y = BatchNormalization (a, scale, bias, mean, var)
})");
  for (size_t n = 0; n < 2; ++n) {
    graph.nodes[n].metadata = {
        {"pkg.torch.onnx.fx_node",
         fmt::format(
             "%norm_{} : [num_users=1] = call_function[target=torch.ops.aten.batch_norm.default](args = (%x, "
             "%p_w, %p_b, %b_m, %b_v, {}, 0.1, 1e-05, True), kwargs = {{}})",
             n, n == 0 ? "False" : "True")}};
  }
  const ChangedModes changed = setTrainingMode(graph);
  EXPECT_EQ(changed.normalizations, 1);
  EXPECT_EQ(changed.in_evaluation, 1);
  EXPECT_EQ(graph.nodes[0].intAttribute("training_mode", 0), 0);
  EXPECT_EQ(graph.nodes[1].intAttribute("training_mode", 0), 1);
}

TEST(ModuleMode, StatisticsThatDoNotMoveAreCounted) {
  Graph graph = testing::graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
m (float[2,3,4,4] x) => (float[2,3,4,4] y)
<float[3] scale = {1, 1, 1}, float[3] bias = {0, 0, 0}, float[3] mean = {0, 0, 0}, float[3] var = {1, 1, 1}>
{
  a = BatchNormalization (x, scale, bias, mean, var)
  b = BatchNormalization <momentum = 1.0> (a, scale, bias, mean, var)
  others = Mul (mean, scale)
  y = BatchNormalization (b, scale, bias, others, var)
})");
  const ChangedModes changed = setTrainingMode(graph);
  EXPECT_EQ(changed.normalizations, 3);
  EXPECT_EQ(changed.standing, 2);
}

// Not those that a node hands on, or updates in turn; nor of a normalisation that has none.
TEST(ModuleMode, StatisticsThatDoNotMoveAreCountedInTheFilesOwnTrainingMode) {
  const auto standing = [](const std::string& mean) {
    return standingNormalizations(testing::graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
m (float[2,3,4,4] x) => (float[2,3,4,4] y)
<float[3] scale = {1, 1, 1}, float[3] bias = {0, 0, 0}, float[3] running_mean = {0, 0, 0},
 float[3] running_var = {1, 1, 1}, float[3] zeros = {0, 0, 0}>
{
  same = Identity (running_mean)
  half = Cast <to = 10> (running_mean)
  rounded = Cast <to = 1> (half)
  others = Neg (zeros)
  a, mean_1, var_1 = BatchNormalization <training_mode = 1> (x, scale, bias, running_mean, running_var)
  y, mean_2, var_2 = BatchNormalization <training_mode = 1> (a, scale, bias, )" +
                                                         mean + ", running_var)\n}"));
  };
  EXPECT_EQ(standing("running_mean"), 0);
  EXPECT_EQ(standing("same"), 0);
  EXPECT_EQ(standing("mean_1"), 0);
  EXPECT_EQ(standing("others"), 0);
  EXPECT_EQ(standing("rounded"), 1);
}

// The TorchScript exporter merges equal statistics by an Identity, which restoreParameters takes away.
TEST(ModuleMode, MergedStatisticsMove) {
  Graph graph = testing::graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
m (float[2,3,4,4] x) => (float[2,3,4,4] y)
<float[3] scale = {1, 1, 1}, float[3] bias = {0, 0, 0}, float[3] mean = {0, 0, 0}, float[3] var = {1, 1, 1}>
{
  merged = Identity (mean)
  again = Identity (merged)
  a = BatchNormalization (x, scale, bias, merged, var)
  y = BatchNormalization (a, scale, bias, again, var)
})");
  const ChangedModes changed = setTrainingMode(graph);
  EXPECT_EQ(changed.normalizations, 2);
  EXPECT_EQ(changed.standing, 0);
}

const char* const kTrainedModel = R"(<ir_version: 10, opset_import: ["" : 18]>
m (float[2,3,4,4] x) => (float[2,3,4,4] y, float[3] new_mean, float[3] v2)
<float[3] scale = {1, 1, 1}, float[3] bias = {0, 0, 0}, float[3] mean = {0, 0, 0}, float[3] var = {1, 1, 1},
 float ratio = {0.5}, bool yes = {1}>
{
  also = Constant <value = bool {1}> ()
  a, m1, v1 = BatchNormalization <training_mode = 1> (x, scale, bias, mean, var)
  b = Dropout (a, ratio, yes)
  c, m2, v2 = BatchNormalization <training_mode = 1> (b, scale, bias, m1, v1)
  new_mean = Identity (m2)
  d = Dropout (c, ratio, also)
  y = Dropout (d, ratio)
})";

TEST(ModuleMode, WhatIsInTrainingModeIsPutIntoInferenceMode) {
  Graph graph = testing::graphFromText(kTrainedModel);
  EXPECT_EQ(trainingModesToString(trainingModes(graph)), "2 batch normalizations and 2 dropouts");
  const TrainingModes changed = setInferenceMode(graph);
  EXPECT_EQ(changed.normalizations, 2);
  EXPECT_EQ(changed.dropouts, 2);
  EXPECT_FALSE(trainingModes(graph).any());
  verifyGraph(graph);
  ASSERT_EQ(graph.nodes.size(), 5u) << "neither the Identity nor the Constant stays";
  for (const Node& node : graph.nodes) {
    EXPECT_EQ(node.outputs.size(), 1u) << describeNode(node);
    if (node.is("Dropout")) {
      EXPECT_EQ(node.inputs.size(), 2u) << describeNode(node);
    }
    if (!node.is("BatchNormalization")) continue;
    EXPECT_FALSE(node.hasAttribute("training_mode"));
    EXPECT_EQ(graph.value(node.inputs.at(3)).name, "mean");
    EXPECT_EQ(graph.value(node.inputs.at(4)).name, "var");
  }
  ASSERT_EQ(graph.outputs.size(), 1u) << "an updated statistic is no output any more";
  EXPECT_EQ(graph.value(graph.outputs[0]).name, "y");
  EXPECT_FALSE(graph.initializers.contains(findValue(graph, "yes")));
}

TEST(ModuleMode, AMaskThatIsReadHasNoInferenceMode) {
  Graph graph = testing::graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
m (float[2,3] x) => (float[2,3] y, float[2,3] dx)
<float ratio = {0.5}, bool yes = {1}>
{
  y, mask = Dropout (x, ratio, yes)
  dx = Where (mask, x, y)
})");
  EXPECT_ERROR(setInferenceMode(graph), ErrorCode::kConfiguration, "Dropout", "inference mode", "Where");
}

TEST(ModuleMode, InBranchesModesStayAsTheyAre) {
  Graph graph = testing::graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
m (bool c, float[2,3] x) => (float[2,3] y)
<float ratio = {0.5}>
{
  y = If (c) <
    then_branch = kept () => (float[2,3] kept_y) { kept_y = Identity (x) },
    else_branch = dropped () => (float[2,3] dropped_y)
    <bool yes = {1}>
    { dropped_y = Dropout (x, ratio, yes) }
  >
})");
  EXPECT_EQ(trainingModes(graph).dropouts, 1);
  EXPECT_ERROR(setInferenceMode(graph), ErrorCode::kConfiguration, "1 dropout", "branches");
}

TEST(ModuleMode, OldOpsetsHaveNone) {
  std::string old = kModel;
  old.replace(old.find("18]"), 2, "13");
  Graph graph = testing::graphFromText(old);
  EXPECT_ERROR(setTrainingMode(graph), ErrorCode::kBadModel, "BatchNormalization", "opset_version=14");
}

}  // namespace
}  // namespace pipeshard
