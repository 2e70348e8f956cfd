// Convolutions in float32, which oneDNN or products compute as sizes and layouts suggest, against those in
// float64, which are products of columns always and agree with ONNX's own test data (conformance_test.cc).
#include <cmath>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "runtime/kernels/products/blocked_convolution.h"
#include "tests/runtime/kernels/kernel_call.h"

namespace pipeshard::testing {
namespace {

const auto kF64 = DataType::kFloat64;

struct Case {
  const char* name;
  int64_t batch, channels, features;
  Shape in, kernel;
  int64_t stride = 1, pad = 0, dilation = 1, groups = 1;

  Shape out() const {
    Shape sizes;
    for (size_t a = 0; a < in.size(); ++a)
      sizes.push_back((in[a] + 2 * pad - (kernel[a] - 1) * dilation - 1) / stride + 1);
    return sizes;
  }
  Shape image() const { return joined({batch, channels}, in); }
  Shape weight() const { return joined({features, channels / groups}, kernel); }
  Shape output() const { return joined({batch, features}, out()); }
  std::map<std::string, Attribute> attributes() const {
    const size_t axes = in.size();
    return {{"kernel_shape", std::vector<int64_t>(kernel)},
            {"strides", std::vector<int64_t>(axes, stride)},
            {"pads", std::vector<int64_t>(2 * axes, pad)},
            {"dilations", std::vector<int64_t>(axes, dilation)},
            {"group", groups}};
  }

 private:
  static Shape joined(Shape shape, const Shape& more) {
    shape.insert(shape.end(), more.begin(), more.end());
    return shape;
  }
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

const Case kCases[] = {
    {"first_layer", 2, 3, 64, {31, 30}, {7, 7}, 2, 3},
    {"three_by_three", 5, 32, 64, {14, 13}, {3, 3}, 1, 1},
    {"strided", 3, 32, 48, {15, 14}, {3, 3}, 2, 1},
    {"dilated", 2, 16, 32, {17, 16}, {3, 3}, 1, 2, 2},
    {"no_padding_and_a_remainder", 2, 16, 16, {12, 12}, {2, 2}, 3},
    {"channels_of_no_block", 3, 19, 37, {9, 11}, {3, 3}, 1, 1},
    {"one_image_in_pieces", 1, 128, 256, {9, 9}, {3, 3}, 1, 1},
    {"two_images_in_pieces", 2, 192, 128, {8, 8}, {3, 3}, 1, 1},
    {"many_features", 2, 24, 512, {5, 5}, {3, 3}, 1, 1},
    {"weights_larger_than_images", 6, 40, 48, {2, 2}, {3, 3}, 1, 1},
    {"weights_larger_than_images_of_few_channels", 3, 3, 40, {2, 3}, {7, 7}, 1, 3},
    {"weights_larger_than_grouped_images", 4, 36, 24, {2, 2}, {3, 3}, 1, 1, 1, 2},
    {"tiles_over_images", 7, 48, 24, {17, 19}, {3, 3}, 1, 1},
    {"tiles_of_an_image", 2, 80, 24, {33, 40}, {3, 3}, 2, 1},
    {"pointwise_small", 9, 96, 160, {7, 7}, {1, 1}},
    {"pointwise_large", 3, 160, 96, {24, 23}, {1, 1}},
    {"pointwise_large_single", 1, 64, 72, {40, 40}, {1, 1}},
    {"pointwise_few_channels", 4, 3, 5, {20, 20}, {1, 1}},
    {"pointwise_grouped", 3, 64, 96, {18, 18}, {1, 1}, 1, 0, 1, 2},
    {"pointwise_strided", 4, 32, 64, {14, 14}, {1, 1}, 2},
    {"grouped", 3, 32, 48, {10, 10}, {3, 3}, 1, 1, 1, 4},
    {"depthwise", 2, 24, 24, {10, 9}, {3, 3}, 1, 1, 1, 24},
    {"grouped_in_blocks", 2, 64, 128, {9, 8}, {3, 3}, 1, 1, 1, 4},
    {"grouped_in_pieces_of_one", 2, 128, 96, {49, 48}, {3, 3}, 1, 1, 1, 2},
    {"depthwise_in_pieces", 3, 64, 64, {47, 46}, {3, 3}, 1, 1, 1, 64},
    {"depthwise_strided", 2, 96, 96, {28, 27}, {5, 5}, 2, 2, 1, 96},
    {"depthwise_seven_by_seven", 2, 48, 48, {7, 7}, {7, 7}, 1, 3, 1, 48},
    {"depthwise_no_padding", 2, 32, 32, {12, 13}, {3, 3}, 1, 0, 1, 32},
    {"depthwise_of_no_block", 2, 58, 58, {14, 14}, {3, 3}, 1, 1, 1, 58},
    {"depthwise_dilated", 2, 32, 32, {14, 14}, {3, 3}, 1, 2, 2, 32},
    {"depthwise_two_features", 2, 32, 64, {9, 9}, {3, 3}, 1, 1, 1, 32},
    {"depthwise_one_axis", 2, 32, 32, {40}, {4}, 1, 3, 1, 32},
    {"depthwise_three_axes", 2, 16, 16, {5, 6, 7}, {3, 3, 3}, 1, 1, 1, 16},
    {"three_axes_strided", 2, 32, 48, {7, 8, 9}, {3, 3, 3}, 2, 1},
    {"three_axes_one_image_in_pieces", 1, 64, 128, {4, 6, 6}, {3, 3, 3}, 1, 1},
    {"one_axis", 3, 32, 32, {50}, {5}, 2, 2},
    {"three_axes", 2, 16, 16, {5, 6, 7}, {3, 3, 3}, 1, 1},
};

class Convolutions : public ::testing::TestWithParam<Case> {};

// The call in float32, on one and on two threads, equals the one in float64; `terms` products are added for
// an element.
void expectAgreement(const KernelCall& wide, int64_t terms) {
  KernelCall narrow = wide;
  for (auto& tensor : narrow.inputs) tensor = convertTensor(*tensor, DataType::kFloat32);
  narrow.outputs[0].type = DataType::kFloat32;
  const std::vector<double> want = numbersOf(runOnOneAndTwoThreads(wide)[0]);
  const std::vector<double> got = numbersOf(runOnOneAndTwoThreads(narrow)[0]);
  ASSERT_EQ(got.size(), want.size());
  // Sums of sums round like the root of their terms; where a processor has one register for an element, its
  // partial sums grow with the root, too, and round like their number.
  const double bound =
      std::max(4e-7 * std::sqrt(static_cast<double>(terms)), 3e-8 * static_cast<double>(terms));
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_NEAR(got[i], want[i], bound * (1 + std::abs(want[i]))) << "element " << i;
}

int64_t product(const Shape& sizes) { return elementCount(sizes); }

TEST_P(Convolutions, ForwardInFloat32EqualsFloat64) {
  const Case& c = GetParam();
  const Tensor x = randomTensor(kF64, c.image(), 1), w = randomTensor(kF64, c.weight(), 2);
  const int64_t terms = c.channels / c.groups * product(c.kernel);
  expectAgreement(makeCall("", "Conv", 18, {x, w}, {{kF64, c.output()}}, c.attributes()), terms);
  expectAgreement(makeCall("", "Conv", 18, {x, w, randomTensor(kF64, {c.features}, 3)}, {{kF64, c.output()}},
                           c.attributes()),
                  terms);
}

TEST_P(Convolutions, InputGradInFloat32EqualsFloat64) {
  const Case& c = GetParam();
  const Tensor dy = randomTensor(kF64, c.output(), 4), w = randomTensor(kF64, c.weight(), 5);
  const int64_t terms = c.features / c.groups * product(c.kernel);
  expectAgreement(makeCall("pipeshard", "ConvInputGrad", 1, {dy, w}, {{kF64, c.image()}}, c.attributes()),
                  terms);
  expectAgreement(makeCall("", "ConvTranspose", 11, {dy, w, randomTensor(kF64, {c.channels}, 6)},
                           {{kF64, c.image()}}, c.attributes()),
                  terms);
}

TEST_P(Convolutions, WeightGradInFloat32EqualsFloat64) {
  const Case& c = GetParam();
  const Tensor dy = randomTensor(kF64, c.output(), 7), x = randomTensor(kF64, c.image(), 8);
  expectAgreement(makeCall("pipeshard", "ConvWeightGrad", 1, {dy, x}, {{kF64, c.weight()}}, c.attributes()),
                  c.batch * product(c.out()));
}

// By the definition: what kernel position k of output position o sees of the image, times dy.
std::vector<double> weightGradByDefinition(const Case& c, const std::vector<double>& dy,
                                           const std::vector<double>& x) {
  const Shape out = c.out();
  const int64_t ins = product(c.in), outs = product(out), kernels = product(c.kernel);
  const int64_t group_channels = c.channels / c.groups, group_features = c.features / c.groups;
  std::vector<double> dw(product(c.weight()));
  for (int64_t o = 0; o < outs; ++o) {
    for (int64_t k = 0; k < kernels; ++k) {
      int64_t at = 0, rest_o = o, rest_k = k, step = 1;
      bool inside = true;
      for (size_t a = c.in.size(); a-- > 0;) {
        const int64_t place = rest_o % out[a] * c.stride - c.pad + rest_k % c.kernel[a] * c.dilation;
        inside &= place >= 0 && place < c.in[a];
        at += place * step;
        step *= c.in[a];
        rest_o /= out[a];
        rest_k /= c.kernel[a];
      }
      if (!inside) continue;
      for (int64_t n = 0; n < c.batch; ++n)
        for (int64_t f = 0; f < c.features; ++f)
          for (int64_t i = 0; i < group_channels; ++i)
            dw[(f * group_channels + i) * kernels + k] +=
                dy[(n * c.features + f) * outs + o] *
                x[(n * c.channels + f / group_features * group_channels + i) * ins + at];
    }
  }
  return dw;
}

TEST_P(Convolutions, WeightGradIsItsDefinition) {
  const Case& c = GetParam();
  const Tensor dy = randomTensor(kF64, c.output(), 9), x = randomTensor(kF64, c.image(), 10);
  const KernelCall call =
      makeCall("pipeshard", "ConvWeightGrad", 1, {dy, x}, {{kF64, c.weight()}}, c.attributes());
  const std::vector<double> got = numbersOf(runOnOneAndTwoThreads(call)[0]);
  const std::vector<double> want = weightGradByDefinition(c, numbersOf(dy), numbersOf(x));
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_NEAR(got[i], want[i], 1e-12 * (1 + std::abs(want[i]))) << "element " << i;
}

INSTANTIATE_TEST_SUITE_P(Shapes, Convolutions, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

// Images of a few pixels, of which oneDNN makes no code: weights are what there is most of. Sums of parts of
// the batch would be as large as they are.
TEST(ConvolutionWorkspace, OfAWeightsGradientIsNotLargerThanTensorsAndWeight) {
  for (const int64_t batch : {1, 4, 8, 64}) {
    for (const int64_t size : {1, 2, 4, 14}) {
      for (const int64_t channels : {3, 64, 256}) {
        const Case c{"", batch, channels, 256, {size, size}, {3, 3}, 1, 1};
        for (const DataType type : {DataType::kFloat32, kF64}) {
          const Tensor dy{type, c.output(), {}}, x{type, c.image(), {}};
          const KernelCall call =
              makeCall("pipeshard", "ConvWeightGrad", 1, {dy, x}, {{type, c.weight()}}, c.attributes());
          const int64_t elements = product(c.image()) + product(c.output()) + product(c.weight());
          // what each of several tasks sees of the image; at most a few hundred KiB, whatever the sizes
          constexpr int64_t kColumns = 32 * 65536;
          EXPECT_LE(static_cast<int64_t>(createKernel(call)->workspaceBytes()),
                    (elements + (size > 4 ? kColumns : 0)) * static_cast<int64_t>(dataTypeSize(type)))
              << batch << " images " << channels << "x" << size << "x" << size;
        }
      }
    }
  }
}

// Else the cases above compare products with products.
TEST(BlockedConvolutions, AreMadeWhereOnednnHasCodeForTheProcessor) {
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "oneDNN's convolutions need AVX2";
  kernels::Window flat;
  flat.in = flat.out = {1, 14, 14};
  flat.kernel = {1, 3, 3};
  flat.pad = flat.pad_end = {0, 1, 1};
  kernels::Window deep;
  deep.in = deep.out = {6, 7, 7};
  deep.kernel = {3, 3, 3};
  deep.pad = deep.pad_end = {1, 1, 1};
  for (const auto& [name, convolution] :
       {std::pair("dense", kernels::Convolution{flat, 2, 1, 32, 64}),
        std::pair("depthwise", kernels::Convolution{flat, 2, 58, 1, 1}),
        std::pair("three axes", kernels::Convolution{deep, 2, 1, 32, 64})}) {
    for (const auto task : {kernels::ConvolutionTask::kForward, kernels::ConvolutionTask::kInputGrad,
                            kernels::ConvolutionTask::kWeightGrad}) {
      // oneDNN 2.6 has the gradient of weights of three axes with AVX-512 alone.
      const bool wide = convolution.window.in[0] > 1 && task == kernels::ConvolutionTask::kWeightGrad;
      if (wide && !__builtin_cpu_supports("avx512f")) continue;
      EXPECT_NE(kernels::BlockedConvolution::create(task, convolution), nullptr)
          << name << ", task " << static_cast<int>(task);
    }
  }
}

}  // namespace
}  // namespace pipeshard::testing
