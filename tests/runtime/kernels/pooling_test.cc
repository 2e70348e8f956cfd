// Pools and their gradients against their definitions, over windows of all kinds.
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/runtime/kernels/kernel_call.h"

namespace pipeshard::testing {
namespace {

const auto kF64 = DataType::kFloat64;

struct Case {
  const char* name;
  int64_t height, width, kernel_height, kernel_width;
  int64_t stride = 1, pad = 0, dilation = 1;
  int64_t with_padding = 0;

  int64_t outHeight() const { return (height + 2 * pad - (kernel_height - 1) * dilation - 1) / stride + 1; }
  int64_t outWidth() const { return (width + 2 * pad - (kernel_width - 1) * dilation - 1) / stride + 1; }
  std::map<std::string, Attribute> attributes() const {
    return {{"kernel_shape", std::vector<int64_t>{kernel_height, kernel_width}},
            {"strides", std::vector<int64_t>{stride, stride}},
            {"dilations", std::vector<int64_t>{dilation, dilation}},
            {"pads", std::vector<int64_t>{pad, pad, pad, pad}},
            {"count_include_pad", with_padding}};
  }
  // body(output position, element in sight).
  template <typename Body>
  void forEach(const Body& body) const {
    for (int64_t o = 0; o < outHeight() * outWidth(); ++o)
      for (int64_t k = 0; k < kernel_height * kernel_width; ++k) {
        const int64_t y = o / outWidth() * stride - pad + k / kernel_width * dilation;
        const int64_t x = o % outWidth() * stride - pad + k % kernel_width * dilation;
        if (y >= 0 && y < height && x >= 0 && x < width) body(o, y * width + x);
      }
  }
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

const Case kCases[] = {
    {"three_by_three", 9, 11, 3, 3, 1, 1},
    {"with_padding", 9, 11, 3, 3, 1, 1, 1, 1},
    {"halves", 8, 10, 2, 2, 2},
    {"strided_and_padded", 13, 12, 3, 3, 2, 1},
    {"thirds", 13, 14, 3, 4, 3, 1},
    {"dilated", 12, 13, 3, 2, 1, 2, 2},
    {"dilated_and_strided", 15, 16, 3, 3, 2, 2, 2, 1},
    {"longer_than_a_part", 3, 600, 5, 5, 1, 2},
    {"longer_than_a_part_in_halves", 3, 1101, 2, 3, 2, 1},
};

constexpr int64_t kPlanes = 6;  // of a batch of 2

class Pools : public ::testing::TestWithParam<Case> {
 protected:
  const Case& c = GetParam();
  const Shape image = {2, 3, c.height, c.width}, pooled = {2, 3, c.outHeight(), c.outWidth()};
  const Tensor x = randomTensor(kF64, image, 1), dy = randomTensor(kF64, pooled, 2);
  const int64_t ins = c.height * c.width, outs = c.outHeight() * c.outWidth();

  // By which the sum of each output position is divided.
  std::vector<double> counts() const {
    std::vector<double> found(outs, c.with_padding ? c.kernel_height * c.kernel_width : 0);
    if (!c.with_padding) c.forEach([&](int64_t o, int64_t) { found[o] += 1; });
    return found;
  }

  void expectBoth(KernelCall call, const std::vector<double>& want) {
    expectNear(call, want, 1e-13);
    for (auto& tensor : call.inputs) tensor = convertTensor(*tensor, DataType::kFloat32);
    call.outputs[0].type = DataType::kFloat32;
    expectNear(call, want, 2e-6);
  }

  static void expectNear(const KernelCall& call, const std::vector<double>& want, double bound) {
    const std::vector<double> got = numbersOf(runOnOneAndTwoThreads(call)[0]);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], bound) << "element " << i;
  }
};

TEST_P(Pools, AverageIsItsDefinition) {
  const std::vector<double> from = numbersOf(x), count = counts();
  std::vector<double> want(kPlanes * outs);
  for (int64_t plane = 0; plane < kPlanes; ++plane)
    c.forEach([&](int64_t o, int64_t i) { want[plane * outs + o] += from[plane * ins + i] / count[o]; });
  expectBoth(makeCall("", "AveragePool", 19, {x}, {{kF64, pooled}}, c.attributes()), want);
}

TEST_P(Pools, AverageGradIsItsDefinition) {
  const std::vector<double> from = numbersOf(dy), count = counts();
  std::vector<double> want(kPlanes * ins);
  for (int64_t plane = 0; plane < kPlanes; ++plane)
    c.forEach([&](int64_t o, int64_t i) { want[plane * ins + i] += from[plane * outs + o] / count[o]; });
  std::map<std::string, Attribute> attributes = c.attributes();
  attributes["image"] = std::vector<int64_t>{c.height, c.width};
  expectBoth(makeCall("pipeshard", "AveragePoolGrad", 1, {dy}, {{kF64, image}}, attributes), want);
}

TEST_P(Pools, LargestIsItsDefinitionWithAndWithoutPlaces) {
  const std::vector<double> from = numbersOf(x);
  std::vector<double> want(kPlanes * outs, -std::numeric_limits<double>::infinity());
  for (int64_t plane = 0; plane < kPlanes; ++plane)
    c.forEach([&](int64_t o, int64_t i) {
      want[plane * outs + o] = std::max(want[plane * outs + o], from[plane * ins + i]);
    });
  std::map<std::string, Attribute> attributes = c.attributes();
  attributes.erase("count_include_pad");
  expectBoth(makeCall("", "MaxPool", 12, {x}, {{kF64, pooled}}, attributes), want);
  expectNear(makeCall("", "MaxPool", 12, {x}, {{kF64, pooled}, {DataType::kInt64, pooled}}, attributes), want,
             0);
}

INSTANTIATE_TEST_SUITE_P(Windows, Pools, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

// As PyTorch and cuDNN: a spoiled image is seen in the loss.
TEST(PoolKernels, WhatIsNoNumberIsTheLargest) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor x = makeTensor<double>({1, 1, 2, 6}, {1, nan, 3, 4, nan, 5, 2, 2, -1, 0, 6, 6});
  const std::map<std::string, Attribute> attributes = {{"kernel_shape", std::vector<int64_t>{2, 2}},
                                                       {"strides", std::vector<int64_t>{2, 2}}};
  for (const bool numbered : {false, true}) {
    std::vector<OutputSpec> outputs = {{kF64, {1, 1, 1, 3}}};
    if (numbered) outputs.push_back({DataType::kInt64, {1, 1, 1, 3}});
    const std::vector<double> y =
        numbersOf(runKernel(makeCall("", "MaxPool", 12, {x}, outputs, attributes))[0]);
    EXPECT_TRUE(std::isnan(y[0]) && std::isnan(y[2])) << y[0] << " " << y[2];
    EXPECT_EQ(y[1], 4);
  }
  const KernelCall all = makeCall("", "GlobalMaxPool", 1, {x}, {{kF64, {1, 1, 1, 1}}});
  EXPECT_TRUE(std::isnan(numbersOf(runKernel(all)[0])[0]));
  const Tensor dy = makeTensor<double>({1, 1, 1, 3}, {1, 2, 3});
  const KernelCall gradient =
      makeCall("pipeshard", "MaxPoolGrad", 1, {dy, x}, {{kF64, {1, 1, 2, 6}}}, attributes);
  EXPECT_THAT(numbersOf(runKernel(gradient)[0]), ::testing::ElementsAre(0, 1, 0, 2, 3, 0, 0, 0, 0, 0, 0, 0));
}

}  // namespace
}  // namespace pipeshard::testing
