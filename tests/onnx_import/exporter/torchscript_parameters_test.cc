// Files as PyTorch's older exporter writes them, by their traces.
#include "onnx_import/exporter/torchscript_parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "ir/graph/weight_role.h"
#include "ir/operators/initializer_role.h"
#include "tests/expect_error.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;

class TorchScriptFile : public ::testing::Test {
 protected:
  TorchScriptFile() : builder_(graph_) {
    graph_.opset_imports = {{"", 18}};
    graph_.producer_name = "pytorch";
  }
  ValueId weight(const std::string& name, const Shape& shape, const std::vector<float>& elements) {
    return builder_.addConstant(name, makeConstant<float>(shape, elements));
  }
  ValueId value(const std::string& name) { return builder_.addValue(name, DataType::kFloat32, {}); }
  void node(const std::string& name, const std::string& op_type, std::vector<ValueId> inputs,
            ValueId output) {
    graph_.node(builder_.addNode("", op_type, std::move(inputs), {output})).name = name;
  }
  ModuleParameters restore() { return restoreParameters(graph_); }

  Graph graph_;
  GraphBuilder builder_;
};

TEST_F(TorchScriptFile, MergedParametersAreTheirOwnAgain) {
  const ValueId first = weight("a.bias", {2}, {0, 0});
  const ValueId second = value("b.bias");
  node("Identity_0", "Identity", {first}, second);
  node("/b/Add", "Add", {value("x"), second}, value("y"));
  EXPECT_EQ(restore().separated, 1);
  ASSERT_EQ(graph_.nodes.size(), 1u);
  EXPECT_EQ(*graph_.constant(second), *graph_.constant(first));
  EXPECT_EQ(graph_.shape(second), Shape({2}));
}

// Layers that are copies of each other: their transposed weights are merged, too.
TEST_F(TorchScriptFile, MergedTransposedWeightsAreTheirOwnAgain) {
  const ValueId first = weight("onnx::MatMul_7", {2, 2}, {1, 2, 3, 4});
  const ValueId second = value("onnx::MatMul_8"), h = value("h"), same = value("same");
  node("Identity_0", "Identity", {first}, second);
  node("/layers.0/fc/MatMul", "MatMul", {value("x"), first}, h);
  node("/layers.1/fc/MatMul", "MatMul", {h, second}, value("y"));
  node("/layers.2/Identity", "Identity", {first}, same);  // of the module
  const ModuleParameters found = restore();
  EXPECT_EQ(found.separated, 1);
  EXPECT_EQ(found.transposed, 2);
  EXPECT_EQ(graph_.value(first).name, "layers.0.fc.weight");
  EXPECT_EQ(graph_.value(second).name, "layers.1.fc.weight");
  EXPECT_FALSE(graph_.initializers.contains(same));
}

TEST_F(TorchScriptFile, AConstantIsNoParameterWhereverItIsRead) {
  const ValueId scale = value("/norm/Constant_output_0");
  builder_.addNode("", "Constant", {}, {scale}, {{"value", makeConstant<float>({2}, {1, 1})}});
  node("/norm/LayerNormalization", "LayerNormalization", {value("x"), scale}, value("y"));
  restore();
  graph_.initializers.emplace(scale, makeConstant<float>({2}, {1, 1}));  // as preparing folds it
  EXPECT_EQ(initializerRoles(graph_)[scale.index()], InitializerRole::kConstant);
}

TEST_F(TorchScriptFile, TheWeightOfALinearHasItsName) {
  const ValueId anonymous = weight("onnx::MatMul_7", {2, 3}, {1, 2, 3, 4, 5, 6});
  node("/decoder/block.0/q/MatMul", "MatMul", {value("x"), anonymous}, value("y"));
  EXPECT_EQ(restore().transposed, 1);
  EXPECT_EQ(graph_.value(anonymous).name, "decoder.block.0.q.weight");
  EXPECT_TRUE(isStoredTransposed(graph_.value(anonymous)));
}

TEST_F(TorchScriptFile, ItsNameIsThatOfItsBiasOrOfTheModule) {
  const ValueId first = weight("onnx::MatMul_7", {2, 2}, {1, 2, 3, 4});
  const ValueId second = weight("onnx::MatMul_8", {2, 2}, {1, 2, 3, 4});
  const ValueId product = value("product");
  node("/body/MatMul", "MatMul", {value("x"), first}, product);
  node("/body/Add", "Add", {weight("stem.fc.bias", {2}, {0, 1}), product}, value("y"));
  node("/body/layers/layers.0/MatMul", "MatMul", {value("z"), second}, value("w"));
  restore();
  EXPECT_EQ(graph_.value(first).name, "stem.fc.weight");
  EXPECT_EQ(graph_.value(second).name, "body.layers.0.weight");
}

TEST_F(TorchScriptFile, ATransposedCopyOfAnEmbeddingIsTiedAgain) {
  const ValueId table = weight("e.weight", {3, 2}, {1, 2, 3, 4, 5, 6});
  const ValueId copy = weight("onnx::MatMul_7", {2, 3}, {1, 3, 5, 2, 4, 6});
  const ValueId other = weight("onnx::MatMul_9", {2, 3}, {1, 3, 5, 2, 4, 7});
  const ValueId h = value("h");
  node("/e/Gather", "Gather", {table, value("ids")}, h);
  node("/head/MatMul", "MatMul", {h, copy}, value("y"));
  node("/other/MatMul", "MatMul", {h, other}, value("z"));
  const ModuleParameters found = restore();
  EXPECT_THAT(found.tied, ElementsAre("e.weight"));
  EXPECT_FALSE(graph_.initializers.contains(copy));
  EXPECT_TRUE(graph_.nodes[1].is("Transpose"));
  EXPECT_EQ(graph_.nodes[1].inputs[0], table);
  EXPECT_EQ(graph_.nodes[1].outputs[0], copy);
  EXPECT_EQ(graph_.value(other).name, "other.weight");
}

TEST_F(TorchScriptFile, AFoldedBatchNormalizationIsRefused) {
  const ValueId folded = weight("onnx::Conv_196", {1, 1, 1, 1}, {2});
  node("/layer1/conv1/Conv", "Conv", {value("x"), folded}, value("y"));
  const ModuleParameters found = restore();
  ASSERT_EQ(found.lost.size(), 1u);
  EXPECT_ERROR(refuseLostParameters(found, {}), ErrorCode::kBadModel, "'layer1.conv1'");
  EXPECT_ERROR(refuseLostParameters(found, {}), ErrorCode::kBadModel,
               "training=torch.onnx.TrainingMode.PRESERVE, do_constant_folding=False");
  refuseLostParameters(found, {"^onnx::Conv_"});
}

// Rows of a table, a scale under another shape, or a constant: the file does not tell which.
TEST_F(TorchScriptFile, WhatIsComputedFromParametersIsRefused) {
  const ValueId h = value("h");
  node("/Add", "Add", {value("x"), weight("onnx::Add_20", {2, 2}, {1, 2, 3, 4})}, h);
  node("/Mul", "Mul", {h, weight("onnx::Mul_21", {}, {0.125})}, value("scaled"));  // 1/sqrt(d)
  node("/MatMul", "MatMul", {h, weight("onnx::MatMul_22", {2, 2}, {1, 2, 3, 4})}, value("y"));
  node("/Sub", "Sub", {h, weight("shift", {2}, {1, 2})}, value("z"));
  const ModuleParameters found = restore();
  ASSERT_EQ(found.lost.size(), 1u);
  EXPECT_EQ(found.lost[0].name, "onnx::Add_20");
  EXPECT_ERROR(refuseLostParameters(found, {}), ErrorCode::kBadModel, "do_constant_folding=False");
  refuseLostParameters(found, {"^onnx::Add"});
}

TEST_F(TorchScriptFile, MergedRunningStatisticsAreNoParameters) {
  const ValueId scale = weight("bn.weight", {2}, {1, 1});
  node("Identity_0", "Identity", {scale}, value("bn.running_var"));
  const ModuleParameters found = restore();
  EXPECT_EQ(found.statistics, 1);
  EXPECT_EQ(found.separated, 0);
}

TEST_F(TorchScriptFile, ConvolutionsUnderTheirNamesAreLeftAlone) {
  node("/conv/Conv", "Conv", {value("x"), weight("conv.weight", {1, 1, 1, 1}, {2})}, value("y"));
  EXPECT_TRUE(restore().lost.empty());
}

}  // namespace
}  // namespace pipeshard
