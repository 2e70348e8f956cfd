// The kernels of the CUDA module against the CPU's, on the stand-in of NVIDIA's libraries (tests/standin):
// equal integers, float32 within 1e-5 and float64 within 1e-12 of the norm. The process ends with code 99
// when the stand-in has reported anything.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <set>
#include <span>

#include <fmt/format.h>

#include "ir/base/convert.h"
#include "ir/base/error.h"
#include "runtime/device/cuda_loader.h"
#include "runtime/kernels/base/cpu_kernels.h"
#include "tests/expect_error.h"
#include "tests/runtime/device/cuda/like_the_cpu.h"

namespace pipeshard::testing {
namespace {

constexpr DataType kFloat = DataType::kFloat32;
constexpr DataType kDouble = DataType::kFloat64;
constexpr DataType kLong = DataType::kInt64;

std::set<std::string> tried;

void check(const std::string& domain, const std::string& op, std::vector<std::optional<Tensor>> inputs,
           std::vector<OutputSpec> outputs, std::map<std::string, Attribute> attributes = {},
           std::vector<size_t> constants = {}) {
  tried.insert(domain + "::" + op);
  SCOPED_TRACE(op);
  expectLikeTheCpu(makeCall(domain, op, 18, std::move(inputs), std::move(outputs), std::move(attributes),
                            std::move(constants)));
}

Tensor floats(Shape shape, uint64_t seed = 1) { return randomTensor(kFloat, std::move(shape), seed); }
Tensor doubles(Shape shape, uint64_t seed = 1) { return randomTensor(kDouble, std::move(shape), seed); }
Tensor longs(std::vector<int64_t> values) {
  const Shape shape = {std::ssize(values)};
  return makeTensor<int64_t>(shape, values);
}
const std::string kOurs(kPipeshardDomain);

TEST(CudaKernels, ElementByElement) {
  for (const char* op :
       {"Abs",      "Neg",   "Sign",  "Relu",  "Exp",  "Reciprocal", "Erf",       "Tanh", "Sigmoid",
        "Softplus", "Mish",  "Sin",   "Cos",   "Tan",  "Asin",       "Acos",      "Atan", "Sinh",
        "Cosh",     "Asinh", "Atanh", "Floor", "Ceil", "Round",      "LeakyRelu", "Elu",  "Gelu"}) {
    check("", op, {floats({7, 41})}, {{kFloat, {7, 41}}});
    check("", op, {doubles({300})}, {{kDouble, {300}}});
  }
  for (const char* op : {"Sqrt", "Log"})
    check("", op, {randomTensor(kFloat, {50}, 2, 0.1, 3)}, {{kFloat, {50}}});
  check("", "Acosh", {randomTensor(kFloat, {50}, 2, 1, 3)}, {{kFloat, {50}}});
  check("", "Gelu", {floats({90})}, {{kFloat, {90}}}, {{"approximate", std::string("tanh")}});
  check("", "Clip", {floats({90}), makeTensor<float>({}, {-0.25f}), std::nullopt}, {{kFloat, {90}}});
  check("", "IsNaN", {makeTensor<float>({3}, {1, NAN, INFINITY})}, {{DataType::kBool, {3}}});
  check("", "IsInf", {makeTensor<float>({3}, {1, NAN, -INFINITY})}, {{DataType::kBool, {3}}});
  check("", "Not", {makeTensor<bool>({2}, {true, false})}, {{DataType::kBool, {2}}});
  for (const char* op : {"Cast", "CastLike"}) {
    std::vector<std::optional<Tensor>> inputs = {makeTensor<float>({4}, {1.5f, -2.5f, 1e20f, NAN})};
    if (std::string(op) == "CastLike") inputs.push_back(longs({1}));
    check("", op, inputs, {{kLong, {4}}}, {{"to", static_cast<int64_t>(kLong)}});
  }
}

TEST(CudaKernels, OfTwoAndThreeOperands) {
  for (const char* op : {"Add", "Sub", "Mul", "Div", "Max", "Min", "Pow"}) {
    check("", op, {randomTensor(kFloat, {3, 1, 5}, 1, 0.1, 2), randomTensor(kFloat, {4, 1}, 2, 0.1, 2)},
          {{kFloat, {3, 4, 5}}});
    check("", op, {randomTensor(kDouble, {300}, 1, 0.1, 2), randomTensor(kDouble, {300}, 2, 0.1, 2)},
          {{kDouble, {300}}});
  }
  check("", "Pow", {floats({9}), makeTensor<float>({}, {3.0f})}, {{kFloat, {9}}}, {}, {1});
  check("", "Div", {longs({7, -7, 5}), longs({2, 2, -1})}, {{kLong, {3}}});
  check("", "Mod", {longs({7, -7, 5}), longs({2, 3, -3})}, {{kLong, {3}}});
  for (const char* op : {"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"})
    check("", op, {longs({1, 2, 3}), longs({3, 2, 1})}, {{DataType::kBool, {3}}});
  for (const char* op : {"And", "Or", "Xor"}) {
    check("", op,
          {makeTensor<bool>({4}, {true, true, false, false}),
           makeTensor<bool>({4}, {true, false, true, false})},
          {{DataType::kBool, {4}}});
  }
  check("", "Where", {makeTensor<bool>({2, 1}, {true, false}), floats({3}), floats({2, 3}, 5)},
        {{kFloat, {2, 3}}});
  for (const char* op : {"Sum", "Mean"})
    check("", op, {floats({2, 3}), floats({3}, 2), floats({2, 1}, 3)}, {{kFloat, {2, 3}}});
  for (const char* op : {"BitwiseAnd", "BitwiseOr", "BitwiseXor"})
    check("", op, {longs({12, 10}), longs({10, 6})}, {{kLong, {2}}});
  check("", "BitwiseNot", {longs({12, 10})}, {{kLong, {2}}});
  check("", "BitShift", {makeTensor<uint8_t>({2}, {3, 200}), makeTensor<uint8_t>({2}, {2, 9})},
        {{DataType::kUint8, {2}}}, {{"direction", std::string("LEFT")}});
  for (const char* op : {"Gelu", "Swish"}) check(kOurs, op, {floats({70})}, {{kFloat, {70}}});
  for (const char* op : {"ReluGrad", "GeluGrad", "SwishGrad", "MishGrad"})
    check(kOurs, op, {floats({70}), floats({70}, 2)}, {{kFloat, {70}}});
}

TEST(CudaKernels, ReductionsAndNormalisations) {
  for (const char* op : {"ReduceSum", "ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare",
                         "ReduceMax", "ReduceMin"}) {
    check("", op, {floats({5, 6, 7}), longs({1})}, {{kFloat, {5, 1, 7}}}, {}, {1});
    check("", op, {doubles({5, 6, 7}), longs({0, 2})}, {{kDouble, {6}}}, {{"keepdims", int64_t{0}}}, {1});
    check("", op, {floats({3, 700}), longs({1})}, {{kFloat, {3, 1}}}, {}, {1});
  }
  for (const char* op : {"Softmax", "LogSoftmax"}) {
    check("", op, {floats({3, 300})}, {{kFloat, {3, 300}}});
    check("", op, {floats({3, 5, 4})}, {{kFloat, {3, 5, 4}}}, {{"axis", int64_t{1}}});
  }
  for (const char* op : {"SoftmaxGrad", "LogSoftmaxGrad"})
    check(kOurs, op, {floats({3, 30}), floats({3, 30}, 2)}, {{kFloat, {3, 30}}}, {{"axis", int64_t{1}}});
  const OutputSpec statistics{kFloat, {6, 1}};
  check("", "LayerNormalization", {floats({6, 300}), floats({300}, 2), floats({300}, 3)},
        {{kFloat, {6, 300}}, statistics, statistics});
  check(kOurs, "LayerNormalizationInputGrad",
        {floats({6, 40}), floats({6, 40}, 2), floats({40}, 3), floats({6, 1}, 4), floats({6, 1}, 5)},
        {{kFloat, {6, 40}}});
  check(kOurs, "LayerNormalizationWeightGrad",
        {floats({6, 40}), floats({6, 40}, 2), floats({6, 1}, 4), floats({6, 1}, 5)},
        {{kFloat, {40}}, {kFloat, {40}}});
  check(kOurs, "RMSNormalization", {floats({6, 300}), floats({300}, 2)}, {{kFloat, {6, 300}}, statistics});
  check(kOurs, "RMSNormalizationInputGrad",
        {floats({6, 40}), floats({6, 40}, 2), floats({40}, 3), floats({6, 1}, 5)}, {{kFloat, {6, 40}}});
  check(kOurs, "RMSNormalizationWeightGrad", {floats({6, 40}), floats({6, 40}, 2), floats({6, 1}, 5)},
        {{kFloat, {40}}});
  check("", "LpNormalization", {floats({4, 5})}, {{kFloat, {4, 5}}});
}

TEST(CudaKernels, Losses) {
  const Tensor scores = floats({5, 7});
  const Tensor labels = longs({0, 6, 3, 2, 2});
  for (const char* reduction : {"mean", "sum"}) {
    const std::map<std::string, Attribute> attributes = {{"reduction", std::string(reduction)},
                                                         {"ignore_index", int64_t{2}}};
    check("", "SoftmaxCrossEntropyLoss", {scores, labels}, {{kFloat, {}}, {kFloat, {5, 7}}}, attributes);
    check("", "NegativeLogLikelihoodLoss", {scores, labels, floats({7}, 9)}, {{kFloat, {}}}, attributes);
    auto grad = attributes;
    grad["has_ignore_index"] = int64_t{1};
    check(kOurs, "CrossEntropyLoss", {scores, labels}, {{kFloat, {}}, {kFloat, {5}}, {kFloat, {5}}}, grad);
    check(kOurs, "CrossEntropyLossGrad",
          {makeTensor<float>({}, {0.5f}), scores, floats({5}, 3), floats({5}, 4), labels}, {{kFloat, {5, 7}}},
          grad);
  }
}

TEST(CudaKernels, Movement) {
  check("", "Transpose", {floats({3, 5, 7})}, {{kFloat, {7, 3, 5}}},
        {{"perm", std::vector<int64_t>{2, 0, 1}}});
  check("", "Slice", {floats({6, 7}), longs({1}), longs({6}), longs({0}), longs({2})}, {{kFloat, {3, 7}}}, {},
        {1, 2, 3, 4});
  check("", "Split", {floats({6, 4}), longs({1, 5})}, {{kFloat, {1, 4}}, {kFloat, {5, 4}}}, {}, {1});
  check("", "Concat", {floats({2, 3}), floats({2, 4}, 2)}, {{kFloat, {2, 7}}}, {{"axis", int64_t{1}}});
  check("", "Expand", {floats({3, 1}), longs({2, 3, 4})}, {{kFloat, {2, 3, 4}}}, {}, {1});
  check("", "Tile", {floats({2, 3}), longs({2, 2})}, {{kFloat, {4, 6}}}, {}, {1});
  for (const char* mode : {"constant", "edge", "reflect", "wrap"})
    check("", "Pad", {floats({3, 4}), longs({1, 2, 0, 1})}, {{kFloat, {4, 7}}}, {{"mode", std::string(mode)}},
          {1});
  check("", "Gather", {floats({5, 3}), longs({4, -5, 0, 4})}, {{kFloat, {4, 3}}});
  check(kOurs, "GatherGrad", {floats({4, 3}), longs({4, -5, 0, 4}), longs({5, 3})}, {{kFloat, {5, 3}}}, {},
        {2});
  for (const char* op : {"Reshape", "Flatten", "Identity", "Squeeze", "Unsqueeze"})
    check("", op, {floats({3, 4})}, {{kFloat, {3, 4}}});
  check("", "Dropout", {floats({3, 4})}, {{kFloat, {3, 4}}, {DataType::kBool, {3, 4}}});
}

TEST(CudaKernels, AddressedElements) {
  const Tensor indices = makeTensor<int64_t>({2, 4}, {0, -1, 2, 1, 4, 0, -5, 3});
  check("", "GatherElements", {floats({5, 4}), indices}, {{kFloat, {2, 4}}});
  check("", "GatherElements", {doubles({2, 6}), indices}, {{kDouble, {2, 4}}}, {{"axis", int64_t{1}}});
  check(kOurs, "GatherElementsGrad", {floats({2, 4}), indices, longs({5, 4})}, {{kFloat, {5, 4}}}, {}, {2});
  const Tensor tuples = makeTensor<int64_t>({3, 2}, {0, 1, 4, -3, 0, 1});
  check("", "GatherND", {floats({5, 3, 4}), tuples}, {{kFloat, {3, 4}}});
  check("", "GatherND", {floats({3, 5, 4}), tuples}, {{kFloat, {3}}}, {{"batch_dims", int64_t{1}}});
  for (const char* reduction : {"none", "add", "mul", "max", "min"}) {
    const std::map<std::string, Attribute> by = {{"reduction", std::string(reduction)}};
    check("", "ScatterElements", {floats({5, 4}), indices, floats({2, 4}, 2)}, {{kFloat, {5, 4}}}, by);
    auto along = by;
    along["axis"] = int64_t{1};
    check("", "ScatterElements",
          {doubles({2, 4}), makeTensor<int64_t>({2, 3}, {1, 1, 1, 0, -4, 3}), doubles({2, 3}, 2)},
          {{kDouble, {2, 4}}}, along);
    check("", "ScatterND", {floats({5, 3, 4}), tuples, floats({3, 4}, 2)}, {{kFloat, {5, 3, 4}}}, by);
  }
}

TEST(CudaKernels, Makers) {
  check("", "Shape", {floats({3, 1, 4})}, {{kLong, {3}}});
  check("", "Size", {floats({3, 1, 4})}, {{kLong, {}}});
  std::vector<float> numbers(1500);
  std::iota(numbers.begin(), numbers.end(), 1.0f);
  check("", "Constant", {}, {{kFloat, {1500}}}, {{"value_floats", numbers}});
  check("", "ConstantOfShape", {longs({2, 3})}, {{kLong, {2, 3}}},
        {{"value", makeConstant<int64_t>({1}, {7})}}, {0});
  check("", "Range",
        {makeTensor<int64_t>({}, {5}), makeTensor<int64_t>({}, {-4}), makeTensor<int64_t>({}, {-3})},
        {{kLong, {3}}});
  check("", "EyeLike", {floats({3, 4})}, {{kFloat, {3, 4}}}, {{"k", int64_t{1}}});
  check("", "EyeLike", {floats({3, 2})}, {{DataType::kBool, {3, 2}}},
        {{"dtype", static_cast<int64_t>(DataType::kBool)}});
  check("", "OneHot", {longs({0, -1, 7}), longs({4}), makeTensor<float>({2}, {-1, 2})}, {{kFloat, {4, 3}}},
        {{"axis", int64_t{0}}}, {1});
  for (const int64_t upper : {0, 1}) {
    check("", "Trilu", {doubles({2, 3, 4}), makeTensor<int64_t>({}, {-1})}, {{kDouble, {2, 3, 4}}},
          {{"upper", upper}}, {1});
  }
}

TEST(CudaKernels, AlongAnAxis) {
  for (const char* op : {"ArgMax", "ArgMin"}) {
    check("", op, {floats({3, 5, 2})}, {{kLong, {3, 1, 2}}}, {{"axis", int64_t{1}}});
    check("", op, {makeTensor<float>({4}, {1, NAN, 3, 3})}, {{kLong, {}}}, {{"keepdims", int64_t{0}}});
    check("", op, {longs({2, 1, 2, 1})}, {{kLong, {1}}}, {{"select_last_index", int64_t{1}}});
  }
  for (const int64_t flag : {0, 1}) {
    check("", "CumSum", {floats({3, 7}), makeTensor<int64_t>({}, {1})}, {{kFloat, {3, 7}}},
          {{"exclusive", flag}, {"reverse", 1 - flag}}, {1});
    check("", "TopK", {floats({3, 7, 2}), longs({3})}, {{kFloat, {3, 3, 2}}, {kLong, {3, 3, 2}}},
          {{"axis", int64_t{1}}, {"largest", flag}}, {1});
  }
  for (const int64_t part : {0, 1, 2}) {
    check(kOurs, "SquareSum", {floats({100000}), makeTensor<int64_t>({}, {part})}, {{kDouble, {}}},
          {{"parts", int64_t{3}}});
  }
}

TEST(CudaKernels, Windows) {
  const std::vector<int64_t> two = {2, 2}, ones = {1, 1, 1, 1}, some = {1, 0, 2, 1};
  const std::map<std::string, Attribute> strided = {{"strides", two}, {"pads", ones}};
  const std::map<std::string, Attribute> dilated = {
      {"dilations", two}, {"pads", std::vector<int64_t>{2, 1, 2, 1}}, {"group", int64_t{2}}};
  check("", "Conv", {floats({2, 3, 7, 6}), floats({4, 3, 3, 3}, 2), floats({4}, 3)}, {{kFloat, {2, 4, 4, 3}}},
        strided);
  check("", "Conv", {doubles({2, 4, 7, 6}), doubles({6, 2, 3, 2}, 2)}, {{kDouble, {2, 6, 7, 6}}}, dilated);
  check("", "Conv", {floats({2, 3, 5}), floats({4, 3, 1}, 2), floats({4}, 3)}, {{kFloat, {2, 4, 5}}});
  check("", "ConvTranspose", {floats({2, 4, 4, 3}), floats({4, 3, 3, 3}, 2), floats({3}, 3)},
        {{kFloat, {2, 3, 7, 5}}}, strided);
  check("", "ConvTranspose", {floats({2, 4, 5}), floats({4, 3, 1}, 2), floats({3}, 3)},
        {{kFloat, {2, 3, 5}}});
  check(kOurs, "ConvInputGrad", {floats({2, 4, 4, 3}), floats({4, 3, 3, 3}, 2)}, {{kFloat, {2, 3, 7, 6}}},
        strided);
  check(kOurs, "ConvInputGrad", {doubles({2, 6, 7, 6}), doubles({6, 2, 3, 2}, 2)}, {{kDouble, {2, 4, 7, 6}}},
        dilated);
  check(kOurs, "ConvWeightGrad", {floats({2, 4, 4, 3}), floats({2, 3, 7, 6}, 2)}, {{kFloat, {4, 3, 3, 3}}},
        strided);
  check(kOurs, "ConvWeightGrad", {doubles({2, 6, 7, 6}), doubles({2, 4, 7, 6}, 2)}, {{kDouble, {6, 2, 3, 2}}},
        dilated);

  const std::map<std::string, Attribute> pool = {
      {"kernel_shape", std::vector<int64_t>{3, 2}}, {"strides", two}, {"pads", some}};
  const OutputSpec pooled{kFloat, {2, 3, 4, 3}}, image{kFloat, {2, 3, 6, 5}};
  check("", "MaxPool", {floats(image.shape)}, {pooled, {kLong, pooled.shape}}, pool);
  check(kOurs, "MaxPoolGrad", {floats(pooled.shape), floats(image.shape, 2)}, {image}, pool);
  for (const int64_t with_padding : {0, 1}) {
    auto average = pool;
    average["count_include_pad"] = with_padding;
    check("", "AveragePool", {floats(image.shape)}, {pooled}, average);
    check(kOurs, "AveragePoolGrad", {floats(pooled.shape)}, {image}, average);
  }
  for (const char* op : {"GlobalAveragePool", "GlobalMaxPool"})
    check("", op, {floats({2, 3, 20, 21})}, {{kFloat, {2, 3, 1, 1}}});
}

TEST(CudaKernels, BatchNormalisation) {
  const Tensor x = floats({4, 3, 5, 20}), dy = floats({4, 3, 5, 20}, 2), by_channel = floats({3}, 3);
  const Tensor variance = randomTensor(kFloat, {3}, 4, 0.5, 2);
  const OutputSpec all{kFloat, {4, 3, 5, 20}}, channels{kFloat, {3}};
  check("", "BatchNormalization", {x, by_channel, by_channel, by_channel, variance}, {all});
  check("", "BatchNormalization", {x, by_channel, by_channel, by_channel, variance},
        {all, channels, channels}, {{"training_mode", int64_t{1}}});
  check(kOurs, "BatchNormalizationInputGrad", {dy, x, by_channel}, {all});
  check(kOurs, "BatchNormalizationWeightGrad", {dy, x}, {channels, channels});
  check(kOurs, "BatchNormalizationWeightGrad", {dy, x}, {{}, channels});
}

TEST(CudaKernels, Products) {
  for (const int64_t transposed : {0, 1}) {
    const Shape a = transposed ? Shape{5, 4} : Shape{4, 5};
    const Shape b = transposed ? Shape{6, 5} : Shape{5, 6};
    check("", "Gemm", {floats(a), floats(b, 2), floats({6}, 3)}, {{kFloat, {4, 6}}},
          {{"transA", transposed}, {"transB", transposed}, {"alpha", 0.5f}, {"beta", 2.0f}});
  }
  check("", "MatMul", {doubles({2, 3, 4}), doubles({2, 4, 5}, 2)}, {{kDouble, {2, 3, 5}}});
  check("", "MatMul", {longs({1, 2, 3}), longs({4, 5, 6})}, {{kLong, {}}});
  check("", "MatMul", {floats({3, 0}), floats({0, 2}, 2)}, {{kFloat, {3, 2}}});
  check("com.microsoft", "FusedMatMul", {floats({4, 3}), floats({4, 5}, 2)}, {{kFloat, {3, 5}}},
        {{"transA", int64_t{1}}, {"alpha", 0.25f}});
  for (const int64_t transposed : {0, 1}) {
    const std::map<std::string, Attribute> attributes = {{"transposed", transposed}};
    const Shape weight = transposed ? Shape{3, 4, 5} : Shape{5, 3, 4};
    check(kOurs, "FusedProjection", {floats({2, 3, 5}), floats(weight, 2), floats({3, 4}, 3)},
          {{kFloat, {2, 3, 3, 4}}}, attributes);
    check(kOurs, "FusedProjectionInputGrad", {floats({6, 3, 4}), floats(weight, 2)}, {{kFloat, {6, 5}}},
          attributes);
    const auto x = doubles({6, 5}), dy = doubles({6, 3, 4}, 2);
    check(kOurs, "FusedProjectionWeightGrad", {transposed ? dy : x, transposed ? x : dy}, {{kDouble, weight}},
          attributes);
  }
}

// Causal, with a row that the mask hides wholly, and more keys than a block has threads.
TEST(CudaKernels, Attention) {
  const Shape query = {2, 3, 5, 4}, key = {2, 3, 300, 4}, value = {2, 3, 300, 6}, row = {2, 3, 5, 1};
  const Shape output = {2, 3, 5, 6}, scores = {2, 3, 5, 300};
  std::vector<bool> seen(5 * 300);
  for (int64_t i = 0; i < 5; ++i)
    for (int64_t j = 0; j < 300; ++j) seen[i * 300 + j] = i > 0 && j <= 60 * i;
  for (const char* overlays : {"", "mask", "bias", "mask_bias", "bias_mask"}) {
    const std::string name = overlays;
    std::vector<std::optional<Tensor>> inputs = {floats(query), floats(key, 2), floats(value, 3),
                                                 makeTensor<float>({}, {0.5f})};
    const std::vector<std::optional<Tensor>> mask = {makeTensor<bool>({5, 300}, seen),
                                                     makeTensor<float>({}, {-INFINITY})};
    const auto add = [&](const auto& more) { inputs.insert(inputs.end(), more.begin(), more.end()); };
    if (name.starts_with("mask")) add(mask);
    if (name.find("bias") != std::string::npos) inputs.emplace_back(floats({2, 1, 5, 300}, 4));
    if (name == "bias_mask") add(mask);
    const std::map<std::string, Attribute> attributes = {{"overlays", name}, {"nan_to_zero", int64_t{1}}};
    const std::vector<OutputSpec> outputs = {{kFloat, output}, {kFloat, row}, {kFloat, row}};
    check(kOurs, "Attention", inputs, outputs, attributes);
    const std::vector<Tensor> forward =
        runKernel(makeCall(kOurs, "Attention", 1, inputs, outputs, attributes));
    inputs.insert(inputs.begin(), {floats(output, 5), forward[1], forward[2]});
    check(kOurs, "AttentionGrad", inputs, {{kFloat, query}, {kFloat, key}, {kFloat, value}}, attributes);
    check(kOurs, "AttentionScoresGrad", inputs, {{kFloat, scores}}, attributes);
  }
}

// Heads in groups with the same keys, two biases, and dropout.
TEST(CudaKernels, AttentionOfGroups) {
  const Shape query = {2, 3, 5, 4}, key = {2, 1, 300, 4}, value = {2, 1, 300, 6}, row = {2, 3, 5, 1};
  const Shape output = {2, 3, 5, 6}, scores = {2, 3, 5, 300};
  std::vector<std::optional<Tensor>> inputs = {floats(query),          floats(key, 2),
                                               floats(value, 3),       makeTensor<float>({}, {0.5f}),
                                               floats({3, 5, 300}, 4), floats({2, 1, 1, 300}, 6)};
  std::vector<bool> kept(2 * 3 * 5 * 300);
  for (size_t i = 0; i < kept.size(); ++i) kept[i] = i % 7 != 2;
  inputs.emplace_back(makeTensor<bool>({2, 3, 5, 300}, kept));
  inputs.emplace_back(makeTensor<float>({}, {1.25f}));
  const std::map<std::string, Attribute> attributes = {{"overlays", std::string("bias_bias_drop")}};
  const std::vector<OutputSpec> outputs = {{kFloat, output}, {kFloat, row}, {kFloat, row}};
  check(kOurs, "Attention", inputs, outputs, attributes);
  const std::vector<Tensor> forward = runKernel(makeCall(kOurs, "Attention", 1, inputs, outputs, attributes));
  inputs.insert(inputs.begin(), {floats(output, 5), forward[1], forward[2]});
  check(kOurs, "AttentionGrad", inputs, {{kFloat, query}, {kFloat, key}, {kFloat, value}}, attributes);
  check(kOurs, "AttentionScoresGrad", inputs, {{kFloat, scores}}, attributes);
}

// Blocks that go round their loops: their shared memory is used again.
TEST(CudaKernels, MoreThanThereAreBlocksOrThreads) {
  check("", "ReduceSum", {floats({4100, 65}), longs({1})}, {{kFloat, {4100, 1}}}, {}, {1});
  const Shape query = {1, 1, 300, 4}, key = {1, 1, 3, 4}, row = {1, 1, 300, 1};
  std::vector<std::optional<Tensor>> inputs = {floats(query), floats(key, 2), floats(key, 3),
                                               makeTensor<float>({}, {0.5f})};
  const std::vector<OutputSpec> outputs = {{kFloat, query}, {kFloat, row}, {kFloat, row}};
  const std::map<std::string, Attribute> plain = {{"overlays", std::string()}, {"nan_to_zero", int64_t{1}}};
  const std::vector<Tensor> forward = runKernel(makeCall(kOurs, "Attention", 1, inputs, outputs, plain));
  inputs.insert(inputs.begin(), {floats(query, 5), forward[1], forward[2]});
  check(kOurs, "AttentionGrad", inputs, {{kFloat, query}, {kFloat, key}, {kFloat, key}}, plain);
}

TEST(CudaKernels, Updates) {
  const auto scalar = [](float x) { return makeTensor<float>({}, {x}); };
  const auto number = [](double x) { return makeTensor<double>({}, {x}); };
  const Tensor step = makeTensor<int64_t>({}, {3});
  const Tensor positive = randomTensor(kFloat, {90}, 4, 0.1, 1);
  const OutputSpec out{kFloat, {90}};
  const Tensor p = floats({90}), g = floats({90}, 2), m = floats({90}, 3);
  check(kOurs, "SGD", {p, g, scalar(0.1f), scalar(0.01f)}, {out});
  check(kOurs, "SGD",
        {p, g, step, scalar(0.1f), scalar(0.01f), number(2), number(0.1), number(10), number(0.01)}, {out},
        {{"schedule", std::string("cosine")}});
  check(kOurs, "SGDMomentum", {p, g, m, scalar(0.1f), scalar(0.9f), scalar(0.01f)}, {out, out});
  for (const char* op : {"Adam", "AdamW"}) {
    check(kOurs, op,
          {p, g, m, positive, step, scalar(0.1f), scalar(0.9f), scalar(0.99f), scalar(1e-8f), scalar(0.01f)},
          {out, out, out});
  }
  check(kOurs, "RMSProp", {p, g, positive, scalar(0.1f), scalar(0.9f), scalar(1e-8f), scalar(0.01f)},
        {out, out});
  check(kOurs, "RMSPropMomentum",
        {p, g, positive, m, scalar(0.1f), scalar(0.9f), scalar(1e-8f), scalar(0.01f), scalar(0.5f)},
        {out, out, out});
  check(kOurs, "Adagrad", {p, g, positive, step, scalar(0.1f), scalar(0.1f), scalar(1e-8f), scalar(0.01f)},
        {out, out});
  check(kOurs, "Lion", {p, g, m, scalar(0.1f), scalar(0.9f), scalar(0.99f), scalar(0.01f)}, {out, out});
  check(kOurs, "LAMBDirection",
        {p, g, m, positive, step, scalar(0.9f), scalar(0.99f), scalar(1e-8f), scalar(0.01f)},
        {out, out, out});
  check(kOurs, "MovingAverage", {p, g, scalar(0.9f)}, {out});
  check(kOurs, "ScheduledRate", {step, scalar(0.1f), number(2), number(0.1), number(10), number(0.01)},
        {{kFloat, {}}}, {{"schedule", std::string("linear")}});
}

// In blocks of their own: what is outside is outside of them.
TEST(CudaKernels, AddsWhatAQueueIsGiven) {
  const std::vector<float> part = {1, 2, 3, 4, 5};
  const auto bytes = std::as_bytes(std::span(part));
  const MemoryBlock from = cuda().allocate(bytes.size()), total = cuda().allocate(bytes.size());
  const auto queue = cuda().makeQueue();
  queue->upload(bytes.data(), from.bytes.data(), bytes.size());
  for (int i = 0; i < 2; ++i) queue->add(kFloat, from.bytes.data(), total.bytes.data(), part.size());
  std::vector<float> sums(part.size());
  readMemory(*queue, total.bytes, std::as_writable_bytes(std::span(sums)));
  EXPECT_EQ(sums, (std::vector<float>{2, 4, 6, 8, 10}));
}

TEST(CudaKernels, WrongDataAreTheCpusErrors) {
  const std::vector<KernelCall> calls = {
      makeCall("", "Gather", 13, {floats({5, 3}), longs({4, 5, 0, -6})}, {{kFloat, {4, 3}}}),
      makeCall(kOurs, "GatherGrad", 1, {floats({2, 3}), longs({0, -6}), longs({5, 3})}, {{kFloat, {5, 3}}},
               {}, {2}),
      makeCall("", "GatherElements", 13, {floats({5, 1}), makeTensor<int32_t>({3, 1}, {4, -6, 5})},
               {{kFloat, {3, 1}}}),
      makeCall(kOurs, "GatherElementsGrad", 1, {floats({2}), longs({0, 5}), longs({5})}, {{kFloat, {5}}}, {},
               {2}),
      makeCall("", "ScatterElements", 18, {floats({5}), longs({1, 7}), floats({2})}, {{kFloat, {5}}}),
      makeCall("", "GatherND", 13, {floats({2, 3}), makeTensor<int64_t>({2, 2}, {1, 2, 1, -4})},
               {{kFloat, {2}}}),
      makeCall("", "ScatterND", 18, {floats({2, 3}), makeTensor<int64_t>({2, 1}, {1, 2}), floats({2, 3})},
               {{kFloat, {2, 3}}}),
      makeCall(kOurs, "SquareSum", 1, {floats({10}), makeTensor<int64_t>({}, {2})}, {{kDouble, {}}},
               {{"parts", int64_t{2}}}),
      makeCall("", "Div", 14, {longs({7, 8, 9}), longs({2, 0, 0})}, {{kLong, {3}}}),
      makeCall("", "SoftmaxCrossEntropyLoss", 13, {floats({3, 4}), longs({0, 4, -1})}, {{kFloat, {}}}),
      makeCall(
          kOurs, "CrossEntropyLossGrad", 1,
          {makeTensor<float>({}, {1.0f}), floats({3, 4}), floats({3}, 3), floats({3}, 4), longs({0, 3, 9})},
          {{kFloat, {3, 4}}}, {{"has_ignore_index", int64_t{1}}, {"ignore_index", int64_t{-100}}}),
      makeCall(kOurs, "ScheduledRate", 1,
               {makeTensor<int64_t>({}, {0}), makeTensor<float>({}, {0.1f}), makeTensor<double>({}, {2}),
                makeTensor<double>({}, {0.1})},
               {{kFloat, {}}}, {{"schedule", std::string("constant")}}),
  };
  for (const KernelCall& call : calls) {
    const std::string want = messageOf([&] { runKernel(call); });
    EXPECT_NE(want, "") << call.node.op_type;
    EXPECT_EQ(messageOf([&] { runOnDevice(call); }), want) << call.node.op_type;
  }
}

TEST(CudaKernels, AreThoseOfTheCpu) { EXPECT_EQ(cuda().kernels().operators(), cpuKernels().operators()); }

// Collectives need ranks; cuda_step_test has them.
TEST(CudaKernels, EveryOneWasTried) {
  if (tried.empty()) GTEST_SKIP() << "the other tests did not run in this process: CudaKernels.InOneProcess";
  for (const std::string& name : cuda().kernels().operators()) {
    const bool collective = name.ends_with("::AllReduce") || name.ends_with("::AllGather") ||
                            name.ends_with("::ReduceScatter") || name.ends_with("::AllToAll");
    EXPECT_TRUE(collective || tried.contains(name)) << name;
  }
  EXPECT_ERROR(openCudaDevice(1), ErrorCode::kConfiguration, "there is no GPU number 1: 1 found");
}

}  // namespace
}  // namespace pipeshard::testing
