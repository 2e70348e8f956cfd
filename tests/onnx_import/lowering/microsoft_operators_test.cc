// Operators of ONNX Runtime: values against its own, gradients against differences.
//
// The numbers are those of ONNX Runtime 1.32 on its CPU, and of PyTorch for operators that it has there on
// other devices only: of each output, three sums that weigh all its elements.
#include <array>
#include <cmath>
#include <optional>

#include <gtest/gtest.h>

#include "ir/operators/operator_facts.h"
#include "onnx_import/autodiff/training.h"
#include "onnx_import/prepare/expand.h"
#include "onnx_import/prepare/inference.h"
#include "onnx_import/prepare/prepare.h"
#include "tests/onnx_import/autodiff/gradient_check.h"
#include "tests/onnx_import/check_model.h"
#include "tests/onnx_import/model_files.h"

namespace pipeshard::testing {
namespace {

using Attributes = std::map<std::string, Attribute>;
using Argument = std::optional<Constant>;
using Digest = std::vector<double>;

struct MicrosoftCase {
  std::string op_type;
  std::vector<Argument> inputs;
  Attributes attributes;
  std::vector<Digest> outputs;  // empty: left out
  std::string domain = "com.microsoft";
  bool quantized = false;  // only input 0 may be a parameter
};

constexpr std::array kOpsets = {20, 16};  // with Gelu and LayerNormalization, and without

// sin(1.3 i + phase)
Constant wave(const Shape& shape, double phase) {
  std::vector<double> elements(elementCount(shape));
  for (size_t i = 0; i < elements.size(); ++i) elements[i] = std::sin(1.3 * static_cast<double>(i) + phase);
  return makeTensor(shape, elements);
}

Constant ids(const Shape& shape, const std::vector<int32_t>& elements) {
  return makeConstant<int32_t>(shape, elements);
}

Digest digestOf(const Constant& tensor) {
  const std::vector<double> elements = elementsOf(tensor);
  Digest digest(3);
  for (size_t k = 0; k < digest.size(); ++k) {
    for (size_t i = 0; i < elements.size(); ++i)
      digest[k] += elements[i] * std::sin(0.37 * static_cast<double>((k + 1) * i) + static_cast<double>(k));
  }
  return digest;
}

bool canTrain(const Node& node) { return hasKernel(node) && hasGradientRule(node.domain, node.op_type); }

// The operator in a graph of its own; floating-point arrays are parameters.
std::vector<ValueId> addOperator(TestGraph& test, const MicrosoftCase& tested, int opset) {
  test.graph().opset_imports = {{"", opset}, {"com.microsoft", 1}};
  std::vector<ValueId> inputs;
  for (const Argument& given : tested.inputs) {
    if (!given) {
      inputs.emplace_back();
    } else if (isFloatingPoint(given->data_type) && !given->shape.empty() &&
               (!tested.quantized || inputs.empty())) {
      inputs.push_back(test.parameter("x" + std::to_string(inputs.size()), *given));
    } else {
      inputs.push_back(test.constant(*given));
    }
  }
  std::vector<ValueId> outputs;
  for (const Digest& output : tested.outputs) {
    outputs.emplace_back();
    if (output.empty()) continue;
    outputs.back() = test.builder().addValue("y", DataType::kUndefined, {});
    test.graph().value(outputs.back()).shape.reset();
  }
  test.builder().addNode(tested.domain, tested.op_type, inputs, outputs, tested.attributes);
  inferShapes(test.graph());
  return outputs;
}

void lowerAll(TestGraph& test) {
  while (expandUnsupported(test.graph(), canTrain) > 0) inferShapes(test.graph());
}

void checkOperator(const MicrosoftCase& tested, int opset) {
  SCOPED_TRACE(tested.op_type + " in opset " + std::to_string(opset));
  TestGraph test;
  std::vector<ValueId> outputs = addOperator(test, tested, opset);
  std::vector<std::string> names;
  for (ValueId output : outputs) names.push_back(output.valid() ? test.graph().value(output).name : "");
  std::erase(outputs, ValueId());
  for (ValueId output : outputs) ASSERT_TRUE(hasStaticType(test.graph().value(output)));
  const ValueId loss = test.weightedSum(outputs);
  lowerAll(test);
  for (const Node& node : test.graph().nodes) EXPECT_TRUE(node.domain.empty()) << describeNode(node);
  const Tensors computed = Interpreter(test.graph()).run(test.contents());
  for (size_t i = 0; i < tested.outputs.size(); ++i) {
    const Digest got = tested.outputs[i].empty() ? Digest() : digestOf(computed.at(names[i]));
    for (size_t k = 0; k < got.size(); ++k) {
      const double want = tested.outputs[i][k];
      EXPECT_NEAR(got[k], want, 2e-5 * std::max(1.0, std::abs(want) / 10)) << "output " << i;
    }
  }
  const bool has_parameters = !tested.quantized || isFloatingPoint(tested.inputs[0]->data_type);
  if (has_parameters) checkLossGradients(test, loss);
}

void checkOperators(const std::vector<MicrosoftCase>& cases) {
  for (const MicrosoftCase& tested : cases) {
    for (const int opset : kOpsets) {
      const bool is_onnx = tested.domain.empty() && tested.op_type == "LayerNormalization" && opset >= 17;
      if (!is_onnx) checkOperator(tested, opset);
    }
  }
}

TEST(MicrosoftOperators, ActivationsProductsAndConvolutions) {
  checkOperators({
      {"Gelu", {wave({2, 3, 4}, 0)}, {}, {{0.78128, 0.27625, 1.98497}}},
      {"FastGelu", {wave({2, 3, 4}, 0), wave({4}, 1)}, {}, {{2.99545, 0.71723, 3.01847}}},
      {"QuickGelu", {wave({2, 3, 4}, 0)}, {{"alpha", 1.5F}}, {{0.71908, 0.28431, 1.98015}}},
      {"BiasGelu", {wave({2, 3, 4}, 0), wave({4}, 1)}, {}, {{2.99610, 0.71730, 3.01827}}},
      {"FusedMatMul",
       {wave({4, 2, 3}, 0), wave({2, 5, 4}, 1)},
       {{"transA", int64_t{1}}, {"transB", int64_t{1}}, {"transBatchA", int64_t{1}}, {"alpha", 0.5F}},
       {{2.38542, 1.71985, -0.16396}}},
      {"FusedMatMul",
       {wave({3}, 0), wave({2, 3, 4}, 1)},
       {{"transA", int64_t{1}}},
       {{-0.22256, 2.39340, -2.70708}}},
      {"FusedGemm",
       {wave({4, 2}, 0), wave({3, 4}, 1), wave({3}, 2)},
       {{"transA", int64_t{1}},
        {"transB", int64_t{1}},
        {"alpha", 0.5F},
        {"beta", 2.0F},
        {"activation", std::string("LeakyRelu")},
        {"activation_alpha", 0.25F}},
       {{0.41925, 1.51716, 0.02254}}},
      {"FusedConv",
       {wave({1, 2, 4, 5}, 0), wave({2, 1, 3, 3}, 1), wave({2}, 2), wave({1, 2, 2, 3}, 3)},
       {{"activation", std::string("HardSigmoid")},
        {"activation_params", std::vector<float>{0.25F, 0.5F}},
        {"strides", std::vector<int64_t>{2, 2}},
        {"pads", std::vector<int64_t>{1, 1, 0, 1}},
        {"group", int64_t{2}}},
       {{2.77560, 1.53502, -0.80309}}},
      {"FusedConv",
       {wave({1, 2, 4}, 0), wave({3, 2, 2}, 1)},
       {{"auto_pad", std::string("SAME_UPPER")}, {"strides", std::vector<int64_t>{2}}},
       {{-0.53294, 0.04487, 1.23672}}},
  });
}

TEST(MicrosoftOperators, Normalizations) {
  checkOperators({
      {"LayerNormalization",
       {wave({2, 3, 4}, 0), wave({4}, 2), wave({4}, 1)},
       {{"axis", int64_t{-1}}, {"epsilon", 0.01F}},
       {{-1.72765, 1.19536, 0.79174}},
       ""},
      {"SkipLayerNormalization",
       {wave({2, 3, 4}, 0), wave({3, 4}, 3), wave({4}, 2), wave({4}, 1), wave({4}, 4)},
       {{"epsilon", 0.01F}},
       {{-0.82223, 0.81636, 2.52250},
        {-0.76252, 0.08664, 0.36918},
        {4.08282, 1.43851, 1.18535},
        {0.99056, -0.12586, 0.59234}}},
      {"SimplifiedLayerNormalization",
       {wave({2, 3, 4}, 0), wave({3, 4}, 1)},
       {{"axis", int64_t{1}}, {"epsilon", 0.01F}},
       {{0.80706, 1.90431, 0.30653}, {0.50649, 2.55804, 1.31657}},
       ""},
      {"SkipSimplifiedLayerNormalization",
       {wave({2, 3, 4}, 0), wave({2, 3, 4}, 3), wave({4}, 2), wave({4}, 1)},
       {{"epsilon", 0.01F}},
       {{2.31995, 0.08663, 0.34802}, {}, {}, {-0.63588, 1.17996, 1.40075}}},
      {"EmbedLayerNormalization",
       {ids({2, 3}, {0, 2, 1, 1, 1, 0}),
        ids({2, 3}, {0, 0, 1, 1, 1, 0}),
        wave({3, 4}, 0),
        wave({5, 4}, 1),
        wave({2, 4}, 2),
        wave({4}, 2),
        wave({4}, 1),
        {},
        ids({2, 3}, {0, 1, 2, 4, 3, 0})},
       {{"epsilon", 0.01F}},
       {{1.12546, -2.80491, 1.09122}, {}, {-1.49131, 6.55788, 0.91339}}},
  });
}

TEST(MicrosoftOperators, Attention) {
  checkOperators({
      {"RotaryEmbedding",
       {wave({2, 3, 8}, 0), ids({2, 3}, {0, 1, 2, 3, 1, 0}), wave({4, 2}, 1), wave({4, 2}, 2)},
       {},
       {{-0.47918, -0.53212, 2.93036}}},
      {"RotaryEmbedding",
       {wave({1, 2, 3, 6}, 0), ids({1}, {1}), wave({4, 2}, 1), wave({4, 2}, 2)},
       {{"interleaved", int64_t{1}}, {"num_heads", int64_t{2}}, {"rotary_embedding_dim", int64_t{4}}},
       {{-4.17773, 3.91078, 0.68912}}},
      {"Attention",
       {wave({2, 3, 4}, 0), wave({4, 12}, 1), wave({12}, 2), ids({2, 3}, {1, 0, 1, 1, 1, 0})},
       {{"num_heads", int64_t{2}}, {"unidirectional", int64_t{1}}, {"mask_filter_value", -2.0F}},
       {{1.48505, -0.18941, 0.36867}, {-6.27187, -2.52411, 0.10480}}},
      {"Attention",
       {wave({2, 3, 4}, 0),
        wave({4, 10}, 1),
        wave({10}, 2),
        ids({4}, {2, 3, 0, 1}),
        {},
        wave({1, 2, 3, 3}, 3)},
       {{"num_heads", int64_t{2}}, {"qkv_hidden_sizes", std::vector<int64_t>{4, 4, 2}}, {"scale", 0.7F}},
       {{3.79443, -1.45277, -0.53060}}},
      {"MultiHeadAttention",
       {wave({2, 3, 4}, 0), wave({2, 2, 4}, 1), wave({2, 2, 6}, 2), wave({14}, 3), ids({2}, {1, 2}),
        wave({2, 1, 3, 2}, 4)},
       {{"num_heads", int64_t{2}}},
       {{-0.26037, -0.59365, 5.03437}, {-1.21475, 5.85120, -1.62685}, {-7.02188, 3.01693, 0.06282}}},
      {"MultiHeadAttention",
       {wave({2, 3, 4}, 0), wave({2, 2, 5, 2}, 1), wave({2, 2, 5, 2}, 2)},
       {{"num_heads", int64_t{2}}},
       {{0.00921, 0.33116, 0.79482}}},
      {"GroupQueryAttention",
       {wave({1, 3, 16}, 0),
        wave({1, 3, 8}, 1),
        wave({1, 3, 8}, 2),
        {},
        {},
        ids({1}, {2}),
        ids({}, {3}),
        {},
        {},
        {},
        {},
        wave({2}, 3)},
       {{"num_heads", int64_t{2}},
        {"kv_num_heads", int64_t{1}},
        {"local_window_size", int64_t{2}},
        {"softcap", 0.7F}},
       {{-0.18642, -1.25648, -0.17750}}},
      {"GroupQueryAttention",
       {wave({1, 3, 64}, 0), {}, {}, {}, {}, ids({1}, {1}), ids({}, {3}), wave({4, 8}, 1), wave({4, 8}, 2)},
       {{"num_heads", int64_t{2}}, {"kv_num_heads", int64_t{1}}, {"do_rotary", int64_t{1}}},
       {{-1.01118, -0.09992, 6.38816}, {-2.99601, -0.72453, -0.27710}, {-0.88853, -0.34035, -0.09894}}},
  });
}

// Codes as a quantized weight has them.
Constant codes(const Shape& shape, int64_t factor) {
  std::vector<uint8_t> elements(elementCount(shape));
  for (size_t i = 0; i < elements.size(); ++i)
    elements[i] = static_cast<uint8_t>(factor * static_cast<int64_t>(i));
  return makeConstant<uint8_t>(shape, elements);
}

Constant scaled(Constant tensor, double factor, double offset) {
  std::vector<double> elements = elementsOf(tensor);
  for (double& element : elements) element = element * factor + offset;
  return makeTensor(tensor.shape, elements);
}

TEST(MicrosoftOperators, ProductsWithQuantizedWeights) {
  const Attributes four = {
      {"K", int64_t{20}}, {"N", int64_t{3}}, {"bits", int64_t{4}}, {"block_size", int64_t{16}}};
  Attributes eight = four;
  eight["bits"] = int64_t{8};
  const Constant x = wave({2, 20}, 0), scales = wave({6}, 1);
  std::vector<MicrosoftCase> cases = {
      {"MatMulNBits", {x, codes({3, 2, 8}, 37), scales}, four, {{-15.73885, -0.75526, 11.54427}}},
      {"MatMulNBits",
       {x, codes({3, 2, 8}, 37), scales, codes({3}, 83)},
       four,
       {{-10.62525, -1.27498, 8.59251}}},
      {"MatMulNBits", {x, codes({3, 2, 16}, 37), scales}, eight, {{-465.83648, -149.51736, 54.89002}}},
      {"MatMulNBits",
       {x, codes({3, 2, 16}, 37), scales, codes({6}, 83)},
       eight,
       {{-441.99253, -148.09888, -17.9604}}},
      {"MatMulNBits",
       {x, codes({3, 2, 8}, 37), scales, {}, {}, wave({3}, 2)},
       four,
       {{-16.76378, 0.28145, 11.52767}}},
      {"MatMulNBits",
       {x, codes({3, 2, 8}, 37), scales, scaled(wave({3, 2}, 2), 3, 7)},
       four,
       {{-16.77107, -1.58482, 13.07201}}},
      {"MatMulIntegerToFloat",
       {codes({2, 4}, 37), codes({4, 3}, 83), makeTensor({}, {0.02}), wave({3}, 1),
        makeConstant<uint8_t>({}, {100}), codes({3}, 91), wave({3}, 2)},
       {},
       {{410.85155, -307.68202, -631.85919}}}};
  for (MicrosoftCase& tested : cases) tested.quantized = true;
  checkOperators(cases);
}

// Values only: what rounds has no gradient that differences would show.
TEST(MicrosoftOperators, ProductsThatRoundTheirFirstOperand) {
  const Constant scale = makeTensor({}, {0.02});
  const std::vector<MicrosoftCase> cases = {
      {"DynamicQuantizeMatMul",
       {wave({2, 3, 4}, 0), codes({4, 3}, 83), wave({3}, 1), codes({3}, 91), wave({3}, 2)},
       {},
       {{747.47541, 9.00427, -1.17365}}},
      {"DynamicQuantizeMatMul",
       {wave({2, 3, 4}, 0), codes({4, 3}, 83), scale},
       {},
       {{26.62854, 1.70685, 0.85457}}},
      {"DynamicQuantizeMatMul",
       {scaled(wave({2, 3, 4}, 0), 0, 0), codes({4, 3}, 83), scale},
       {},
       {{0, 0, 0}}}};
  for (const MicrosoftCase& tested : cases) {
    TestGraph test;
    const ValueId y = addOperator(test, tested, 20).at(0);
    lowerAll(test);
    for (const Node& node : test.graph().nodes) EXPECT_TRUE(node.domain.empty()) << describeNode(node);
    const Digest got =
        digestOf(Interpreter(test.graph()).run(test.contents()).at(test.graph().value(y).name));
    for (size_t k = 0; k < got.size(); ++k)
      EXPECT_NEAR(got[k], tested.outputs[0][k], 2e-5 * std::max(1.0, std::abs(tested.outputs[0][k]) / 10));
  }
}

TEST(MicrosoftOperators, WhatIsNotUnderstoodOfQuantizedWeightsIsRefused) {
  const Constant x = wave({2, 20}, 0), scales = wave({6}, 1);
  const auto refuse = [&](std::vector<Argument> inputs, int64_t bits, const char* message) {
    TestGraph test;
    const Attributes attributes = {
        {"K", int64_t{20}}, {"N", int64_t{3}}, {"bits", bits}, {"block_size", int64_t{16}}};
    addOperator(test, {"MatMulNBits", std::move(inputs), attributes, {{1}}, "com.microsoft", true}, 20);
    EXPECT_ERROR(lowerAll(test), ErrorCode::kBadModel, message);
  };
  refuse({x, codes({3, 2, 8}, 37), scales}, 3, "its weights have 3 bits, not 4 or 8");
  refuse({x, codes({3, 2, 8}, 37), scales}, 8,
         "its weight is uint8[3,2,8], not 3 columns of 2 blocks of 16 codes");
  refuse({x, codes({3, 2, 8}, 37), wave({5}, 1)}, 4, "it has 5 scales for 3 columns of 2 blocks");
  refuse({x, codes({3, 2, 8}, 37), scales, codes({4}, 1)}, 4,
         "its zero points are 4 bytes for 3 columns of 2 blocks");
  refuse({x, codes({3, 2, 8}, 37), scales, {}, ids({1}, {0})}, 4, "its weights are reordered (g_idx)");
}

// Against PyTorch.
TEST(MicrosoftOperators, ThoseOfOtherDevices) {
  checkOperators({
      {"GroupNorm",
       {wave({2, 2, 3, 4}, 0), wave({4}, 2), wave({4}, 1)},
       {{"groups", int64_t{2}}, {"activation", int64_t{1}}, {"epsilon", 0.01F}},
       {{2.38084, 1.21245, 1.54241}}},
      {"SkipGroupNorm",
       {wave({2, 2, 3, 4}, 0), wave({4}, 2), wave({4}, 1), wave({2, 4}, 3), wave({4}, 4)},
       {{"groups", int64_t{2}}, {"activation", int64_t{0}}, {"epsilon", 0.01F}},
       {{3.92282, 2.62895, 3.37502}, {0.11053, -0.42600, 1.84182}}},
      {"BiasSoftmax",
       {wave({2, 2, 3, 4}, 0), wave({1, 1, 3, 4}, 3)},
       {{"axis", int64_t{2}}, {"is_inner_broadcast", int64_t{0}}},
       {{0.21974, 0.07950, 0.75749}}},
      {"BiasSplitGelu", {wave({2, 3, 4}, 0), wave({4}, 1)}, {}, {{-0.12675, -0.43593, 0.08050}}},
      {"BiasAdd", {wave({2, 3, 4}, 0), wave({4}, 1), wave({2, 3, 4}, 3)}, {}, {{-0.63588, 1.17996, 1.40075}}},
      {"MultiHeadAttention",
       {wave({1, 3, 2, 3, 2}, 0)},
       {{"num_heads", int64_t{2}}},
       {{0.14270, -0.10457, -0.27882}}},
      {"MultiHeadAttention",
       {wave({1, 2, 4}, 0), wave({1, 3, 2, 2, 2}, 1)},
       {{"num_heads", int64_t{2}}},
       {{-0.19470, -0.51869, 0.26405}}},
  });
}

// The mask is drawn; without training nothing is.
TEST(MicrosoftOperators, BiasDropout) {
  for (const bool training : {false, true}) {
    TestGraph test;
    const Argument flag = Constant{DataType::kBool, {}, {std::byte{training}}};
    addOperator(test,
                {"BiasDropout",
                 {wave({2, 3}, 0), wave({3}, 1), wave({2, 3}, 2), makeScalar(DataType::kFloat64, 0.25), flag},
                 {},
                 {{1}, {1}}},
                20);
    lowerAll(test);
    ASSERT_EQ(test.graph().inputs.size(), training ? 1u : 0u);
    Constant mask{DataType::kBool, {2, 3}, std::vector<std::byte>(6, std::byte{1})};
    if (training) {
      mask.bytes[4] = std::byte{0};
      const Value& input = test.graph().value(test.graph().inputs[0]);
      EXPECT_EQ(input.drawn, (RandomNumbers{RandomNumbers::Kind::kTrue, 0.75}));
      test.giveContent(input.name, mask);
    }
    const Tensors computed = Interpreter(test.graph()).run(test.contents());
    const std::vector<double> y = elementsOf(computed.at("y"));
    EXPECT_EQ(computed.at("y_1").bytes, mask.bytes);
    for (size_t i = 0; i < y.size(); ++i) {
      const double sum = elementsOf(wave({2, 3}, 0))[i] + elementsOf(wave({3}, 1))[i % 3];
      const double kept = !training ? sum : i == 4 ? 0 : sum / 0.75;
      EXPECT_DOUBLE_EQ(y[i], kept + elementsOf(wave({2, 3}, 2))[i]);
    }
  }
}

PrepareOptions forTraining() {
  PrepareOptions options;
  options.supported = canTrain;
  return options;
}

// Shapes behind an operator that ONNX does not know follow from it, and arithmetic on them is folded; domains
// that nothing uses do not matter.
TEST(MicrosoftOperators, GiveTheirOutputsTypes) {
  const Graph graph = prepareModel(graphFromText(R"(<ir_version: 10, opset_import:
      ["" : 13, "com.microsoft" : 1, "com.microsoft.nchwc" : 1, "org.pytorch.aten" : 1]>
    g (float[2,3,4] x, float[4] scale) => (y) {
      a = com.microsoft.QuickGelu(x)
      n = LayerNormalization(a, scale)
      s = Shape(n)
      e = Expand(scale, s)
      q, i, k, sum = com.microsoft.SkipLayerNormalization(n, e, scale)
      y = com.microsoft.FusedMatMul <transB: int = 1> (q, sum) })"),
                                   forTraining());
  EXPECT_EQ(graph.shape(graph.outputs[0]), (Shape{2, 3, 3}));
  for (const Node& node : graph.nodes) EXPECT_TRUE(node.domain.empty() && node.op_type != "Shape");
  checkModel(graph);
}

TEST(MicrosoftOperators, QuantizationIsThatOfOnnx) {
  const auto prepared = [](const std::string& domain) {
    const std::string text = R"(<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>
      g (float[2,3] x) => (y) <float scale = {0.5}, uint8 zero = {3}> {
        q = )" + domain + R"(QuantizeLinear(x, scale, zero)
        y = )" + domain + R"(DequantizeLinear(q, scale, zero) })";
    return prepareModel(graphFromText(text), forTraining());
  };
  const Graph ours = prepared("com.microsoft."), standard = prepared("");
  ASSERT_EQ(ours.nodes.size(), standard.nodes.size());
  for (size_t n = 0; n < ours.nodes.size(); ++n) EXPECT_EQ(ours.nodes[n].op_type, standard.nodes[n].op_type);
}

TEST(MicrosoftOperators, WhatIsNotSupportedIsNamed) {
  const auto check = [](const MicrosoftCase& tested, const std::string& reason) {
    TestGraph test;
    addOperator(test, tested, 20);
    EXPECT_ERROR(lowerAll(test), ErrorCode::kBadModel, tested.op_type, reason);
  };
  const Argument x = wave({2, 3, 4}, 0);
  const Attributes heads{{"num_heads", int64_t{2}}};
  Attributes causal = heads;
  causal["unidirectional"] = int64_t{1};
  check({"Attention", {x, wave({4, 12}, 0), {}, {}, wave({2, 2, 2, 5, 2}, 0)}, heads, {{1}}}, "earlier call");
  check({"Attention", {x, wave({4, 12}, 0), {}, ids({2, 1, 8, 8}, std::vector<int32_t>(128))}, heads, {{1}}},
        "its mask is [2,1,8,8]");
  check({"MultiHeadAttention", {x, wave({2, 5, 4}, 0), wave({2, 5, 4}, 0)}, causal, {{1}}}, "unidirectional");
  check({"MultiHeadAttention", {x, wave({2, 5, 4}, 0), wave({2, 4, 4}, 0)}, heads, {{1}}}, "do not fit");
  check({"FusedGemm", {wave({2, 3}, 0), wave({3, 2}, 0)}, {{"activation", std::string("Odd")}}, {{1}}},
        "activation is 'Odd'");
  EXPECT_ERROR(prepareModel(graphFromText(R"(<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>
    g (float[2,2] x) => (y) { y = com.microsoft.Inverse(x) })"),
                            forTraining()),
               ErrorCode::kBadModel, "com.microsoft::Inverse", "neither in ONNX");
}

}  // namespace
}  // namespace pipeshard::testing
