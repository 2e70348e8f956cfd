// Gradients of operators that are lowered, against differences. That the lowerings compute what the operators
// mean is for ONNX's suites (tests/onnx_import/suite).
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/operators/operator_facts.h"
#include "onnx_import/autodiff/training.h"
#include "onnx_import/prepare/expand.h"
#include "onnx_import/prepare/inference.h"
#include "tests/onnx_import/autodiff/gradient_check.h"
#include "tests/onnx_import/model_files.h"

namespace pipeshard::testing {
namespace {

// A loss of the outputs, in the graph with all operators lowered.
ValueId loweredLoss(TestGraph& test, const std::vector<ValueId>& outputs) {
  const ValueId loss = test.weightedSum(outputs);
  const auto supported = [](const Node& node) {
    return hasKernel(node) && hasGradientRule(node.domain, node.op_type);
  };
  int lowered = 0;
  while (const int expanded = expandUnsupported(test.graph(), supported)) {
    lowered += expanded;
    inferShapes(test.graph());
  }
  EXPECT_GT(lowered, 0);
  return loss;
}

void checkLowered(TestGraph& test, const std::vector<ValueId>& outputs) {
  const ValueId loss = loweredLoss(test, outputs);
  checkLossGradients(test, loss);
}

using Attributes = std::map<std::string, Attribute>;

void checkRecurrent(const std::string& op_type, int64_t gates, Attributes attributes, bool lengths) {
  const int64_t steps = 4, batch = 3, inputs = 2, hidden = 3;
  const bool both =
      attributes.contains("direction") && std::get<std::string>(attributes["direction"]) == "bidirectional";
  const int64_t directions = both ? 2 : 1;
  TestGraph test;
  const ValueId x = test.parameter("x", {steps, batch, inputs});
  const ValueId w = test.parameter("w", {directions, gates * hidden, inputs});
  const ValueId r = test.parameter("r", {directions, gates * hidden, hidden});
  const ValueId b = test.parameter("b", {directions, 2 * gates * hidden});
  const ValueId h = test.parameter("h", {directions, batch, hidden});
  const ValueId given = lengths ? test.constant(makeConstant<int32_t>({batch}, {4, 1, 3})) : ValueId();
  attributes["hidden_size"] = hidden;
  std::vector<ValueId> arguments{x, w, r, b, given, h};
  if (op_type == "LSTM") {
    arguments.push_back(test.parameter("c", {directions, batch, hidden}));
    arguments.push_back(test.parameter("p", {directions, 3 * hidden}));
  }
  checkLowered(test, test.ops(op_type, arguments, op_type == "LSTM" ? 3 : 2, attributes));
}

TEST(LoweredGradient, OfRecurrentLayers) {
  checkRecurrent("LSTM", 4, {}, false);
  checkRecurrent("LSTM", 4, {{"direction", std::string("bidirectional")}}, true);
  checkRecurrent("GRU", 3, {{"direction", std::string("reverse")}}, true);
  checkRecurrent("GRU", 3, {{"linear_before_reset", int64_t{1}}}, false);
  checkRecurrent("RNN", 1, {{"direction", std::string("bidirectional")}}, true);
}

TEST(LoweredGradient, OfEinsum) {
  const auto check = [](const char* equation, const std::vector<Shape>& shapes) {
    SCOPED_TRACE(equation);
    TestGraph test;
    std::vector<ValueId> inputs;
    for (const Shape& shape : shapes)
      inputs.push_back(test.parameter("x" + std::to_string(inputs.size()), shape));
    checkLowered(test, {test.op("Einsum", inputs, {{"equation", std::string(equation)}})});
  };
  check("bij,bjk->bik", {{2, 3, 4}, {2, 4, 5}});
  check("bqhd,bkhd->bhqk", {{2, 3, 2, 4}, {2, 5, 2, 4}});
  check("...i,ij->...j", {{2, 3, 4}, {4, 5}});
  check("ii->i", {{3, 3}});
  check("ij,kj,kl->il", {{2, 3}, {4, 3}, {4, 2}});
}

TEST(LoweredGradient, OfResize) {
  const auto check = [](const char* mode, const char* coordinates, Attributes more,
                        std::vector<float> scales) {
    SCOPED_TRACE(std::string(mode) + " " + coordinates);
    TestGraph test;
    const ValueId x = test.parameter("x", {2, 3, 4, 5});
    more["mode"] = std::string(mode);
    more["coordinate_transformation_mode"] = std::string(coordinates);
    const ValueId factors = test.constant(makeConstant<float>({4}, scales));
    checkLowered(test, {test.op("Resize", {x, ValueId(), factors}, more)});
  };
  check("nearest", "asymmetric", {{"nearest_mode", std::string("floor")}}, {1, 1, 2, 2});
  check("linear", "half_pixel", {}, {1, 1, 2, 1.5F});
  check("linear", "align_corners", {}, {1, 1, 2, 2});
  check("cubic", "half_pixel", {}, {1, 1, 2, 0.8F});
  check("linear", "half_pixel", {{"antialias", int64_t{1}}}, {1, 1, 0.5F, 0.6F});
}

TEST(LoweredGradient, OfNormalizationsAndPools) {
  {
    TestGraph test;
    const ValueId x = test.parameter("x", {2, 3, 4, 5});
    checkLowered(test, {test.op("InstanceNormalization",
                                {x, test.parameter("scale", {3}), test.parameter("bias", {3})})});
  }
  {
    TestGraph test;
    checkLowered(test, {test.op("LRN", {test.parameter("x", {2, 5, 3, 3})}, {{"size", int64_t{3}}})});
  }
  {
    TestGraph test;
    checkLowered(test, {test.op("MeanVarianceNormalization", {test.parameter("x", {2, 3, 4, 2})})});
  }
  for (const int64_t p : {1, 2, 3}) {
    TestGraph test;
    const ValueId x = test.parameter("x", {2, 2, 5, 5}, 0.1, 1);
    checkLowered(test, {test.op("LpPool", {x},
                                {{"p", p},
                                 {"kernel_shape", std::vector<int64_t>{3, 2}},
                                 {"strides", std::vector<int64_t>{2, 1}}})});
  }
}

TEST(LoweredGradient, OfArrangements) {
  for (const char* mode : {"DCR", "CRD"}) {
    TestGraph test;
    const ValueId x = test.parameter("x", {2, 8, 2, 3});
    checkLowered(test,
                 {test.op("DepthToSpace", {x}, {{"blocksize", int64_t{2}}, {"mode", std::string(mode)}})});
  }
  {
    TestGraph test;
    checkLowered(test,
                 {test.op("SpaceToDepth", {test.parameter("x", {2, 2, 4, 6})}, {{"blocksize", int64_t{2}}})});
  }
  {
    TestGraph test;
    const ValueId lengths = test.constant(makeConstant<int64_t>({3}, {4, 1, 3}));
    checkLowered(test, {test.op("ReverseSequence", {test.parameter("x", {4, 3, 2}), lengths})});
  }
  {
    TestGraph test;
    const ValueId image = test.integers({5, 5});
    const ValueId block = test.integers({2, 2});
    checkLowered(test, {test.op("Col2Im", {test.parameter("x", {2, 8, 16}), image, block})});
  }
}

// torch.fft.rfft and irfft: the last is a form of DFT that our ONNX's own inference refuses.
TEST(LoweredGradient, OfFourierTransforms) {
  const auto check = [](const Shape& shape, int64_t inverse, int64_t length) {
    SCOPED_TRACE(fmt::format("{} {}", inverse, length));
    TestGraph test;
    const ValueId size = test.constant(makeScalar(DataType::kInt64, static_cast<double>(length)));
    const ValueId axis = test.constant(makeScalar(DataType::kInt64, 1));
    const ValueId y = test.op("DFT", {test.parameter("x", shape), size, axis},
                              {{"onesided", int64_t{1}}, {"inverse", inverse}});
    ASSERT_TRUE(hasStaticType(test.graph().value(y)));
    EXPECT_EQ(test.graph().shape(y).back(), inverse == 1 ? 1 : 2);
    checkLowered(test, {y});
  };
  check({2, 6, 1}, 0, 6);
  check({2, 4, 3, 2}, 1, 6);
  check({2, 4, 2}, 1, 7);
  check({2, 4, 2}, 1, 10);
  check({2, 4, 2}, 1, 4);
}

TEST(LoweredGradient, OfGridSample) {
  for (const char* mode : {"bilinear", "bicubic"}) {
    for (const char* padding : {"zeros", "border"}) {
      SCOPED_TRACE(std::string(mode) + " " + padding);
      TestGraph test;
      const ValueId x = test.parameter("x", {2, 2, 4, 5});
      const ValueId grid = test.parameter("grid", {2, 3, 3, 2}, -0.7, 0.7);
      checkLowered(test, {test.op("GridSample", {x, grid},
                                  {{"mode", std::string(mode)}, {"padding_mode", std::string(padding)}})});
    }
  }
}

// As in PyTorch, though the slope is another one on each side.
TEST(LoweredGradient, OfAGridSampleIsFlatAtTheEndsOfTheImage) {
  for (const char* padding : {"border", "reflection"}) {
    SCOPED_TRACE(padding);
    TestGraph test;
    const ValueId x = test.parameter("x", {1, 1, 2, 4});
    const ValueId grid =
        test.parameter("grid", makeConstant<double>({1, 1, 3, 2}, {-1, -0.2, 1, 0.3, -0.5, 0.1}));
    const ValueId loss =
        loweredLoss(test, {test.op("GridSample", {x, grid},
                                   {{"padding_mode", std::string(padding)}, {"align_corners", int64_t{1}}})});
    const std::vector<double> slopes = elementsOf(trainAndRun(test, loss).gradients.at("grid"));
    EXPECT_EQ(slopes[0], 0) << "at the first column";
    EXPECT_EQ(slopes[2], 0) << "at the last";
    for (const size_t inside : {1, 3, 4, 5}) EXPECT_NE(slopes[inside], 0) << inside;
  }
}

// Each tap comes from the border by itself.
TEST(LoweredGradient, OfACubicGridSampleBeyondTheBorder) {
  TestGraph test;
  const ValueId x = test.parameter("x", {2, 2, 4, 5});
  const ValueId grid = test.parameter("grid", {2, 3, 3, 2}, -1.3, 1.3);
  checkLowered(test, {test.op("GridSample", {x, grid},
                              {{"mode", std::string("bicubic")}, {"padding_mode", std::string("border")}})});
}

TEST(LoweredGradient, OfAffineGridOfOneExampleAndOfSeveral) {
  for (const int64_t examples : {1, 3}) {
    TestGraph test;
    const ValueId size = test.integers({examples, 2, 3, 4});
    checkLowered(test, {test.op("AffineGrid", {test.parameter("theta", {examples, 2, 3}), size})});
  }
}

// Far from 0 an exponential of the numbers themselves would overflow, or vanish.
TEST(LoweredGradient, OfALogarithmOfASumOfExponentials) {
  for (const double middle : {0, 800, -900}) {
    for (const int64_t keepdims : {0, 1}) {
      TestGraph test;
      const ValueId x = test.parameter("x", {3, 4, 2}, middle - 1, middle + 1);
      checkLowered(test, {test.op("ReduceLogSumExp", {x, test.integers({1, -1})}, {{"keepdims", keepdims}})});
    }
  }
}

TEST(LoweredGradient, OfAEuclideanNorm) {
  for (const int64_t keepdims : {0, 1}) {
    TestGraph test;
    const ValueId x = test.parameter("x", {3, 4, 2});
    checkLowered(test, {test.op("ReduceL2", {x, test.integers({1, -1})}, {{"keepdims", keepdims}})});
  }
}

// ONNX's own body takes the root in float32.
TEST(Lowering, OfAEuclideanNormKeepsTheDigitsOfFloat64) {
  TestGraph test;
  const ValueId x = test.parameter("x", {3});
  const ValueId norm = test.op("ReduceL2", {x}, {{"keepdims", int64_t{0}}});
  ASSERT_EQ(expandUnsupported(test.graph(), [](const Node&) { return false; }), 1);
  inferShapes(test.graph());
  const std::vector<double> numbers = {1.0 / 3, 1.0 / 7, 1.0 / 11};
  const Tensors values = Interpreter(test.graph()).run({{"x", makeTensor({3}, numbers)}});
  EXPECT_NEAR(elementsOf(values.at(test.graph().value(norm).name)).at(0),
              std::sqrt(1.0 / 9 + 1.0 / 49 + 1.0 / 121), 1e-15);
}

// d sum(f(x)) / dx, of a file of this version of PyTorch's older exporter; further inputs are parameters,
// too.
CheckedTraining trainedActivation(const char* op_type, const std::vector<double>& x, Attributes attributes,
                                  const std::vector<Constant>& more = {}, const char* version = "2.13.0") {
  TestGraph test;
  test.graph().producer_name = "pytorch";
  test.graph().producer_version = version;
  std::vector<ValueId> inputs{test.parameter("x", makeTensor({std::ssize(x)}, x))};
  for (const Constant& content : more)
    inputs.push_back(test.parameter("p" + std::to_string(inputs.size()), content));
  const ValueId y = test.op(op_type, inputs, std::move(attributes));
  const ValueId loss = test.op("ReduceSum", {y}, {{"keepdims", int64_t{0}}});
  const auto supported = [](const Node& node) {
    return hasKernel(node) && hasGradientRule(node.domain, node.op_type);
  };
  while (expandUnsupported(test.graph(), supported) > 0) inferShapes(test.graph());
  return trainAndRun(test, loss);
}

void expectSlopes(const CheckedTraining& trained, const std::vector<double>& slopes) {
  const std::vector<double> found = elementsOf(trained.gradients.at("x"));
  ASSERT_EQ(found.size(), slopes.size());
  for (size_t i = 0; i < slopes.size(); ++i) EXPECT_NEAR(found[i], slopes[i], 1e-6) << i;
}

// The numbers are PyTorch's (2.15).
TEST(LoweredGradient, OfActivationsAtTheirCornersIsPyTorchs) {
  const std::vector<double> x{-6, -3, -1, 0, 1, 3, 6};
  for (const char* version : {"2.13.0", "2.15.0"}) {
    expectSlopes(trainedActivation("HardSwish", x, {}, {}, version), {0, 0, 1. / 6, 0.5, 5. / 6, 1, 1});
    expectSlopes(trainedActivation("HardSigmoid", x, {{"alpha", 1.F / 6}}, {}, version),
                 {0, 0, 1. / 6, 1. / 6, 1. / 6, 0, 0});
  }
  expectSlopes(trainedActivation("Selu", {-1, 0, 1}, {}), {0.64676863, 1.75809932, 1.05070102});
  const CheckedTraining prelu = trainedActivation("PRelu", x, {}, {makeTensor({1}, {0.25})});
  expectSlopes(prelu, {0.25, 0.25, 0.25, 0.25, 1, 1, 1});
  EXPECT_EQ(elementsOf(prelu.gradients.at("p1")), (std::vector<double>{-10}));
  const CheckedTraining each = trainedActivation("PRelu", {-2, 0, 3}, {}, {makeTensor({3}, {0.25, 0.5, -1})});
  expectSlopes(each, {0.25, 0.5, 1});
  EXPECT_EQ(elementsOf(each.gradients.at("p1")), (std::vector<double>{-2, 0, 0}));
}

TEST(LoweredGradient, OfActivations) {
  for (const Shape& slope : std::vector<Shape>{{}, {1}, {4}, {3, 1}, {2, 1, 1}, {2, 3, 4}}) {
    SCOPED_TRACE(shapeToString(slope));
    TestGraph test;
    checkLowered(test, {test.op("PRelu", {test.parameter("x", {2, 3, 4}), test.parameter("slope", slope)})});
  }
  for (const char* op_type : {"Selu", "HardSwish", "HardSigmoid"}) {
    SCOPED_TRACE(op_type);
    TestGraph test;
    checkLowered(test, {test.op(op_type, {test.parameter("x", {3, 8}, -5, 5)})});
  }
}

// The mask is an input that is drawn; here it is given.
TEST(LoweredGradient, OfADropoutIsTheMasks) {
  TestGraph test;
  const ValueId x = test.parameter("x", {3, 4});
  const ValueId ratio = test.constant(makeScalar(DataType::kFloat64, 0.25));
  const ValueId training = test.constant(Constant{DataType::kBool, {}, {std::byte{1}}});
  const ValueId y = test.op("Dropout", {x, ratio, training});
  const ValueId loss = test.op("ReduceSum", {y}, {{"keepdims", int64_t{0}}});
  ASSERT_EQ(expandUnsupported(test.graph(), [](const Node&) { return true; }), 1);
  ASSERT_EQ(test.graph().inputs.size(), 1u);
  const Value& mask = test.graph().value(test.graph().inputs[0]);
  ASSERT_TRUE(mask.drawn.has_value());
  EXPECT_EQ(*mask.drawn, (RandomNumbers{RandomNumbers::Kind::kTrue, 0.75}));
  EXPECT_EQ(*mask.shape, Shape({3, 4}));
  Constant content{DataType::kBool, {3, 4}, std::vector<std::byte>(12, std::byte{1})};
  content.bytes[5] = std::byte{0};
  test.giveContent(mask.name, content);
  test.graph().outputs = {loss};
  const std::vector<double> gradient = elementsOf(trainAndRun(test, loss).gradients.at("x"));
  for (size_t i = 0; i < gradient.size(); ++i) EXPECT_DOUBLE_EQ(gradient[i], i == 5 ? 0 : 1 / 0.75);
}

// torchvision's default, which samples as the regions say.
TEST(LoweredOperators, ARoiAlignWithoutANumberOfSamplesSaysWhatToWrite) {
  TestGraph test;
  const ValueId regions = test.constant(makeConstant<double>({1, 4}, {1, 1, 5, 5}));
  const ValueId pooled = test.op("RoiAlign", {test.parameter("x", {1, 2, 8, 8}), regions, test.integers({0})},
                                 {{"output_height", int64_t{3}}, {"output_width", int64_t{3}}});
  EXPECT_ERROR(loweredLoss(test, {pooled}), ErrorCode::kBadModel, "its sampling_ratio is 0",
               "roi_align(.., sampling_ratio=2)");
}

}  // namespace
}  // namespace pipeshard::testing
