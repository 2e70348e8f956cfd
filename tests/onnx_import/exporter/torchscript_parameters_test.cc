// Files as PyTorch's older exporter writes them, by their traces.
#include "onnx_import/exporter/torchscript_parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "ir/graph/weight_role.h"
#include "ir/operators/initializer_role.h"
#include "onnx_import/exporter/lost_parameters.h"
#include "onnx_import/format/constant_nodes.h"
#include "tests/expect_error.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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

  // Of a matrix of a Linear, as the exporter has it; a drawn one.
  ValueId matrix(const std::string& name) { return weight(name, {2, 2}, {1, 2, 3, 4}); }
  // The exporter's Identity of a parameter.
  ValueId merged(const std::string& name, ValueId source) {
    const ValueId copy = value(name);
    node("Identity_" + name, "Identity", {source}, copy);
    return copy;
  }
  // A Linear that is called: "/enc/enc.0_1"; without a bias, if there is none.
  ValueId linear(const std::string& call, ValueId input, ValueId matrix, ValueId bias = {}) {
    const ValueId product = value(call + "/MatMul_output_0");
    node(call + "/MatMul", "MatMul", {input, matrix}, product);
    if (!bias.valid()) return product;
    const ValueId sum = value(call + "/Add_output_0");
    node(call + "/Add", "Add", {bias, product}, sum);
    return sum;
  }
  std::string read(const std::string& name) const {  // the matrix of this node
    for (const Node& node : graph_.nodes) {
      if (node.name == name) return graph_.value(node.inputs[1]).name;
    }
    return "no such node";
  }

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

// A Siamese network: the Linear is in the file once, and by an Identity for its second call.
TEST_F(TorchScriptFile, CallsOfOneModuleReadOneWeight) {
  const ValueId first = matrix("onnx::MatMul_26"), bias = weight("enc.0.bias", {2}, {5, 6});
  const ValueId second = merged("onnx::MatMul_28", first);
  linear("/enc/enc.0", value("a"), first, bias);
  linear("/enc/enc.0_1", value("b"), second, bias);
  const ModuleParameters found = restore();
  EXPECT_EQ(read("/enc/enc.0/MatMul"), "enc.0.weight");
  EXPECT_EQ(read("/enc/enc.0_1/MatMul"), "enc.0.weight");
  EXPECT_FALSE(graph_.initializers.contains(second));
  EXPECT_EQ(found.separated, 0);
  EXPECT_EQ(found.transposed, 1);
  EXPECT_THAT(found.nameless, IsEmpty());
  EXPECT_THAT(found.taken_as_one, IsEmpty());
  EXPECT_THAT(found.untold, IsEmpty());
}

// A block that is applied three times; no bias tells its name.
TEST_F(TorchScriptFile, ALoopedLinearIsOneWeightUnderItsOwnName) {
  const ValueId first = matrix("onnx::MatMul_33"), third = merged("onnx::MatMul_35", first);
  const ValueId second = merged("onnx::MatMul_34", first);
  linear("/f_2", linear("/f_1", linear("/f", value("x"), first), second), third);
  const ModuleParameters found = restore();
  for (const char* node : {"/f/MatMul", "/f_1/MatMul", "/f_2/MatMul"}) EXPECT_EQ(read(node), "f.weight");
  EXPECT_EQ(graph_.initializers.size(), 1u);
  EXPECT_EQ(found.separated, 0);
}

// Copied modules of which each is called twice: all four calls read equal numbers.
TEST_F(TorchScriptFile, CopiesOfAModuleAreApartAndTheirCallsAreNot) {
  const ValueId first = matrix("onnx::MatMul_1"), bias = weight("a.bias", {3}, {5, 6, 7});
  const ValueId other = merged("b.bias", bias), again = merged("onnx::MatMul_2", first);
  const ValueId copy = merged("onnx::MatMul_3", first), copy_again = merged("onnx::MatMul_4", first);
  linear("/a_1", linear("/a", value("x"), first, bias), again, bias);
  linear("/b_1", linear("/b", value("z"), copy, other), copy_again, other);
  const ModuleParameters found = restore();
  EXPECT_EQ(read("/a/MatMul"), "a.weight");
  EXPECT_EQ(read("/a_1/MatMul"), "a.weight");
  EXPECT_EQ(read("/b/MatMul"), "b.weight");
  EXPECT_EQ(read("/b_1/MatMul"), "b.weight");
  EXPECT_EQ(found.separated, 2);
  EXPECT_THAT(found.taken_as_one, IsEmpty());
  EXPECT_THAT(found.untold, IsEmpty());
}

// Modules called by numbers are no calls of one: a bias of its own tells.
TEST_F(TorchScriptFile, AModuleWhoseNameEndsInANumberIsNoCall) {
  const ValueId first = matrix("onnx::MatMul_1"), bias = weight("fc.bias", {3}, {5, 6, 7});
  const ValueId copy = merged("onnx::MatMul_2", first), other = merged("fc_1.bias", bias);
  linear("/fc_1", linear("/fc", value("x"), first, bias), copy, other);
  linear("/w_2", value("z"), weight("onnx::MatMul_3", {2, 2}, {9, 8, 7, 6}));
  restore();
  EXPECT_EQ(read("/fc/MatMul"), "fc.weight");
  EXPECT_EQ(read("/fc_1/MatMul"), "fc_1.weight");
  EXPECT_EQ(read("/w_2/MatMul"), "w_2.weight");
}

// `e3.weight = e2.weight`: the biases are no copies of each other.
TEST_F(TorchScriptFile, ModulesThatDifferInTheRestShareTheirEqualWeight) {
  const ValueId first = matrix("onnx::MatMul_24"), copy = merged("onnx::MatMul_25", first);
  const ValueId h = linear("/e2", value("x"), first, weight("e2.bias", {2}, {5, 6}));
  linear("/e3", h, copy, weight("e3.bias", {2}, {7, 8}));
  const ModuleParameters found = restore();
  EXPECT_EQ(read("/e2/MatMul"), "e2.weight");
  EXPECT_EQ(read("/e3/MatMul"), "e2.weight");
  EXPECT_THAT(found.taken_as_one, ElementsAre("'/e2/MatMul' and '/e3/MatMul'"));
  EXPECT_THAT(found.other_names, ElementsAre(TiedName{"e3.weight", "e2.weight"}));
  EXPECT_THAT(otherNames(graph_.value(first)), ElementsAre("e3.weight"));
  EXPECT_THAT(found.untold, IsEmpty());
  EXPECT_EQ(found.separated, 0);
}

TEST_F(TorchScriptFile, ModulesThatShareTheBiasShareTheirEqualWeight) {
  const ValueId first = matrix("onnx::MatMul_24"), bias = weight("e2.bias", {2}, {5, 6});
  const ValueId copy = merged("onnx::MatMul_25", first);
  linear("/e3", linear("/e2", value("x"), first, bias), copy, bias);
  const ModuleParameters found = restore();
  EXPECT_EQ(read("/e3/MatMul"), "e2.weight");
  EXPECT_THAT(found.taken_as_one, ElementsAre("'/e2/MatMul' and '/e3/MatMul'"));
}

// Without a bias, with zeros for biases, or where all is zero: copied or shared, the file is the same.
TEST_F(TorchScriptFile, WhereEqualNumbersAreAllTheWeightsAreApartAndNamed) {
  const ValueId first = matrix("onnx::MatMul_1"), copy = merged("onnx::MatMul_2", first);
  linear("/e3", linear("/e2", value("x"), first), copy);
  const ValueId third = weight("onnx::MatMul_3", {2, 2}, {4, 3, 2, 1}), zeros = weight("u.bias", {2}, {0, 0});
  const ValueId fourth = merged("onnx::MatMul_4", third);
  linear("/v", linear("/u", value("z"), third, zeros), fourth, merged("v.bias", zeros));
  const ValueId none = weight("onnx::MatMul_5", {2, 2}, {0, 0, 0, 0});
  const ValueId up = merged("onnx::MatMul_6", none);
  linear("/q/up", linear("/k/up", value("w"), none, weight("k.up.bias", {2}, {5, 6})), up);
  const ModuleParameters found = restore();
  EXPECT_EQ(read("/e2/MatMul"), "e2.weight");
  EXPECT_EQ(read("/e3/MatMul"), "e3.weight");
  EXPECT_EQ(read("/v/MatMul"), "v.weight");
  EXPECT_EQ(read("/q/up/MatMul"), "q.up.weight");
  EXPECT_EQ(found.separated, 4);
  EXPECT_THAT(found.untold, ElementsAre("'/e2/MatMul' and '/e3/MatMul'", "'/u/MatMul' and '/v/MatMul'",
                                        "'/k/up/MatMul' and '/q/up/MatMul'"));
  EXPECT_THAT(found.taken_as_one, IsEmpty());
}

// A layer of nn.TransformerEncoder with bias=False: its other matrix has a name.
TEST_F(TorchScriptFile, ANamedParameterThatIsEqualTooTellsCopies) {
  const ValueId first = matrix("onnx::MatMul_1"), copy = merged("onnx::MatMul_2", first);
  const ValueId out = weight("t.layers.0.out_proj.weight", {2, 2}, {5, 6, 7, 8});
  const ValueId h = linear("/t/layers.0/linear1", value("x"), first);
  node("/t/layers.0/Gemm", "Gemm", {h, out}, value("y"));
  const ValueId h1 = linear("/t/layers.1/linear1", value("z"), copy);
  node("/t/layers.1/Gemm", "Gemm", {h1, merged("t.layers.1.out_proj.weight", out)}, value("w"));
  const ModuleParameters found = restore();
  EXPECT_EQ(read("/t/layers.0/linear1/MatMul"), "t.layers.0.linear1.weight");
  EXPECT_EQ(read("/t/layers.1/linear1/MatMul"), "t.layers.1.linear1.weight");
  EXPECT_EQ(found.separated, 2);
  EXPECT_THAT(found.untold, IsEmpty());
  EXPECT_THAT(found.taken_as_one, IsEmpty());
}

// A Siamese network of convolutions whose batch normalisations are folded in (--train).
TEST_F(TorchScriptFile, CallsOfOneConvolutionReadOneFilter) {
  const ValueId filter = weight("onnx::Conv_1", {1, 1, 1, 1}, {2}), bias = weight("onnx::Conv_2", {1}, {3});
  const ValueId h = value("h");
  const ValueId filter_again = merged("onnx::Conv_3", filter), bias_again = merged("onnx::Conv_4", bias);
  node("/conv/Conv", "Conv", {value("x"), filter, bias}, h);
  node("/conv_1/Conv", "Conv", {h, filter_again, bias_again}, value("y"));
  const ModuleParameters found = restore();
  EXPECT_EQ(graph_.nodes[1].inputs, (std::vector<ValueId>{h, filter, bias}));
  EXPECT_EQ(graph_.initializers.size(), 2u);
  EXPECT_EQ(found.lost.size(), 1u);
}

// One Linear on inputs of three axes and of two: of the latter it makes a Gemm, with the weight as the
// module.
TEST_F(TorchScriptFile, ALinearOnTwoAndThreeAxesIsOneWeight) {
  const ValueId copy = weight("onnx::MatMul_8", {2, 3}, {1, 3, 5, 2, 4, 6});
  const ValueId own = weight("f.weight", {3, 2}, {1, 2, 3, 4, 5, 6}), bias = weight("f.bias", {3}, {7, 8, 9});
  const ValueId h = linear("/f", value("x"), copy, bias);
  graph_.node(builder_.addNode("", "Gemm", {h, own, bias}, {value("y")}, {{"transB", int64_t{1}}})).name =
      "/f_1/Gemm";
  const ModuleParameters found = restore();
  EXPECT_FALSE(graph_.initializers.contains(copy));
  EXPECT_TRUE(graph_.nodes[0].is("Transpose"));
  EXPECT_EQ(graph_.nodes[0].inputs[0], own);
  EXPECT_THAT(found.tied, ElementsAre("f.weight"));
  EXPECT_THAT(found.nameless, IsEmpty());
}

TEST_F(TorchScriptFile, AConstantIsNoParameterWhereverItIsRead) {
  const ValueId scale = value("/norm/Constant_output_0");
  builder_.addNode("", "Constant", {}, {scale}, {{"value", makeConstant<float>({2}, {1, 1})}});
  node("/norm/LayerNormalization", "LayerNormalization", {value("x"), scale}, value("y"));
  restore();
  graph_.initializers.emplace(scale, makeConstant<float>({2}, {1, 1}));  // as preparing folds it
  EXPECT_EQ(initializerRoles(graph_)[scale.index()], InitializerRole::kConstant);
}

// A tool has made Constant nodes of initializers: names and places tell them from the exporter's own.
TEST_F(TorchScriptFile, AParameterInAConstantNodeIsOne) {
  const auto constant = [&](const std::string& name, const Shape& shape) {
    const ValueId id = value(name);
    const std::vector<float> ones(static_cast<size_t>(elementCount(shape)), 1);
    builder_.addNode("", "Constant", {}, {id}, {{"value", makeConstant<float>(shape, ones)}});
    return id;
  };
  const ValueId named = constant("norm.weight", {2}), factor = constant("onnx::MatMul_7", {2, 2});
  const ValueId scale = constant("/free/Constant_output_0", {2}), added = constant("onnx::Add_9", {2});
  const ValueId normal = value("normal"), product = value("product"), free = value("free");
  node("/norm/LayerNormalization", "LayerNormalization", {value("x"), named}, normal);
  node("/fc/MatMul", "MatMul", {normal, factor}, product);
  node("/free/LayerNormalization", "LayerNormalization", {product, scale}, free);
  const ValueId table = constant("aten_add_38_other_1", {2}), sum = value("sum");  // torch.onnx.dynamo_export
  node("/Add", "Add", {free, added}, sum);
  node("/Add_1", "Add", {sum, table}, value("y"));
  liftConstantNodes(graph_);
  restore();
  const std::vector<InitializerRole> roles = initializerRoles(graph_);
  EXPECT_EQ(roles[named.index()], InitializerRole::kParameter);
  EXPECT_EQ(roles[factor.index()], InitializerRole::kParameter);
  EXPECT_EQ(graph_.value(factor).name, "fc.weight");
  EXPECT_EQ(roles[scale.index()], InitializerRole::kConstant);
  EXPECT_EQ(roles[added.index()], InitializerRole::kConstant);
  EXPECT_EQ(roles[table.index()], InitializerRole::kParameter);
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

TEST_F(TorchScriptFile, TheMatrixOfAMultiheadAttentionIsCalledAsItsBias) {
  const ValueId matrix = weight("onnx::MatMul_7", {2, 6}, std::vector<float>(12, 1));
  const ValueId product = value("product"), heads = value("heads");
  node("/enc/self_attn/MatMul", "MatMul", {value("x"), matrix}, product);
  const ValueId bias = weight("enc.self_attn.in_proj_bias", {6}, std::vector<float>(6));
  node("/enc/self_attn/Add", "Add", {bias, product}, heads);
  node("/enc/self_attn/Gemm", "Gemm", {heads, weight("enc.self_attn.out_proj.weight", {2, 2}, {1, 2, 3, 4})},
       value("y"));
  const ModuleParameters found = restore();
  EXPECT_EQ(graph_.value(matrix).name, "enc.self_attn.in_proj_weight");
  EXPECT_TRUE(isStoredTransposed(graph_.value(matrix)));
  EXPECT_EQ(found.transposed, 1);
  EXPECT_TRUE(found.nameless.empty());
}

// onnxsim makes one Gemm of a product and the bias behind it.
TEST_F(TorchScriptFile, TheMatrixOfAProductWithBiasIsCalledAsItsBias) {
  const ValueId matrix = weight("onnx::MatMul_7", {2, 3}, std::vector<float>(6, 1));
  node("/fc/MatMul", "Gemm", {value("x"), matrix, weight("fc.bias", {3}, std::vector<float>(3))}, value("y"));
  const ModuleParameters found = restore();
  EXPECT_EQ(graph_.value(matrix).name, "fc.weight");
  EXPECT_TRUE(isStoredTransposed(graph_.value(matrix)));
  EXPECT_TRUE(found.lost.empty());
}

// Without a bias nothing tells the name: a module with modules in it is no Linear.
TEST_F(TorchScriptFile, AMatrixWhoseNameIsNotToldIsCalledAsInTheFile) {
  const ValueId matrix = weight("onnx::MatMul_7", {2, 6}, std::vector<float>(12, 1));
  const ValueId heads = value("heads");
  node("/enc/self_attn/MatMul", "MatMul", {value("x"), matrix}, heads);
  node("/enc/self_attn/Gemm", "Gemm", {heads, weight("enc.self_attn.out_proj.weight", {2, 2}, {1, 2, 3, 4})},
       value("y"));
  const ModuleParameters found = restore();
  EXPECT_EQ(graph_.value(matrix).name, "onnx::MatMul_7");
  EXPECT_THAT(found.nameless, ElementsAre("onnx::MatMul_7 (of 'enc.self_attn')"));
  EXPECT_EQ(found.transposed, 0);
  EXPECT_EQ(initializerRoles(graph_)[matrix.index()], InitializerRole::kParameter);
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
  EXPECT_THAT(found.other_names, ElementsAre(TiedName{"head.weight", "e.weight"}));
  EXPECT_FALSE(graph_.initializers.contains(copy));
  EXPECT_TRUE(graph_.nodes[1].is("Transpose"));
  EXPECT_EQ(graph_.nodes[1].inputs[0], table);
  EXPECT_EQ(graph_.nodes[1].outputs[0], copy);
  EXPECT_EQ(graph_.value(other).name, "other.weight");
}

TEST_F(TorchScriptFile, AMatrixThatIsReadInBothFormsIsOneWeight) {
  const ValueId h = linear("", value("x"), weight("onnx::MatMul_7", {3, 1}, {1, 2, 3}));
  node("/MatMul_1", "MatMul", {h, weight("onnx::MatMul_8", {1, 2}, {0, 0})}, value("y"));
  node("/MatMul_2", "MatMul", {weight("B", {2, 1}, {0, 0}), weight("A", {1, 3}, {1, 2, 3})}, value("z"));
  const ModuleParameters found = restore();
  EXPECT_THAT(found.tied, ElementsAre("A"));
  EXPECT_EQ(found.lost.at(0).name, "onnx::MatMul_8");  // zeros: of B, or of another one
}

TEST_F(TorchScriptFile, AFoldedBatchNormalizationIsRefused) {
  const ValueId folded = weight("onnx::Conv_196", {1, 1, 1, 1}, {2}),
                bias = weight("onnx::Conv_197", {1}, {3});
  node("/layer1/conv1/Conv", "Conv", {value("x"), folded, bias}, value("y"));
  const ModuleParameters found = restore();
  ASSERT_EQ(found.lost.size(), 1u);
  EXPECT_THAT(found.lost[0].reason, HasSubstr("into which the batch normalization behind it is folded"));
  EXPECT_ERROR(refuseLostParameters(found, {}), ErrorCode::kBadModel, "'layer1.conv1'");
  EXPECT_ERROR(refuseLostParameters(found, {}), ErrorCode::kBadModel,
               "training=torch.onnx.TrainingMode.PRESERVE, do_constant_folding=False");
  refuseLostParameters(found, {"^onnx::Conv_"});
}

// A bias that keeps its name, or none: no normalisation behind it is folded in.
TEST_F(TorchScriptFile, AComputedFilterIsOfNoBatchNormalization) {
  const ValueId computed = weight("onnx::Conv_58", {1, 1, 1, 1}, {2}), bias = weight("conv.bias", {1}, {3});
  node("/conv/Conv", "Conv", {value("x"), computed, bias}, value("y"));
  const ModuleParameters found = restore();
  ASSERT_EQ(found.lost.size(), 1u);
  EXPECT_EQ(found.lost[0].reason,
            "the weight of 'conv', computed by the exporter from the module's parameters: a weight "
            "normalization, a transposition, ..");
  EXPECT_FALSE(found.keras);
}

TEST_F(TorchScriptFile, OfAModelOfKerasTheAdviceIsForKeras) {
  node("/Conv", "Conv", {value("keras_tensor"), weight("onnx::Conv_70", {1, 1, 1, 1}, {2})}, value("y"));
  const ModuleParameters found = restore();
  EXPECT_TRUE(found.keras);
  EXPECT_ERROR(refuseLostParameters(found, {}), ErrorCode::kBadModel,
               "A model of Keras can be trained as it is in the file, in folded form: --train .");
  EXPECT_NO_THROW(refuseLostParameters(found, {}, {"."}));
}

// LSTM's weights come in another order of gates, both biases as one tensor; a first state is computed.
TEST_F(TorchScriptFile, FoldedWeightsOfRecurrentLayersAreTrainedAsTheyAre) {
  const ValueId w = weight("onnx::LSTM_209", {1, 4, 1}, {1, 2, 3, 4}),
                r = weight("onnx::LSTM_210", {1, 4, 1}, {5, 6, 7, 8}),
                b = weight("onnx::LSTM_211", {1, 8}, {1, 2, 3, 4, 5, 6, 7, 8}),
                state = weight("onnx::LSTM_212", {1, 2, 1}, {1, 2});
  node("/enc/rnn/LSTM", "LSTM", {value("x"), w, r, b, ValueId(), state}, value("y"));
  const ModuleParameters found = restore();
  EXPECT_THAT(found.recurrent, ElementsAre("onnx::LSTM_209 (of 'enc.rnn')", "onnx::LSTM_210 (of 'enc.rnn')",
                                           "onnx::LSTM_211 (of 'enc.rnn')"));
  ASSERT_EQ(found.lost.size(), 1u);
  EXPECT_EQ(found.lost[0].name, "onnx::LSTM_212");
  EXPECT_EQ(initializerRoles(graph_)[b.index()], InitializerRole::kParameter);
  EXPECT_ERROR(refuseLostParameters(found, {}), ErrorCode::kBadModel,
               "With this file alone: --train '^(onnx::LSTM_)' trains what it has in their place");
}

// What other operators read, too, was moved for them. One tensor as the bias of two layers may be two.
TEST_F(TorchScriptFile, OfRecurrentLayersOnlyTheirOwnWeightsAreTrained) {
  const ValueId r = weight("onnx::GRU_1", {1, 3, 1}, {1, 2, 3}),
                zero = weight("onnx::GRU_2", {1, 6}, {0, 0, 0, 0, 0, 0});
  node("/a/GRU", "GRU", {value("x"), weight("onnx::GRU_3", {1, 3, 1}, {1, 2, 3}), r, zero}, value("y"));
  node("/b/GRU", "GRU",
       {value("y2"), weight("onnx::GRU_4", {1, 3, 1}, {4, 5, 6}), weight("onnx::GRU_5", {1, 3, 1}, {7, 8, 9}),
        zero},
       value("z"));
  node("/Mul", "Mul", {value("h"), r}, value("o"));
  const ModuleParameters found = restore();
  EXPECT_THAT(found.recurrent,
              ElementsAre("onnx::GRU_3 (of 'a')", "onnx::GRU_4 (of 'b')", "onnx::GRU_5 (of 'b')"));
  EXPECT_EQ(found.lost.size(), 2u);
}

// Fresh biases that the exporter has merged: '/gru_1/GRU' looks like another call of 'gru'.
TEST_F(TorchScriptFile, EqualBiasesOfRecurrentLayersAreTheirOwn) {
  const auto gru = [&](const std::string& call, const std::vector<float>& numbers, ValueId bias) {
    node("/" + call + "/GRU", "GRU",
         {value(call + "_x"), weight("onnx::GRU_" + call, {1, 3, 1}, numbers),
          weight("onnx::GRU_r" + call, {1, 3, 1}, numbers), bias},
         value(call + "_y"));
  };
  const ValueId zero = weight("onnx::GRU_9", {1, 6}, {0, 0, 0, 0, 0, 0});
  const ValueId other = merged("onnx::GRU_10", zero), again = merged("onnx::GRU_11", zero);
  gru("gru", {1, 2, 3}, zero);
  gru("gru_1", {4, 5, 6}, other);
  gru("gru_2", {1, 2, 3}, again);
  restore();
  EXPECT_EQ(graph_.nodes[0].inputs[3], zero);
  EXPECT_EQ(graph_.nodes[1].inputs[3], other);
  EXPECT_EQ(graph_.nodes[2].inputs[3], zero);
  EXPECT_EQ(graph_.nodes[2].inputs[1], graph_.nodes[0].inputs[1]);
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

// As onnxsim, onnxslim and onnxscript's optimizer leave it, and the latter of a file of torch.export.
TEST_F(TorchScriptFile, ABatchNormalizationThatAToolHasFoldedIsRefused) {
  const auto convolution = [&](const std::string& name, const std::string& weight_name,
                               const std::string& result) {
    node(name, "Conv", {value(result + "/x"), weight(weight_name, {1, 1, 1, 1}, {2})}, value(result));
  };
  convolution("/l1/conv1/Conv", "_v_51", "/l1/conv1/Conv_output_0");
  convolution("/l1/conv2/Conv_output_0", "/l1/bn2/BatchNormalization_output_0_weight",
              "/l1/bn2/BatchNormalization_output_0");
  convolution("node_Conv_2", "l2.conv1.weight", "/l2/bn1/BatchNormalization_output_0");
  convolution("node_conv2d", "l3.weight", "getitem_3");
  convolution("node_Conv_3", "l4.weight", "l4");
  graph_.nodes.back().metadata = {{"pkg.onnxscript.rewriter.rule_name", "FuseBatchNormIntoConv"}};
  convolution("/stem/Conv", "stem.weight", "/stem/Conv_output_0");
  node("node_Gemm_0", "Gemm", {value("z"), weight("fc.weight", {1, 1}, {2})},
       value("/bn/BatchNormalization_output_0"));
  node("/head/Gemm", "Gemm", {value("v"), weight("head.weight", {1, 1}, {2})}, value("w"));
  std::vector<std::string> names;
  for (const LostParameter& lost : restore().lost) names.push_back(lost.name);
  EXPECT_THAT(names, ElementsAre("_v_51", "/l1/bn2/BatchNormalization_output_0_weight", "l2.conv1.weight",
                                 "l3.weight", "l4.weight", "fc.weight"));
}

TEST_F(TorchScriptFile, ConvolutionsUnderTheirNamesAreLeftAlone) {
  node("/conv/Conv", "Conv", {value("x"), weight("conv.weight", {1, 1, 1, 1}, {2})}, value("y"));
  EXPECT_TRUE(restore().lost.empty());
}

}  // namespace
}  // namespace pipeshard
