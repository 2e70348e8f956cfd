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
  others = Identity (mean)
  y = BatchNormalization (b, scale, bias, others, var)
})");
  const ChangedModes changed = setTrainingMode(graph);
  EXPECT_EQ(changed.normalizations, 3);
  EXPECT_EQ(changed.standing, 2);
}

TEST(ModuleMode, OldOpsetsHaveNone) {
  std::string old = kModel;
  old.replace(old.find("18]"), 2, "13");
  Graph graph = testing::graphFromText(old);
  EXPECT_ERROR(setTrainingMode(graph), ErrorCode::kBadModel, "BatchNormalization", "opset_version=14");
}

}  // namespace
}  // namespace pipeshard
