// Convolutions, pools and batch normalisations of the CUDA module: what cuDNN does and what it leaves to our
// own kernels, and that both are like the CPU's.
#include <gtest/gtest.h>

#include <cstdlib>
#include <regex>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "tests/runtime/device/cuda/like_the_cpu.h"

namespace pipeshard::testing {
namespace {

using Ints = std::vector<int64_t>;
using Attributes = std::map<std::string, Attribute>;

constexpr DataType kFloat = DataType::kFloat32;
constexpr DataType kDouble = DataType::kFloat64;
const std::string kOurs(kPipeshardDomain);

bool isLeftOut() {
  const char* said = std::getenv("PIPESHARD_CUDNN");
  return said != nullptr && std::string_view(said) == "off";
}

Tensor numbers(DataType type, const Shape& shape, uint64_t seed = 1) {
  return randomTensor(type, shape, seed);
}

// Kernels that cuDNN does, of those made so far; the text says it when it is not all of them.
int doneByCudnn() {
  const std::string text = cuda().libraries();
  std::smatch match;
  if (std::regex_match(text, match, std::regex("cuDNN 9\\.[0-9.]+ for ([0-9]+) of [0-9]+ convolutions, .*")))
    return std::stoi(match[1]);
  ADD_FAILURE() << "'" << text << "'";
  return -1;
}

class Cudnn : public ::testing::Test {
 protected:
  Cudnn() {
    // One that it cannot do: pads that differ.
    static_cast<void>(runOnDevice(conv({1, 1, 4}, {1, 1, 2}, {1, 1, 4}, {{"pads", Ints{1, 0}}})));
  }

  void SetUp() override {
    const std::string found = cuda().libraries();
    if (!isLeftOut() && found.starts_with("no cuDNN")) GTEST_SKIP() << found;
  }

  static KernelCall conv(const Shape& image, const Shape& weight, const Shape& output, Attributes attributes,
                         DataType type = kFloat) {
    return makeCall("", "Conv", 18, {numbers(type, image), numbers(type, weight, 2)}, {{type, output}},
                    std::move(attributes));
  }

  void expect(bool by_cudnn, const KernelCall& call) {
    SCOPED_TRACE(call.node.op_type);
    if (isLeftOut()) {
      expectLikeTheCpu(call);
      EXPECT_EQ(cuda().libraries(), "no cuDNN (PIPESHARD_CUDNN=off)");
      return;
    }
    const int before = doneByCudnn();
    expectLikeTheCpu(call);
    // On a GPU it is cuDNN that says for which sizes it has an algorithm.
    if (cuda().name().find("stand-in") != std::string::npos) {
      EXPECT_EQ(doneByCudnn() - before, by_cudnn ? 1 : 0);
    }
  }

  // Forward and both gradients.
  void expectAll(bool forward, bool gradients, const Shape& image, const Shape& weight, const Shape& output,
                 const Attributes& attributes, DataType type = kFloat) {
    SCOPED_TRACE(fmt::format("{} {}", shapeToString(image), shapeToString(weight)));
    expect(forward, conv(image, weight, output, attributes, type));
    KernelCall with_bias = conv(image, weight, output, attributes, type);
    with_bias.inputs.emplace_back(numbers(type, {output[1]}, 3));
    expect(forward, with_bias);
    expect(gradients, makeCall(kOurs, "ConvInputGrad", 1, {numbers(type, output), numbers(type, weight, 2)},
                               {{type, image}}, attributes));
    expect(gradients, makeCall(kOurs, "ConvWeightGrad", 1, {numbers(type, output), numbers(type, image, 2)},
                               {{type, weight}}, attributes));
  }
};

TEST_F(Cudnn, DoesConvolutions) {
  const Attributes strided = {{"strides", Ints{2, 2}}, {"pads", Ints{1, 1, 1, 1}}};
  expectAll(true, true, {2, 3, 7, 6}, {4, 3, 3, 3}, {2, 4, 4, 3}, strided);
  expectAll(true, true, {2, 3, 7, 6}, {4, 3, 3, 3}, {2, 4, 4, 3}, strided, kDouble);
  expectAll(true, true, {2, 4, 7, 6}, {6, 2, 3, 2}, {2, 6, 7, 6},
            {{"dilations", Ints{2, 2}}, {"pads", Ints{2, 1, 2, 1}}, {"group", int64_t{2}}});
  expectAll(true, true, {2, 6, 9, 8}, {6, 1, 3, 3}, {2, 6, 7, 6}, {{"group", int64_t{6}}});
  expectAll(true, true, {2, 3, 9}, {4, 3, 3}, {2, 4, 4}, {{"strides", Ints{2}}});
  expectAll(true, true, {2, 3, 5, 4}, {5, 3, 1, 1}, {2, 5, 5, 4}, {});
  expectAll(true, true, {1, 2, 4, 5, 6}, {3, 2, 2, 3, 3}, {1, 3, 5, 5, 6},
            {{"pads", Ints{1, 1, 1, 1, 1, 1}}});
  expectAll(true, true, {1, 1, 6, 6}, {2, 1, 3, 3}, {1, 2, 3, 3},
            {{"strides", Ints{2, 2}}, {"pads", Ints{1, 1, 0, 0}}});  // they differ where nobody looks
}

TEST_F(Cudnn, LeavesConvolutions) {
  expectAll(false, false, {2, 3, 6, 6}, {4, 3, 3, 3}, {2, 4, 5, 5}, {{"pads", Ints{0, 0, 1, 1}}});
  expectAll(false, false, {1, 2, 5, 7}, {3, 2, 2, 4}, {1, 3, 5, 7},
            {{"auto_pad", std::string("SAME_UPPER")}});
  // The only deterministic algorithms of the gradients know no dilations of three axes, on the stand-in.
  expectAll(true, false, {1, 2, 5, 5, 6}, {3, 2, 2, 3, 2}, {1, 3, 4, 1, 5}, {{"dilations", Ints{1, 2, 1}}});
  expect(false, conv({65536, 1, 1}, {1, 1, 1}, {65536, 1, 1}, {}));
}

TEST_F(Cudnn, DoesTransposedConvolutions) {
  const auto transposed = [](const Shape& image, const Attributes& attributes) {
    return makeCall(
        "", "ConvTranspose", 11,
        {numbers(kFloat, {2, 4, 4, 3}), numbers(kFloat, {4, 3, 3, 3}, 2), numbers(kFloat, {3}, 3)},
        {{kFloat, image}}, attributes);
  };
  expect(true, transposed({2, 3, 7, 5}, {{"strides", Ints{2, 2}}, {"pads", Ints{1, 1, 1, 1}}}));
  expect(true,
         transposed({2, 3, 8, 6},
                    {{"strides", Ints{2, 2}}, {"pads", Ints{1, 1, 1, 1}}, {"output_padding", Ints{1, 1}}}));
  expect(false, transposed({2, 3, 8, 6}, {{"strides", Ints{2, 2}}, {"pads", Ints{0, 0, 1, 1}}}));
}

TEST_F(Cudnn, DoesPools) {
  const auto pool = [](const char* op, const Shape& image, const Shape& output, Attributes attributes,
                       DataType type = kFloat) {
    attributes["kernel_shape"] = Ints{3, 2};
    return makeCall("", op, 22, {numbers(type, image)}, {{type, output}}, std::move(attributes));
  };
  const Ints two = {2, 2}, even = {1, 1, 1, 1}, uneven = {1, 0, 2, 1};
  for (const char* op : {"MaxPool", "AveragePool"}) {
    expect(true, pool(op, {2, 3, 7, 6}, {2, 3, 5, 5}, {}));
    expect(true, pool(op, {2, 3, 7, 6}, {2, 3, 4, 4}, {{"strides", two}, {"pads", even}}));
    expect(true, pool(op, {2, 3, 7, 6}, {2, 3, 4, 4}, {{"strides", two}, {"pads", even}}, kDouble));
    expect(false, pool(op, {2, 3, 6, 5}, {2, 3, 4, 3}, {{"strides", two}, {"pads", uneven}}));
    expect(false, pool(op, {2, 3, 7, 6}, {2, 3, 3, 4}, {{"dilations", two}}));
    expect(false, pool(op, {2, 3, 8, 7}, {2, 3, 4, 4}, {{"strides", two}, {"ceil_mode", int64_t{1}}}));
  }
  const Attributes padded = {{"strides", two}, {"pads", even}, {"count_include_pad", int64_t{1}}};
  expect(true, pool("AveragePool", {2, 3, 7, 6}, {2, 3, 4, 4}, padded));
  // The last window reaches beyond the padding: which of it counts?
  Attributes beyond = {{"strides", two}, {"pads", Ints{1, 0, 0, 0}}, {"ceil_mode", int64_t{1}}};
  expect(true, pool("AveragePool", {2, 3, 7, 6}, {2, 3, 4, 3}, beyond));
  beyond["count_include_pad"] = int64_t{1};
  expect(false, pool("AveragePool", {2, 3, 7, 6}, {2, 3, 4, 3}, beyond));
}

TEST_F(Cudnn, DoesBatchNormalisation) {
  for (const DataType type : {kFloat, kDouble}) {
    for (const Shape& shape : {Shape{4, 3, 5, 20}, Shape{6, 3}, Shape{2, 3, 7}, Shape{2, 3, 2, 3, 4}}) {
      const Tensor x = numbers(type, shape), dy = numbers(type, shape, 2), channel = numbers(type, {3}, 3);
      const Tensor variance = randomTensor(type, {3}, 4, 0.5, 2);
      const OutputSpec all{type, shape}, channels{type, {3}};
      const std::vector<std::optional<Tensor>> inputs = {x, channel, channel, channel, variance};
      expect(true, makeCall("", "BatchNormalization", 18, inputs, {all}));
      const Attributes training = {{"training_mode", int64_t{1}}, {"momentum", 0.7f}, {"epsilon", 1e-3f}};
      expect(true, makeCall("", "BatchNormalization", 18, inputs, {all, channels, channels}, training));
      expect(true, makeCall("", "BatchNormalization", 18, inputs, {all, {}, channels}, training));
      expect(true, makeCall("", "BatchNormalization", 18, inputs, {all}, training));
      expect(true, makeCall(kOurs, "BatchNormalizationInputGrad", 1, {dy, x, channel}, {all}));
    }
  }
}

}  // namespace
}  // namespace pipeshard::testing
