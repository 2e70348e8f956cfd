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
      {{1, 3, 4, 4}, {3, 1, 3, 3}, {{"group", int64_t{3}}, {"auto_pad", std::string("SAME_UPPER")}, {"strides", Ints{2, 1}}}},
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
  for (const Attributes& attributes :
       {Attributes{{"kernel_shape", Ints{2, 2}}},
        Attributes{{"kernel_shape", Ints{3, 3}}, {"strides", Ints{2, 2}}, {"pads", Ints{1, 1, 1, 1}}, {"ceil_mode", int64_t{1}}},
        Attributes{{"kernel_shape", Ints{3, 2}}, {"auto_pad", std::string("SAME_UPPER")}, {"strides", Ints{2, 1}}}}) {
    TestGraph test;
    checkGradients(test, {test.op("MaxPool", {test.parameter("x", {2, 2, 5, 6})}, attributes)});
  }
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

}  // namespace
}  // namespace pipeshard::testing
