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
  for (const char* name : {"weights", "ratio", "training_mode"})
    graph.nodes[0].inputs.push_back(GraphBuilder(graph).addValue(name, DataType::kFloat32, {}));
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

// With a dynamic batch the exporter takes the size of one of two arguments that are one tensor.
TEST(ExporterTraps, AnInputOfWhichOnlyTheShapeIsReadIsNamed) {
  Graph graph;
  GraphBuilder builder(graph);
  const auto value = [&](const char* name) { return builder.addValue(name, DataType::kFloat32, {2}); };
  const ValueId ids = value("ids"), labels = value("labels"), same = value("same");
  const ValueId shape = value("shape"), size = value("size"), zeros = value("zeros"), y = value("y");
  builder.addNode("", "Identity", {ids}, {same});
  builder.addNode("", "Shape", {same}, {shape});
  builder.addNode("", "Size", {ids}, {size});
  builder.addNode("", "Expand", {size, shape}, {zeros});
  builder.addNode("", "Add", {labels, zeros}, {y});
  graph.inputs = {ids, labels};
  graph.outputs = {y};
  EXPECT_THAT(unreadInputs(graph), ElementsAre("ids"));
  graph.outputs = {y, same};
  EXPECT_THAT(unreadInputs(graph), IsEmpty());
}

TEST(ExporterTraps, AnInputOfWhichOnlyTheTypeIsReadIsNamed) {
  Graph graph;
  GraphBuilder builder(graph);
  const auto value = [&](const char* name) { return builder.addValue(name, DataType::kFloat32, {2}); };
  const ValueId x = value("x"), like = value("like"), y = value("y");
  builder.addNode("", "CastLike", {x, like}, {y});
  graph.inputs = {x, like};
  graph.outputs = {y};
  EXPECT_THAT(unreadInputs(graph), ElementsAre("like"));
}

// tanh(h) beside tanh(h.detach()), or beside itself.
TEST(ExporterTraps, MergedValuesAreNamed) {
  Graph graph = graphOf("Tanh", "tanh.default", "%p_w");
  GraphBuilder builder(graph);
  const ValueId w = builder.addConstant("w", makeConstant<float>({1}, {1.0F}));
  graph.value(w).metadata = {{"pkg.torch.export.graph_signature.InputSpec.kind", "PARAMETER"}};
  const ValueId kept = builder.addValue("call", DataType::kFloat32, {1});
  const ValueId sum = builder.addValue("add", DataType::kFloat32, {1});
  graph.nodes[0].inputs = {w};
  graph.nodes[0].outputs = {kept};
  builder.addNode("", "Add", {kept, kept}, {sum});
  const auto mark = [&](const std::string& arguments) {
    graph.nodes[1].metadata = {{"pkg.torch.onnx.fx_node",
                                "%add : [num_users=1] = call_function[target=torch.ops.aten.add.Tensor]"
                                "(args = (" +
                                    arguments + "), kwargs = {})"}};
  };
  mark("%call, %call_1");
  EXPECT_THAT(exporterTraps(graph), ElementsAre(HasSubstr("('call_1' with 'call')")));
  mark("%call, %view");
  EXPECT_THAT(exporterTraps(graph), IsEmpty());
  mark("%call, %call");
  EXPECT_THAT(exporterTraps(graph), IsEmpty());
  mark("%call, %call_1");
  graph.value(w).metadata.clear();
  EXPECT_THAT(exporterTraps(graph), IsEmpty());
}

TEST(ExporterTraps, ABackwardPassOfTheModulesOwnIsNamed) {
  const auto traps = [](const std::string& file, const std::string& code) {
    Graph graph = graphOf("Relu", "relu.default", "%x");
    graph.nodes[0].metadata.emplace_back("pkg.torch.onnx.stack_trace",
                                         "File \"" + file + "\", line 5, in forward\n    " + code +
                                             "\n  File \"lib.py\", line 1, in forward\n    return relu(x)");
    return exporterTraps(graph);
  };
  EXPECT_THAT(traps("m.py", "return d(GRev.apply(h, 0.5))"), ElementsAre(HasSubstr("d(GRev.apply(h, 0.5))")));
  EXPECT_THAT(traps("m.py", "h.register_hook(scale); y = f(h)"), ElementsAre(HasSubstr("backward pass")));
  EXPECT_THAT(traps("m.py", "return self.layer.apply(f)"), IsEmpty());
  EXPECT_THAT(traps("/site-packages/torch/utils/checkpoint.py", "CheckpointFunction.apply(f, x)"), IsEmpty());
}

}  // namespace
}  // namespace pipeshard
