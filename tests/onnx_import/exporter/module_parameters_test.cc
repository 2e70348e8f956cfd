// What PyTorch's exporter's optimizer does to parameters, on graphs that carry the marks that it leaves.
#include "onnx_import/exporter/module_parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/graph/exporter_marks.h"
#include "ir/graph/stopped_gradient.h"
#include "ir/graph/weight_role.h"
#include "onnx_import/exporter/lost_parameters.h"
#include "tests/expect_error.h"
#include "tests/onnx_import/exporter/exported_module.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using ModuleParametersTest = ExportedModule;

TEST_F(ModuleParametersTest, ReadsTheTextsOfExporters) {
  parameter("fc.weight");
  node("MatMul", {weight("val_2", {4, 4}, "['fc.weight']")}, "linear_3", "aten.linear.default",
       "%x, %p_fc_weight, None");
  graph.metadata = {
      {"pkg.torch.export.ExportedProgram.graph_signature",
       "\n# inputs\n" + signature + "b_mean: BUFFER target='mean' persistent=True\nx: USER_INPUT\n"}};
  const std::vector<SignatureParameter> found = signatureParameters(graph);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].argument, "p_fc_weight");
  EXPECT_EQ(found[0].name, "fc.weight");
  const ExportedCall call = exportedCall(graph.nodes[0]);
  EXPECT_EQ(call.name, "linear_3");
  EXPECT_EQ(call.function, "torch.ops.aten.linear.default");
  EXPECT_THAT(call.arguments, ElementsAre("x", "p_fc_weight"));
  EXPECT_THAT(foldedFrom(graph.value(graph.nodes[0].inputs[1])), ElementsAre("fc.weight"));
  EXPECT_EQ(exportedCall(Node()).name, "");
  Node odd;
  odd.metadata = {{"pkg.torch.onnx.fx_node", "no call at all"}};
  EXPECT_EQ(exportedCall(odd).name, "");
}

TEST_F(ModuleParametersTest, AFileWithoutMarksStaysAsItIs) {
  node("MatMul", {weight("w", {4, 4})}, "linear", "aten.linear.default", "%x, %p_w");
  EXPECT_FALSE(restoreParameters(graph).known);
  EXPECT_EQ(read(0, 1), "w");
}

TEST_F(ModuleParametersTest, ATransposedWeightIsTheParameterAgain) {
  parameter("fc.weight");
  parameter("fc.bias", {4});
  node("MatMul", {weight("val_2", {4, 4}, "['fc.weight']")}, "linear", "aten.linear.default",
       "%x, %p_fc_weight, %p_fc_bias");
  node("Add", {findValue(graph, "fc.bias")}, "linear", "aten.linear.default", "%x, %p_fc_weight, %p_fc_bias");
  const ModuleParameters found = restore();
  EXPECT_TRUE(found.known);
  EXPECT_EQ(found.transposed, 1);
  EXPECT_THAT(found.lost, IsEmpty());
  EXPECT_EQ(read(0, 1), "fc.weight");
  EXPECT_TRUE(isParameter("fc.weight"));
  EXPECT_TRUE(isStoredTransposed(graph.value(findValue(graph, "fc.weight"))));
  refuseLostParameters(found, {});
}

// onnx.utils.extract_model keeps the marks of values and nodes, but not the graph's list.
TEST_F(ModuleParametersTest, WithoutAListCallsAndMarksTellTheParameters) {
  parameter("head.weight", {5, 4});
  parameter("fc.bias", {4});
  const ValueId matrix = weight("val_2", {4, 4}, "['fc.weight']");
  const ValueId table = weight("embedding_1", {3, 4}, "['arange', 'wpe.weight']");
  const ValueId mask = weight("val_3", {4, 4}, "['arange']");
  node("Add", {table}, "add", "aten.add.Tensor", "%x, %embedding_1");
  node("MatMul", {matrix}, "linear", "aten.linear.default", "%add, %p_fc_weight, %p_fc_bias");
  node("Add", {findValue(graph, "fc.bias")}, "linear", "aten.linear.default", "%x, %p_fc_weight, %p_fc_bias");
  node("Mul", {mask}, "mul", "aten.mul.Tensor", "%linear, %mask");
  node("MatMul", {weight("val_9", {4, 5}, "['head.weight']")}, "linear_1", "aten.linear.default",
       "%mul, %p_head_weight");
  const ModuleParameters found = restoreParameters(graph);
  EXPECT_EQ(found.transposed, 1);
  EXPECT_THAT(found.lost, IsEmpty());
  EXPECT_EQ(graph.value(matrix).name, "fc.weight");
  EXPECT_TRUE(isMarkedParameter(graph.value(matrix)));
  EXPECT_FALSE(isMarkedParameter(graph.value(table)));
  EXPECT_FALSE(isMarkedParameter(graph.value(mask)));
  EXPECT_EQ(graph.nodes[4].op_type, "Transpose");
  EXPECT_EQ(read(4, 0), "head.weight");
}

TEST_F(ModuleParametersTest, ATransposedCopyOfATiedWeightIsATransposeOfIt) {
  parameter("wte.weight", {4, 4});
  node("Mul", {findValue(graph, "wte.weight")}, "embedding", "aten.embedding.default", "%p_wte_weight, %x");
  node("MatMul", {weight("val_9", {4, 4}, "['wte.weight']")}, "linear", "aten.linear.default",
       "%embedding, %p_wte_weight");
  const ModuleParameters found = restore();
  EXPECT_EQ(found.transposed, 0);
  ASSERT_EQ(graph.nodes.size(), 3u);
  EXPECT_EQ(graph.nodes[1].op_type, "Transpose");
  EXPECT_EQ(read(1, 0), "wte.weight");
  EXPECT_EQ(graph.nodes[2].inputs[1], graph.nodes[1].outputs[0]);
  EXPECT_FALSE(graph.initializers.contains(findValue(graph, "val_9")));
}

// Biases and normalisations start equal: the optimizer keeps one of them.
TEST_F(ModuleParametersTest, MergedParametersAreTheirOwnAgain) {
  for (const char* name : {"ln1.weight", "fc.bias"}) parameter(name, {4});
  for (const char* name : {"ln1.bias", "ln2.weight", "ln2.bias"}) parameter(name);
  const ValueId scale = findValue(graph, "ln1.weight"), shift = findValue(graph, "fc.bias");
  node("Add", {shift}, "add", "aten.add.Tensor", "%x, %p_fc_bias");
  node("LayerNormalization", {scale, shift}, "layer_norm", "aten.layer_norm.default",
       "%add, [4], %p_ln1_weight, %p_ln1_bias");
  node("LayerNormalization", {scale, shift}, "layer_norm_1", "aten.layer_norm.default",
       "%layer_norm, [4], %p_ln2_weight, %p_ln2_bias");
  const ModuleParameters found = restore();
  EXPECT_EQ(found.separated, 3);
  EXPECT_THAT(found.lost, IsEmpty());
  EXPECT_EQ(read(0, 1), "fc.bias");
  EXPECT_EQ(read(1, 1), "ln1.weight");
  EXPECT_EQ(read(1, 2), "ln1.bias");
  EXPECT_EQ(read(2, 1), "ln2.weight");
  EXPECT_EQ(read(2, 2), "ln2.bias");
  for (const char* name : {"ln1.weight", "ln1.bias", "ln2.weight", "ln2.bias", "fc.bias"})
    EXPECT_TRUE(isParameter(name)) << name;
  const auto content = [&](const char* name) { return graph.initializers.at(findValue(graph, name)); };
  EXPECT_EQ(content("ln2.bias"), content("fc.bias"));
}

TEST_F(ModuleParametersTest, EqualTransposedWeightsAreTheirOwnAgain) {
  parameter("k.weight");
  parameter("v.weight");
  const ValueId merged = weight("val_2", {4, 4}, "['k.weight']");
  node("MatMul", {merged}, "linear", "aten.linear.default", "%x, %p_k_weight");
  node("MatMul", {merged}, "linear_1", "aten.linear.default", "%linear, %p_v_weight");
  const ModuleParameters found = restore();
  EXPECT_THAT(found.lost, IsEmpty());
  EXPECT_EQ(read(0, 1), "k.weight");
  EXPECT_EQ(read(1, 1), "v.weight");
  EXPECT_TRUE(isStoredTransposed(graph.value(findValue(graph, "v.weight"))));
}

TEST_F(ModuleParametersTest, ABiasThatWasZeroIsThereAgain) {
  for (const char* name : {"fc.weight", "conv.weight"}) parameter(name, {4, 4, 1, 1});
  graph.value(findValue(graph, "fc.weight")).shape = {6, 4};
  parameter("fc.bias");
  parameter("conv.bias");
  node("Gemm", {findValue(graph, "fc.weight")}, "linear", "aten.linear.default",
       "%x, %p_fc_weight, %p_fc_bias");
  graph.nodes.back().attributes["transB"] = int64_t{1};
  node("Conv", {findValue(graph, "conv.weight")}, "conv2d", "aten.conv2d.default",
       "%linear, %p_conv_weight, %p_conv_bias");
  for (Node& node : graph.nodes)
    node.metadata.emplace_back("pkg.onnxscript.rewriter.rule_name", "RemoveOptionalBiasFromGemm");
  const ModuleParameters found = restore();
  EXPECT_EQ(found.zero_biases, 2);
  EXPECT_THAT(found.lost, IsEmpty());
  EXPECT_EQ(read(0, 2), "fc.bias");
  EXPECT_EQ(graph.shape(findValue(graph, "fc.bias")), (Shape{6}));
  EXPECT_EQ(graph.shape(findValue(graph, "conv.bias")), (Shape{4}));
  EXPECT_TRUE(isParameter("conv.bias"));
}

TEST_F(ModuleParametersTest, NoGradientReachesAPaddingRow) {
  for (const char* name : {"words", "types", "tied"}) parameter(name, {4, 4});
  const auto gather = [&](const char* name, const char* call, const char* arguments) {
    node("Gather", {findValue(graph, name)}, call, "aten.embedding.default", arguments);
    std::swap(graph.nodes.back().inputs[0], graph.nodes.back().inputs[1]);
  };
  gather("words", "embedding", "%p_words, %x, 2");
  const ValueId of_words = last;
  gather("types", "embedding_1", "%p_types, %expand");
  gather("tied", "embedding_2", "%p_tied, %x, 0");
  node("MatMul", {findValue(graph, "tied")}, "linear", "aten.linear.default", "%embedding_2, %p_tied");
  const ModuleParameters found = restore();
  EXPECT_THAT(found.padded, IsEmpty());
  ASSERT_EQ(graph.nodes.size(), 12u);
  EXPECT_EQ(graph.nodes[1].op_type, "Equal");
  EXPECT_TRUE(stopsGradient(graph.nodes[3]));
  EXPECT_EQ(graph.nodes[4].op_type, "Where");
  EXPECT_EQ(graph.nodes[4].outputs[0], of_words);
  EXPECT_EQ(graph.nodes[4].inputs[1], graph.nodes[3].outputs[0]);
  EXPECT_EQ(graph.nodes[4].inputs[2], graph.nodes[0].outputs[0]);
  EXPECT_EQ(numericElements(*graph.constant(graph.nodes[1].inputs[1])), (std::vector<double>{2}));
  EXPECT_TRUE(stopsGradient(graph.nodes[9]));  // of the tied table's lookup; its head trains the row
  EXPECT_EQ(graph.nodes[11].op_type, "MatMul");
  verifyGraph(graph);
}

TEST_F(ModuleParametersTest, AParameterThatNothingReadsIsLostWhereCallsAreGone) {
  parameter("ln1.weight", {4});
  parameter("ln2.weight");
  node("LayerNormalization", {findValue(graph, "ln1.weight")}, "layer_norm", "aten.layer_norm.default",
       "%x, [4], %p_ln1_weight");
  Graph both = graph;
  ModuleParameters found = restore();
  EXPECT_THAT(found.unread, ElementsAre("ln2.weight"));
  EXPECT_THAT(found.lost, IsEmpty());
  graph = both;  // an input that the file calls otherwise (input_names) is no call
  signature += "ids: USER_INPUT\n";
  node("Add", {}, "add", "aten.add.Tensor", "%layer_norm, %ids");
  EXPECT_THAT(restore().unread, ElementsAre("ln2.weight"));
  graph = std::move(both);
  node("Add", {}, "add", "aten.add.Tensor", "%layer_norm, %layer_norm_1");
  found = restore();
  EXPECT_THAT(found.unread, IsEmpty());
  ASSERT_EQ(found.lost.size(), 1u);
  EXPECT_EQ(found.lost[0].name, "ln2.weight");
}

// Calls mention one name of a tied parameter; which module makes them tells the others.
TEST_F(ModuleParametersTest, AnotherNameOfATiedParameterIsNotLost) {
  for (const char* name : {"wte.weight", "lm.bias", "ln2.bias"}) parameter(name);
  parameter("lm.head.weight", {4, 4});
  parameter("lm.head.bias", {4});
  node("Gather", {findValue(graph, "lm.head.weight")}, "embedding", "aten.embedding.default",
       "%p_lm_head_weight, %x");
  scope("wte");
  node("Gemm", {findValue(graph, "lm.head.weight"), findValue(graph, "lm.head.bias")}, "linear",
       "aten.linear.default", "%gone, %p_lm_head_weight, %p_lm_head_bias");
  scope("lm.head");
  const ModuleParameters found = restore();
  EXPECT_THAT(found.other_names,
              ElementsAre(TiedName{"wte.weight", "lm.head.weight"}, TiedName{"lm.bias", "lm.head.bias"}));
  EXPECT_THAT(otherNames(graph.value(findValue(graph, "lm.head.weight"))), ElementsAre("wte.weight"));
  EXPECT_THAT(found.unread, IsEmpty());
  ASSERT_EQ(found.lost.size(), 1u);
  EXPECT_EQ(found.lost[0].name, "ln2.bias");
}

TEST_F(ModuleParametersTest, ATiedWeightDoesNotHideALostParameter) {
  parameter("wte.weight", {4, 4});
  parameter("ln2.weight");
  node("Gather", {findValue(graph, "wte.weight")}, "embedding", "aten.embedding.default",
       "%p_wte_weight, %x");
  scope("wte");
  node("MatMul", {weight("val_9", {4, 4}, "['wte.weight']")}, "linear", "aten.linear.default",
       "%layer_norm_1, %p_wte_weight");
  const ModuleParameters found = restore();
  ASSERT_EQ(found.lost.size(), 1u);
  EXPECT_EQ(found.lost[0].name, "ln2.weight");
}

// Fresh ones hold the numbers of scale and bias. A module that is called twice keeps one pair.
TEST_F(ModuleParametersTest, MergedRunningStatisticsAreTheirOwnAgain) {
  parameter("bn.weight", {4});
  parameter("bn.bias", {4});
  for (const char* name : {"bn", "other"}) {
    signature += "b_" + std::string(name) + "_mean: BUFFER target='" + name + ".mean' persistent=True\n";
    signature += "b_" + std::string(name) + "_var: BUFFER target='" + name + ".var' persistent=True\n";
  }
  const ValueId scale = findValue(graph, "bn.weight"), bias = findValue(graph, "bn.bias");
  const auto normalise = [&](const char* call, const std::string& module) {
    node("BatchNormalization", {scale, bias, bias, scale}, call, "aten._native_batch_norm_legit.default",
         "%x, %p_bn_weight, %p_bn_bias, %b_" + module + "_mean, %b_" + module + "_var, True, 0.1, 1e-05");
  };
  normalise("bn", "bn");
  normalise("bn_1", "bn");
  normalise("bn_2", "other");
  const ModuleParameters found = restore();
  EXPECT_EQ(found.statistics, 4);
  EXPECT_EQ(read(0, 1), "bn.weight");
  EXPECT_EQ(read(0, 3), "bn.mean");
  EXPECT_EQ(read(0, 4), "bn.var");
  EXPECT_EQ(graph.nodes[1].inputs[3], graph.nodes[0].inputs[3]);
  EXPECT_EQ(read(2, 3), "other.mean");
  EXPECT_EQ(graph.initializers.at(graph.nodes[2].inputs[4]), graph.initializers.at(scale));
  EXPECT_FALSE(isParameter("other.mean"));
  EXPECT_THAT(found.lost, IsEmpty());
}

// addmm lists the bias first, Gemm the weight: which is which cannot be told.
TEST_F(ModuleParametersTest, TwoMergedParametersOfACallInAnotherOrderAreLost) {
  for (const char* name : {"a.weight", "a.bias"}) parameter(name, {4, 4});
  for (const char* name : {"b.weight", "b.bias"}) parameter(name);
  node("Gemm", {findValue(graph, "a.weight"), findValue(graph, "a.bias")}, "addmm", "aten.addmm.default",
       "%p_b_bias, %x, %p_b_weight");
  const ModuleParameters found = restore();
  EXPECT_EQ(found.separated, 0);
  EXPECT_EQ(found.lost.size(), 2u);
  EXPECT_EQ(read(0, 1), "a.weight");
}

TEST_F(ModuleParametersTest, ANameThatAnotherValueHasIsNotTaken) {
  parameter("fc.weight");
  weight("fc.weight", {4, 4});  // not marked: it holds something else
  node("MatMul", {weight("val_2", {4, 4}, "['fc.weight']")}, "linear", "aten.linear.default",
       "%x, %p_fc_weight");
  const ModuleParameters found = restore();
  EXPECT_EQ(found.lost.size(), 1u);
  EXPECT_EQ(read(0, 1), "val_2");
  verifyGraph(graph);
}

// By a tool that drops marks of values and nodes, or makes initializers Constants.
TEST_F(ModuleParametersTest, AParameterWithoutItsMarkIsOfNoBatchNormalization) {
  parameter("fc.weight");
  const ValueId own = weight("fc.weight", {4, 4});
  node("MatMul", {own}, "linear", "aten.linear.default", "%x, %p_fc_weight");
  const ModuleParameters found = restore();
  ASSERT_EQ(found.lost.size(), 1u);
  EXPECT_THAT(found.lost[0].reason, HasSubstr("the file has it without the exporter's mark"));
  EXPECT_ERROR(refuseLostParameters(found, {}), ErrorCode::kBadModel,
               "the file has lost what its exporter said of the module's parameters");
  EXPECT_ERROR(refuseLostParameters(found, {}), ErrorCode::kBadModel, "Plan the exporter's own file");
  EXPECT_NO_THROW(refuseLostParameters(found, {}, {"^fc"}));
}

// The exporter names values after operators: "t" is a transposed matrix.
TEST_F(ModuleParametersTest, WhatTheExporterCannotKeepUnderItsNameIsToBeRenamed) {
  parameter("t");
  const ValueId turned = node("Transpose", {weight("w", {4, 4})}, "t", "aten.t.default", "%w");
  graph.value(turned).name = "t";
  node("Mul", {weight("exp", {4}, "['t']")}, "mul", "aten.mul.Tensor", "%exp, %x");
  const ModuleParameters found = restore();
  ASSERT_EQ(found.lost.size(), 1u);
  EXPECT_THAT(found.lost[0].reason,
              testing::AllOf(HasSubstr("folded into the constant 'exp'; it is called like what"),
                             HasSubstr("rename it in the module")));
}

TEST_F(ModuleParametersTest, WhatCannotBeUndoneIsNamed) {
  for (const char* name : {"wpe.weight", "bn.weight", "scale", "pooler.weight"}) parameter(name);
  parameter("conv.weight");
  weight("conv.weight", {4, 4});  // holds other numbers than the module's
  const ValueId rows = weight("embedding_1", {1, 5, 4}, "['arange', 'wpe.weight']");
  node("Add", {rows}, "add", "aten.add.Tensor", "%x, %embedding_1");
  node("Conv", {findValue(graph, "conv.weight")}, "batch_norm", "aten.batch_norm.default",
       "%x, %p_bn_weight");
  graph.nodes.back().metadata.emplace_back("pkg.onnxscript.rewriter.rule_name", "FuseBatchNormIntoConv");
  node("Mul", {weight("val_7", {4}, "['scale', 'val_3']")}, "mul", "aten.mul.Tensor", "%batch_norm, %x");
  const ModuleParameters found = restore();
  std::vector<std::string> lost;
  for (const LostParameter& one : found.lost) lost.push_back(one.name + ": " + one.reason);
  EXPECT_THAT(lost, ElementsAre("wpe.weight: folded into the constant 'embedding_1'",
                                HasSubstr("bn.weight: a batch normalisation is folded"),
                                "scale: folded into the constant 'val_7'",
                                HasSubstr("conv.weight: a batch normalisation is folded")));
  EXPECT_THAT(found.unread, ElementsAre("pooler.weight"));
  EXPECT_ERROR(refuseLostParameters(found, {}), ErrorCode::kBadModel, "optimize=False");
  EXPECT_ERROR(refuseLostParameters(found, {"^bn", "conv", "scale"}), ErrorCode::kBadModel,
               "cannot be trained: wpe.weight (folded into the constant 'embedding_1'). Export");
  refuseLostParameters(found, {"."});
}

// A file of the TorchScript exporter: nodes are called by the paths of their modules.
class TiedNames : public ::testing::Test {
 protected:
  TiedNames() : builder_(graph_) {
    graph_.opset_imports = {{"", 18}};
    graph_.producer_name = "pytorch";
  }
  ValueId weight(const std::string& name, const Shape& shape, const std::vector<float>& elements) {
    return builder_.addConstant(name, makeConstant<float>(shape, elements));
  }
  ValueId value() { return builder_.addValue("value", DataType::kFloat32, {}); }
  ValueId node(const std::string& name, std::vector<ValueId> inputs) {
    const std::string op_type = name.substr(name.rfind('/') + 1);
    const ValueId output = value();
    graph_.node(builder_.addNode("", op_type, std::move(inputs), {output})).name = name;
    return output;
  }

  Graph graph_;
  GraphBuilder builder_;
};

// do_constant_folding=False: T5's two embeddings and its head, BERT's head and its bias.
TEST_F(TiedNames, AreThoseOfTheLayersThatReadTheParameter) {
  const ValueId table = weight("shared.weight", {3, 2}, {1, 2, 3, 4, 5, 6});
  const ValueId bias = weight("cls.bias", {3}, {7, 8, 9});
  ValueId h = node("/enc/embed/Gather", {table, value()});
  h = node("/enc/Tanh", {h});
  h = node("/cls/decoder/MatMul", {h, node("/cls/decoder/Transpose", {table})});
  h = node("/cls/decoder/Add", {bias, h});
  node("/other/Add", {node("/other/Tanh", {h}), bias});
  const ModuleParameters found = restoreParameters(graph_);
  EXPECT_THAT(found.other_names,
              ::testing::UnorderedElementsAre(TiedName{"enc.embed.weight", "shared.weight"},
                                              TiedName{"cls.decoder.weight", "shared.weight"},
                                              TiedName{"cls.decoder.bias", "cls.bias"}));
}

// Folded: the bias of the head around the Linear does not tell the matrix's name; the Linear's path does.
TEST_F(TiedNames, OfAMatrixAreNotThoseOfABiasAroundIt) {
  const ValueId matrix = weight("onnx::MatMul_7", {2, 3}, {1, 2, 3, 4, 5, 6});
  node("/cls/Add", {node("/cls/decoder/MatMul", {value(), matrix}), weight("cls.bias", {3}, {7, 8, 9})});
  const ModuleParameters found = restoreParameters(graph_);
  EXPECT_EQ(graph_.value(matrix).name, "cls.decoder.weight");
  EXPECT_TRUE(found.other_names.empty());
}

// With two products it is no Linear.
TEST_F(TiedNames, AreNoneOfAModuleThatMultipliesByWeightsOfOthers) {
  const ValueId table = weight("e.weight", {3, 2}, {1, 2, 3, 4, 5, 6});
  ValueId h = node("/e/Gather", {table, value()});
  h = node("/block/MatMul", {h, node("/block/Transpose", {table})});
  node("/block/MatMul", {h, table});
  EXPECT_TRUE(restoreParameters(graph_).other_names.empty());
}

}  // namespace
}  // namespace pipeshard
