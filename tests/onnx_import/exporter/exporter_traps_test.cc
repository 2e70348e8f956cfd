#include "onnx_import/exporter/exporter_traps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pipeshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Graph graphOf(const std::string& op_type, const std::string& function, const std::string& arguments) {
  Graph graph;
  Node& node = graph.nodes.emplace_back();
  node.op_type = op_type;
  node.metadata = {{"pkg.torch.onnx.fx_node", "%call : [num_users=1] = call_function[target=torch.ops.aten." +
                                                  function + "](args = (" + arguments + "), kwargs = {})"}};
  return graph;
}

TEST(ExporterTraps, ABatchNormalizationInTrainingModeIsExportedInInferenceMode) {
  const char* const function = "_native_batch_norm_legit_functional.default";
  const char* const training = "%conv2d, %p_bn_weight, %p_bn_bias, %b_mean, %b_var, True, 0.1, 1e-05";
  EXPECT_THAT(exporterTraps(graphOf("BatchNormalization", function, training)),
              ElementsAre(HasSubstr("1 batch normalization of a module in training mode")));
  EXPECT_THAT(exporterTraps(graphOf("BatchNormalization", function,
                                    "%conv2d, %p_bn_weight, %p_bn_bias, %b_mean, %b_var, False, 0.1, 1e-05")),
              IsEmpty());
  Graph right = graphOf("BatchNormalization", function, training);
  right.nodes[0].attributes["training_mode"] = int64_t{1};
  EXPECT_THAT(exporterTraps(right), IsEmpty());
}

TEST(ExporterTraps, ADivisorOfAnAveragePoolingIsDropped) {
  const auto traps = [](const char* arguments) {
    return exporterTraps(graphOf("AveragePool", "avg_pool2d.default", arguments));
  };
  EXPECT_THAT(traps("%conv2d, [2, 2], [2, 2], [0, 0], False, True, 3"),
              ElementsAre(HasSubstr("the divisor_override of 1 average pooling is not in the file")));
  EXPECT_THAT(traps("%conv2d, [2, 2], [2, 2], [0, 0], False, True, None"), IsEmpty());
  EXPECT_THAT(traps("%conv2d, [2, 2]"), IsEmpty());
}

TEST(ExporterTraps, AFileOfOnnxRuntimesOptimizerHasOtherWeightsThanTheModule) {
  Graph graph;
  graph.opset_imports = {{"", 18}, {"com.microsoft.nchwc", 1}};
  EXPECT_THAT(exporterTraps(graph), ElementsAre(HasSubstr("written by ONNX Runtime's optimizer")));
  graph.opset_imports = {{"", 18}, {"com.microsoft", 1}};
  EXPECT_THAT(exporterTraps(graph), IsEmpty());
}

TEST(ExporterTraps, TheDropoutInsideAnAttentionIsExportedInInferenceMode) {
  const char* const function = "scaled_dot_product_attention.default";
  Graph graph = graphOf("Dropout", function, "%q, %k, %v, %mask, 0.1");
  EXPECT_THAT(exporterTraps(graph), ElementsAre(HasSubstr("dropout inside 1 attention ")));
  graph.nodes[0].inputs = {ValueId(0), ValueId(1), ValueId(2)};  // training_mode
  EXPECT_THAT(exporterTraps(graph), IsEmpty());
  EXPECT_THAT(exporterTraps(graphOf("Softmax", function, "%q, %k, %v, %mask, 0.1")),
              ElementsAre(HasSubstr("optimize=False")));
  EXPECT_THAT(exporterTraps(graphOf("Softmax", function, "%q, %k, %v, %mask")), IsEmpty());
  EXPECT_THAT(exporterTraps(graphOf("Softmax", function, "%q, %k, %v, %mask, 0.0, True")), IsEmpty());
}

TEST(ExporterTraps, ADropoutThatDropsNothingIsTold) {
  Graph graph = graphOf("Dropout", "dropout.default", "%x, 0.1, True");
  GraphBuilder builder(graph);
  const ValueId x = builder.addValue("x", DataType::kFloat32, {2});
  const auto mode = [&](bool trains) {
    return builder.addConstant("mode", Constant{DataType::kBool, {}, {std::byte{trains}}});
  };
  EXPECT_THAT(exporterTraps(graph), ElementsAre(HasSubstr("1 dropout in inference mode")));
  graph.nodes[0].inputs = {x, ValueId(), mode(false)};
  EXPECT_THAT(exporterTraps(graph), ElementsAre(HasSubstr("--mode training drops")));
  graph.nodes[0].inputs[2] = mode(true);
  EXPECT_THAT(exporterTraps(graph), IsEmpty());
}

TEST(ExporterTraps, AnInputThatNothingReadsIsNamed) {
  Graph graph;
  GraphBuilder builder(graph);
  const auto value = [&](const char* name) { return builder.addValue(name, DataType::kFloat32, {2}); };
  const ValueId ids = value("ids"), labels = value("labels"), passed = value("passed"), y = value("y");
  builder.addNode("", "Relu", {labels}, {y});
  graph.inputs = {ids, labels, passed};
  graph.outputs = {y, passed};
  EXPECT_THAT(unreadInputs(graph), ElementsAre("ids"));
  builder.addNode("", "If", {labels}, {value("z")}, {{"then_branch", std::make_shared<const Graph>()}});
  EXPECT_THAT(unreadInputs(graph), IsEmpty());
}

}  // namespace
}  // namespace pipeshard
