// Convolutions, pools and batch normalisation.
#include <gtest/gtest.h>

#include "tests/onnx_import/autodiff/gradient_check.h"

namespace pipeshard::testing {
namespace {

using Ints = std::vector<int64_t>;
using Attributes = std::map<std::string, Attribute>;

TEST(Gradient, OfConvMatchesDifferencesForAllAttributes) {
  struct Case {
    Shape image, weight;
    Attributes attributes;
  };
  const std::vector<Case> cases = {
      {{2, 3, 4, 5}, {2, 3, 3, 2}, {}},
      {{2, 2, 5, 6}, {4, 2, 3, 3}, {{"strides", Ints{2, 2}}, {"pads", Ints{1, 1, 1, 1}}}},
      {{1, 4, 5, 5}, {4, 2, 2, 2}, {{"group", int64_t{2}}, {"dilations", Ints{2, 1}}}},
      {{1, 3, 4, 4},
       {3, 1, 3, 3},
       {{"group", int64_t{3}}, {"auto_pad", std::string("SAME_UPPER")}, {"strides", Ints{2, 1}}}},
      {{2, 2, 7}, {3, 2, 3}, {{"auto_pad", std::string("SAME_LOWER")}, {"strides", Ints{2}}}},
      {{1, 2, 3, 3, 4}, {2, 2, 2, 2, 2}, {{"auto_pad", std::string("VALID")}}},
      {{2, 3, 4, 4}, {2, 3, 1, 1}, {}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(shapeToString(c.image) + shapeToString(c.weight));
    TestGraph test;
    const ValueId x = test.parameter("x", c.image);
    const ValueId w = test.parameter("w", c.weight);
    checkGradients(test, {test.op("Conv", {x, w, test.parameter("b", {c.weight[0]})}, c.attributes)});
  }
}

TEST(Gradient, OfMaxPoolMatchesDifferences) {
  for (const Attributes& attributes : {Attributes{{"kernel_shape", Ints{2, 2}}},
                                       Attributes{{"kernel_shape", Ints{3, 3}},
                                                  {"strides", Ints{2, 2}},
                                                  {"pads", Ints{1, 1, 1, 1}},
                                                  {"ceil_mode", int64_t{1}}},
                                       Attributes{{"kernel_shape", Ints{3, 2}},
                                                  {"auto_pad", std::string("SAME_UPPER")},
                                                  {"strides", Ints{2, 1}}}}) {
    TestGraph test;
    checkGradients(test, {test.op("MaxPool", {test.parameter("x", {2, 2, 5, 6})}, attributes)});
  }
}

TEST(Gradient, OfConvTransposeMatchesDifferencesForAllAttributes) {
  struct Case {
    Shape x, weight;
    Attributes attributes;
  };
  const Attribute upper = std::string("SAME_UPPER"), lower = std::string("SAME_LOWER"),
                  valid = std::string("VALID");
  const std::vector<Case> cases = {
      {{2, 3, 4, 5}, {3, 2, 3, 2}, {}},
      {{2, 2, 3, 4}, {2, 4, 3, 3}, {{"strides", Ints{2, 2}}, {"pads", Ints{1, 1, 1, 1}}}},
      {{2, 2, 3, 3},
       {2, 2, 3, 3},
       {{"strides", Ints{3, 2}}, {"pads", Ints{1, 0, 0, 2}}, {"output_padding", Ints{2, 1}}}},
      {{1, 4, 3, 3},
       {4, 2, 2, 2},
       {{"group", int64_t{2}}, {"dilations", Ints{2, 3}}, {"output_padding", Ints{1, 2}}}},
      {{1, 4, 3, 3}, {4, 3, 2, 2}, {{"group", int64_t{4}}, {"pads", Ints{0, 1, 1, 0}}}},
      {{1, 2, 4, 3}, {2, 2, 3, 4}, {{"auto_pad", upper}, {"strides", Ints{2, 1}}}},
      {{1, 2, 4, 3}, {2, 2, 3, 4}, {{"auto_pad", lower}, {"strides", Ints{2, 1}}}},
      {{1, 2, 3, 3}, {2, 2, 2, 2}, {{"auto_pad", valid}, {"strides", Ints{2, 2}}}},
      {{1, 2, 3, 3}, {2, 2, 3, 3}, {{"output_shape", Ints{10, 8}}, {"strides", Ints{3, 2}}}},
      {{1, 2, 3, 3},
       {2, 2, 3, 3},
       {{"output_shape", Ints{6, 5}}, {"strides", Ints{2, 2}}, {"auto_pad", upper}}},
      {{2, 2, 5}, {2, 3, 3}, {{"strides", Ints{2}}}},
      {{1, 2, 2, 3, 2}, {2, 2, 2, 2, 2}, {{"strides", Ints{1, 2, 1}}}},
      {{2, 3, 4, 4}, {3, 2, 1, 1}, {}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(shapeToString(c.x) + shapeToString(c.weight));
    const auto group = c.attributes.contains("group") ? std::get<int64_t>(c.attributes.at("group")) : 1;
    TestGraph test;
    const ValueId x = test.parameter("x", c.x);
    const ValueId w = test.parameter("w", c.weight);
    checkGradients(
        test, {test.op("ConvTranspose", {x, w, test.parameter("b", {c.weight[1] * group})}, c.attributes)});
  }
}

TEST(Gradient, OfAveragePoolMatchesDifferencesForAllAttributes) {
  struct Case {
    Shape image;
    Attributes attributes;
  };
  const Attribute upper = std::string("SAME_UPPER"), lower = std::string("SAME_LOWER"),
                  valid = std::string("VALID");
  const std::vector<Case> cases = {
      {{2, 2, 5, 6}, {{"kernel_shape", Ints{2, 3}}}},
      {{2, 2, 6, 5}, {{"kernel_shape", Ints{3, 3}}, {"strides", Ints{2, 2}}, {"pads", Ints{1, 0, 1, 2}}}},
      {{1, 2, 7, 7},
       {{"kernel_shape", Ints{2, 3}},
        {"strides", Ints{2, 1}},
        {"dilations", Ints{3, 2}},
        {"pads", Ints{1, 2, 0, 1}}}},
      {{1, 2, 5, 6}, {{"kernel_shape", Ints{3, 2}}, {"strides", Ints{2, 2}}, {"auto_pad", upper}}},
      {{1, 2, 5, 6}, {{"kernel_shape", Ints{2, 3}}, {"strides", Ints{2, 1}}, {"auto_pad", lower}}},
      {{1, 2, 5, 6}, {{"kernel_shape", Ints{2, 3}}, {"strides", Ints{2, 2}}, {"auto_pad", valid}}},
      {{2, 3, 9}, {{"kernel_shape", Ints{3}}, {"strides", Ints{3}}, {"pads", Ints{1, 1}}}},
      {{1, 2, 4, 3, 5}, {{"kernel_shape", Ints{2, 2, 3}}, {"pads", Ints{1, 0, 1, 0, 1, 1}}}},
  };
  for (Case c : cases) {
    for (int64_t flags = 0; flags < 4; ++flags) {
      SCOPED_TRACE(shapeToString(c.image) + std::to_string(flags));
      c.attributes["ceil_mode"] = int64_t{flags & 1};
      c.attributes["count_include_pad"] = int64_t{flags >> 1};
      TestGraph test;
      checkGradients(test, {test.op("AveragePool", {test.parameter("x", c.image)}, c.attributes)});
    }
  }
}

TEST(Gradient, OfGlobalMaxPoolMatchesDifferencesForAnyNumberOfAxes) {
  for (const Shape& shape :
       {Shape{2, 3, 4, 5}, Shape{2, 3, 4}, Shape{1, 2, 2, 3, 2}, Shape{1, 2, 2, 2, 2, 2}, Shape{2, 3}}) {
    SCOPED_TRACE(shapeToString(shape));
    TestGraph test;
    checkGradients(test, {test.op("GlobalMaxPool", {test.parameter("x", shape)})});
  }
}

TEST(Gradient, OfGlobalMaxPoolGoesToTheFirstOfEqualElements) {
  TestGraph test;
  const ValueId x = test.parameter("x", makeTensor({1, 1, 2, 2}, {1, 3, 3, 2}));
  const ValueId loss = test.op("ReduceSum", {test.op("GlobalMaxPool", {x})}, {{"keepdims", int64_t{0}}});
  EXPECT_EQ(elementsOf(trainAndRun(test, loss).gradients.at("x")), (std::vector<double>{0, 1, 0, 0}));
}

TEST(Gradient, OfGlobalAveragePoolMatchesDifferences) {
  TestGraph test;
  checkGradients(test, {test.op("GlobalAveragePool", {test.parameter("x", {2, 3, 4, 5})})});
}

TEST(Gradient, OfBatchNormalizationMatchesDifferencesThroughTheStatistics) {
  for (const Shape& shape : {Shape{6, 3}, Shape{2, 3, 4}, Shape{2, 3, 2, 3}}) {
    SCOPED_TRACE(shapeToString(shape));
    TestGraph test;
    const ValueId x = test.parameter("x", shape);
    const ValueId scale = test.parameter("scale", {3});
    const ValueId bias = test.parameter("bias", {3});
    const ValueId mean = test.constant(makeConstant<double>({3}, {0.1, 0.2, 0.3}));
    const ValueId variance = test.constant(makeConstant<double>({3}, {1, 2, 3}));
    checkGradients(test, {test.ops("BatchNormalization", {x, scale, bias, mean, variance}, 3,
                                   {{"training_mode", int64_t{1}}, {"epsilon", 1e-2f}})[0]});
  }
}

TEST(Gradient, OfBatchNormalizationWithGivenStatisticsMatchesDifferences) {
  TestGraph test;
  const ValueId x = test.parameter("x", {2, 3, 2, 3});
  const ValueId scale = test.parameter("scale", {3});
  const ValueId bias = test.parameter("bias", {3});
  const ValueId mean = test.constant(makeConstant<double>({3}, {0.1, 0.2, 0.3}));
  const ValueId variance = test.constant(makeConstant<double>({3}, {1, 2, 3}));
  checkGradients(test, {test.op("BatchNormalization", {x, scale, bias, mean, variance})});
}

// Computed statistics: what PyTorch exports of a normalisation that keeps none (as of weights).
TEST(Gradient, OfBatchNormalizationPassesThroughComputedStatistics) {
  TestGraph test;
  const ValueId x = test.parameter("x", {4, 3, 2});
  const ValueId scale = test.parameter("scale", {3});
  const ValueId bias = test.parameter("bias", {3});
  const ValueId axes = test.constant(makeConstant<int64_t>({2}, {0, 2}));
  const auto meanOf = [&](ValueId value, int64_t keep) {
    return test.op("ReduceMean", {value, axes}, {{"keepdims", keep}});
  };
  const ValueId centred = test.op("Sub", {x, meanOf(x, 1)});
  const ValueId variance = meanOf(test.op("Mul", {centred, centred}), 0);
  checkGradients(test, {test.op("BatchNormalization", {x, scale, bias, meanOf(x, 0), variance})});
}

}  // namespace
}  // namespace pipeshard::testing
