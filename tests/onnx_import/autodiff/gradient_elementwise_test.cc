#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "ir/graph/stopped_gradient.h"
#include "tests/onnx_import/autodiff/gradient_check.h"

namespace pipeshard::testing {
namespace {

// Shapes of a and b: equal, broadcast on either side, on both, over missing axes, and a scalar.
const std::vector<std::pair<Shape, Shape>> kBroadcasts = {
    {{2, 3}, {2, 3}},    {{2, 3}, {3}}, {{3}, {2, 3}}, {{2, 1, 3}, {1, 4, 1}},
    {{4, 2, 3}, {2, 1}}, {{2, 3}, {}},  {{}, {2, 3}},  {{1}, {2, 2}}};

void checkBinary(std::string_view op_type, double low = -1, double high = 1) {
  for (const auto& [a, b] : kBroadcasts) {
    SCOPED_TRACE(shapeToString(a) + " " + shapeToString(b));
    TestGraph test;
    const ValueId left = test.parameter("a", a, low, high);
    const ValueId right = test.parameter("b", b, low, high);
    checkGradients(test, {test.op(op_type, {left, right})});
  }
}

void checkUnary(std::string_view op_type, double low = -2, double high = 2,
                std::map<std::string, Attribute> attributes = {}) {
  TestGraph test;
  checkGradients(test, {test.op(op_type, {test.parameter("x", {3, 4}, low, high)}, std::move(attributes))});
}

TEST(Gradient, OfAddMatchesDifferences) { checkBinary("Add"); }
TEST(Gradient, OfSubMatchesDifferences) { checkBinary("Sub"); }
TEST(Gradient, OfMulMatchesDifferences) { checkBinary("Mul"); }
TEST(Gradient, OfDivMatchesDifferences) { checkBinary("Div", 0.5, 1.5); }
TEST(Gradient, OfPowMatchesDifferencesInBaseAndExponent) { checkBinary("Pow", 0.5, 1.5); }

// Away from multiples of the divisor, on both sides of 0.
TEST(Gradient, OfModMatchesDifferencesAndBroadcasts) {
  TestGraph test;
  const ValueId a = test.parameter("a", makeTensor({2, 3}, {5.3, -5.3, 0.4, 7.7, -2.2, 9.4}));
  const ValueId b = test.parameter("b", makeTensor({3}, {2, 1.5, -0.7}));
  checkGradients(test, {test.op("Mod", {a, b}, {{"fmod", int64_t{1}}})});
}

TEST(Gradient, OfMaxMatchesDifferences) { checkBinary("Max"); }
TEST(Gradient, OfMinMatchesDifferences) { checkBinary("Min"); }

TEST(Gradient, OfPowWithConstantExponentMatchesDifferences) {
  for (double exponent : {0.0, 0.5, 1.0, 2.0, 3.0, 4.0, -1.5}) {
    SCOPED_TRACE(exponent);
    TestGraph test;
    checkGradients(
        test,
        {test.op("Pow", {test.parameter("x", {2, 3}, 0.5, 1.5), test.constant(makeTensor({}, {exponent}))})});
  }
}

// A binary cross-entropy of a prediction that is 0 bounds its logarithm by -100.
TEST(Gradient, OfABoundedLogarithmIsZeroAtZero) {
  TestGraph test;
  const ValueId x = test.parameter("x", makeTensor({3}, {0, 0.5, 1e-30}));
  const ValueId bounded = test.op("Max", {test.op("Log", {x}), test.constant(makeTensor({}, {-100}))});
  const std::vector<double> gradient = elementsOf(
      trainAndRun(test, test.op("ReduceSum", {bounded}, {{"keepdims", int64_t{0}}})).gradients.at("x"));
  EXPECT_EQ(gradient.at(0), 0);
  EXPECT_DOUBLE_EQ(gradient.at(1), 2);
  EXPECT_DOUBLE_EQ(gradient.at(2), 1e12);  // as PyTorch bounds it
}

TEST(Gradient, OfAStandardDeviationIsZeroWhereAllAreEqual) {
  TestGraph test;
  const ValueId x = test.parameter("x", makeTensor({2}, {3, 3}));
  const ValueId squares = test.op("Mul", {x, x});
  const ValueId variance = test.op("Sub", {test.op("ReduceMean", {squares}, {{"keepdims", int64_t{0}}}),
                                           test.constant(makeTensor({}, {9}))});
  const ValueId deviation = test.op("Sqrt", {variance});
  test.graph().nodes.back().metadata.emplace_back(
      "pkg.torch.onnx.fx_node",
      "%sqrt : [num_users=1] = call_function[target=torch.ops.aten.sqrt.default](args = (%var,), kwargs = "
      "{})");
  for (double element : elementsOf(trainAndRun(test, test.weightedSum({deviation})).gradients.at("x")))
    EXPECT_EQ(element, 0);
}

// Calls of PyTorch that its TorchScript exporter writes as roots of sums. What somebody wrote out has the
// gradient that PyTorch makes of it, which is not a number.
TEST(Gradient, OfWrittenOutRootsIsZeroAtZeroWherePyTorchHasACall) {
  const auto gradientOf = [](const auto& root) {
    TestGraph test;
    const auto number = [&](double of) { return test.constant(makeTensor({}, {of})); };
    const ValueId x = test.parameter("x", makeTensor({2, 2}, {3, 3, 0, 0}));
    const ValueId loss = test.weightedSum({root(test, x, number)});
    return elementsOf(trainAndRun(test, loss).gradients.at("x"));
  };
  const std::map<std::string, Attribute> kept = {{"keepdims", int64_t{1}}};
  const auto deviation = [&](TestGraph& test, ValueId x, const auto& number, bool scaled) {
    const ValueId d = test.op("Sub", {x, test.op("ReduceMean", {x, test.integers({1})}, kept)});
    ValueId variance = test.op("ReduceMean", {test.op("Mul", {d, d}), test.integers({1})}, kept);
    if (scaled) variance = test.op("Div", {test.op("Mul", {variance, number(2)}), number(1)});
    return test.op("Sqrt", {variance});
  };
  const auto distance = [&](TestGraph& test, ValueId x, const auto& number, double exponent) {
    const ValueId d = test.op("Sub", {test.op("Unsqueeze", {x, test.integers({1})}),
                                      test.op("Unsqueeze", {x, test.integers({0})})});
    const ValueId sum = test.op("ReduceSum", {test.op("Pow", {d, number(2)}), test.integers({2})}, kept);
    return test.op("Pow", {sum, number(exponent)});
  };
  const auto cosine = [&](TestGraph& test, ValueId x, const auto& number, double bound) {
    const ValueId sum = test.op("ReduceSum", {test.op("Mul", {x, x}), test.integers({1})}, kept);
    const ValueId root = test.op("Sqrt", {test.op("Mul", {sum, sum})});
    return test.op(
        "Div", {test.op("ReduceSum", {x, test.integers({1})}, kept), test.op("Max", {root, number(bound)})});
  };
  const auto areFinite = [](const std::vector<double>& gradient) {
    return std::all_of(gradient.begin(), gradient.end(), [](double x) { return std::isfinite(x); });
  };
  for (const bool is_call : {true, false}) {
    SCOPED_TRACE(is_call);
    const std::vector<double> of_deviation =
        gradientOf([&](TestGraph& test, ValueId x, const auto& n) { return deviation(test, x, n, is_call); });
    EXPECT_EQ(areFinite(of_deviation), is_call);
    if (is_call) {
      EXPECT_EQ(of_deviation, std::vector<double>(4, 0));
    }
    const std::vector<double> of_distance = gradientOf([&](TestGraph& test, ValueId x, const auto& n) {
      return distance(test, x, n, is_call ? 1 / (2 + 1e-6) : 0.5);
    });
    EXPECT_EQ(areFinite(of_distance), is_call);
    if (is_call) {
      EXPECT_NE(of_distance.at(0), 0) << "the rows are apart";
    }
    EXPECT_EQ(areFinite(gradientOf([&](TestGraph& test, ValueId x, const auto& n) {
                return cosine(test, x, n, is_call ? 1e-8 : -1);
              })),
              is_call);
  }
}

TEST(Gradient, OfPowIsFiniteAtABaseOfZero) {
  for (double exponent : {0.0, 1.0, 2.0, 3.0}) {
    TestGraph test;
    const ValueId x = test.parameter("x", makeTensor({2}, {0, -1}));
    const ValueId loss = test.weightedSum({test.op("Pow", {x, test.constant(makeTensor({}, {exponent}))})});
    for (double element : elementsOf(trainAndRun(test, loss).gradients.at("x")))
      EXPECT_TRUE(std::isfinite(element)) << exponent;
  }
}

TEST(Gradient, OfSumAndMeanMatchesDifferencesInEveryInput) {
  for (const char* op_type : {"Sum", "Mean"}) {
    TestGraph test;
    checkGradients(test, {test.op(op_type, {test.parameter("a", {2, 3}), test.parameter("b", {3}),
                                            test.parameter("c", {2, 1})})});
  }
}

TEST(Gradient, OfMaxIsSharedBetweenEqualInputs) {
  TestGraph test;
  const ValueId a = test.parameter("a", makeTensor({2}, {1, 2}));
  const ValueId b = test.parameter("b", makeTensor({2}, {1, 0}));
  const ValueId loss = test.op("ReduceSum", {test.op("Max", {a, b})}, {{"keepdims", int64_t{0}}});
  const CheckedTraining checked = trainAndRun(test, loss);
  EXPECT_EQ(elementsOf(checked.gradients.at("a")), (std::vector<double>{0.5, 1}));
  EXPECT_EQ(elementsOf(checked.gradients.at("b")), (std::vector<double>{0.5, 0}));
}

TEST(Gradient, OfWhereMatchesDifferencesAndBroadcasts) {
  TestGraph test;
  Constant mask{DataType::kBool, {2, 1, 3}, std::vector<std::byte>(6)};
  mask.bytes[1] = mask.bytes[3] = mask.bytes[5] = std::byte{1};
  checkGradients(
      test, {test.op("Where", {test.constant(mask), test.parameter("a", {4, 3}), test.parameter("b", {1})})});
}

// Of 0, 3 and 6 between these limits, where the file is of this version of PyTorch and the node part of a
// call.
std::vector<double> gradientOfLimited(const std::string& version, const std::string& call,
                                      const char* op_type, const std::vector<double>& limits) {
  TestGraph test;
  if (!version.empty()) test.graph().producer_name = "pytorch";
  test.graph().producer_version = version;
  std::vector<ValueId> inputs = {test.parameter("x", makeTensor({3}, {0, 3, 6}))};
  for (double limit : limits) inputs.push_back(test.constant(makeTensor({}, {limit})));
  const ValueId limited = test.op(op_type, inputs);
  if (!call.empty()) {
    test.graph().nodes.back().metadata.emplace_back(
        "pkg.torch.onnx.fx_node",
        "%a : [num_users=1] = call_function[target=torch.ops.aten." + call + ", kwargs = {})");
  }
  const ValueId loss = test.op("ReduceSum", {limited}, {{"keepdims", int64_t{0}}});
  return elementsOf(trainAndRun(test, loss).gradients.at("x"));
}

using Slopes = std::vector<double>;
constexpr const char* kOld = "2.13.1";
constexpr const char* kNew = "2.15.0+cu132";

// PyTorch 2.14 changed what clamp does at its limits.
TEST(Gradient, OfClampAtItsLimitsIsThatOfTheFilesPyTorch) {
  const char* numbers = "clamp.default](args = (%x, 0, 6)";
  EXPECT_EQ(gradientOfLimited(kOld, numbers, "Clip", {0, 6}), (Slopes{1, 1, 1}));
  EXPECT_EQ(gradientOfLimited(kOld, "", "Clip", {0, 5}), (Slopes{1, 1, 0}));
  EXPECT_EQ(gradientOfLimited("1.13.1", numbers, "Clip", {0, 6}), (Slopes{1, 1, 1}));
  for (const char* version : {kNew, "2.14.0a0+git1", "3.0", ""}) {
    SCOPED_TRACE(version);
    EXPECT_EQ(gradientOfLimited(version, numbers, "Clip", {0, 6}), (Slopes{0, 1, 0}));
    EXPECT_EQ(gradientOfLimited(version, "", "Clip", {0, 5}), (Slopes{0, 1, 0}));
    EXPECT_EQ(gradientOfLimited(version, "", "Clip", {3}), (Slopes{0, 0, 1}));
  }
  // what the exporter makes of numbers
  const char* made = "clamp.Tensor](args = (%x, %scalar_tensor_default, %scalar_tensor_default_1)";
  EXPECT_EQ(gradientOfLimited(kNew, made, "Max", {3}), (Slopes{0, 0, 1}));
  EXPECT_EQ(gradientOfLimited(kNew, made, "Min", {3}), (Slopes{1, 0, 0}));
  EXPECT_EQ(gradientOfLimited(kOld, made, "Max", {3}), (Slopes{0, 1, 1}));
  EXPECT_EQ(gradientOfLimited(kOld, made, "Min", {3}), (Slopes{1, 1, 0}));
  const char* least = "clamp_min.Tensor](args = (%x, %scalar_tensor_default)";
  EXPECT_EQ(gradientOfLimited(kNew, least, "Clip", {3}), (Slopes{0, 0, 1}));
}

TEST(Gradient, IsSharedWithALimitThatIsATensor) {
  const char* both = "clamp.Tensor](args = (%x, %clone, %mean)";
  EXPECT_EQ(gradientOfLimited(kNew, both, "Max", {3}), (Slopes{0, 0.5, 1}));
  EXPECT_EQ(gradientOfLimited(kNew, both, "Min", {3}), (Slopes{1, 0.5, 0}));
  EXPECT_EQ(gradientOfLimited(kOld, both, "Max", {3}), (Slopes{0, 1, 1}));
  EXPECT_EQ(gradientOfLimited(kOld, both, "Min", {3}), (Slopes{1, 1, 0}));
  EXPECT_EQ(gradientOfLimited(kNew, "clamp.Tensor](args = (%x, None, %mean)", "Min", {3}),
            (Slopes{1, 0.5, 0}));
  EXPECT_EQ(gradientOfLimited(kNew, "clamp_min.Tensor](args = (%x, %clone)", "Clip", {3}),
            (Slopes{0, 0.5, 1}));
  for (const char* version : {kOld, kNew}) {
    EXPECT_EQ(gradientOfLimited(version, "maximum.default](args = (%x, %y)", "Max", {3}),
              (Slopes{0, 0.5, 1}));
    EXPECT_EQ(gradientOfLimited(version, "", "Max", {3}), (Slopes{0, 0.5, 1}));
  }
}

TEST(Gradient, OfActivationsIsFlatAtTheirEnds) {
  for (const char* version : {kOld, kNew, ""}) {
    EXPECT_EQ(gradientOfLimited(version, "relu6.default](args = (%x,)", "Clip", {0, 6}), (Slopes{0, 1, 0}));
    EXPECT_EQ(gradientOfLimited(version, "relu6.default](args = (%x,)", "Min", {6}), (Slopes{1, 1, 0}));
    EXPECT_EQ(gradientOfLimited(version, "hardtanh.default](args = (%x, 0, 3)", "Clip", {0, 3}),
              (Slopes{0, 0, 0}));
    EXPECT_EQ(gradientOfLimited(version, "", "Clip", {0, 6}), (Slopes{0, 1, 0}));  // a relu6, most likely
  }
}

TEST(Gradient, OfClipMatchesDifferences) {
  const auto limit = [](double number) { return makeTensor({}, {number}); };
  for (int limits = 0; limits < 4; ++limits) {
    TestGraph test;
    const ValueId x = test.parameter("x", {3, 4});
    const ValueId low = limits & 1 ? test.constant(limit(-0.4)) : ValueId();
    const ValueId high = limits & 2 ? test.constant(limit(0.3)) : ValueId();
    checkGradients(test, {test.op("Clip", {x, low, high})});
  }
}

TEST(Gradient, OfNegMatchesDifferences) { checkUnary("Neg"); }
TEST(Gradient, OfSqrtMatchesDifferences) { checkUnary("Sqrt", 0.5, 2); }
TEST(Gradient, OfExpMatchesDifferences) { checkUnary("Exp"); }
TEST(Gradient, OfLogMatchesDifferences) { checkUnary("Log", 0.5, 2); }
TEST(Gradient, OfReciprocalMatchesDifferences) { checkUnary("Reciprocal", 0.5, 2); }
TEST(Gradient, OfAbsMatchesDifferences) { checkUnary("Abs"); }
TEST(Gradient, OfSinMatchesDifferences) { checkUnary("Sin"); }
TEST(Gradient, OfCosMatchesDifferences) { checkUnary("Cos"); }
TEST(Gradient, OfTanMatchesDifferences) { checkUnary("Tan", -1.2, 1.2); }
TEST(Gradient, OfAsinMatchesDifferences) { checkUnary("Asin", -0.9, 0.9); }
TEST(Gradient, OfAcosMatchesDifferences) { checkUnary("Acos", -0.9, 0.9); }
TEST(Gradient, OfAtanMatchesDifferences) { checkUnary("Atan", -4, 4); }
TEST(Gradient, OfSinhMatchesDifferences) { checkUnary("Sinh"); }
TEST(Gradient, OfCoshMatchesDifferences) { checkUnary("Cosh"); }
TEST(Gradient, OfAsinhMatchesDifferences) { checkUnary("Asinh", -4, 4); }
TEST(Gradient, OfAcoshMatchesDifferences) { checkUnary("Acosh", 1.1, 4); }
TEST(Gradient, OfAtanhMatchesDifferences) { checkUnary("Atanh", -0.9, 0.9); }
TEST(Gradient, OfErfMatchesDifferences) { checkUnary("Erf"); }
TEST(Gradient, OfTanhMatchesDifferences) { checkUnary("Tanh"); }
TEST(Gradient, OfSigmoidMatchesDifferences) { checkUnary("Sigmoid"); }
TEST(Gradient, OfReluMatchesDifferences) { checkUnary("Relu"); }
TEST(Gradient, OfIdentityMatchesDifferences) { checkUnary("Identity"); }
TEST(Gradient, OfDropoutInEvaluationMatchesDifferences) { checkUnary("Dropout"); }
TEST(Gradient, OfSoftplusMatchesDifferences) { checkUnary("Softplus"); }
TEST(Gradient, OfMishMatchesDifferences) { checkUnary("Mish", -4, 4); }
TEST(Gradient, OfLeakyReluMatchesDifferences) { checkUnary("LeakyRelu", -2, 2, {{"alpha", 0.2f}}); }
TEST(Gradient, OfEluMatchesDifferences) { checkUnary("Elu", -2, 2, {{"alpha", 0.5f}}); }
TEST(Gradient, OfGeluMatchesDifferences) {
  checkUnary("Gelu", -3, 3);
  checkUnary("Gelu", -3, 3, {{"approximate", std::string("tanh")}});
}

TEST(Gradient, OfCastReturnsToTheInputsType) {
  TestGraph test;
  const ValueId x = test.parameter("x", makeTensor({3}, {0.5, -1, 2}));
  const ValueId narrow = test.op("Cast", {x}, {{"to", static_cast<int64_t>(DataType::kFloat32)}});
  const ValueId wide =
      test.op("Cast", {test.op("Mul", {narrow, narrow})}, {{"to", static_cast<int64_t>(DataType::kFloat64)}});
  const CheckedTraining checked = trainAndRun(test, test.op("ReduceSum", {wide}, {{"keepdims", int64_t{0}}}));
  EXPECT_EQ(elementsOf(checked.gradients.at("x")), (std::vector<double>{1, -2, 4}));
}

// x * detached(x): the slope is x, not 2 x.
TEST(Gradient, DoesNotPassADetachedValue) {
  TestGraph test;
  const ValueId x = test.parameter("x", makeTensor({3}, {1, 2, 3}));
  const ValueId detached = test.op("Identity", {x});
  stopGradientAt(test.graph().nodes.back());
  const ValueId loss = test.op("ReduceSum", {test.op("Mul", {x, detached})}, {{"keepdims", int64_t{0}}});
  EXPECT_EQ(elementsOf(trainAndRun(test, loss).gradients.at("x")), (std::vector<double>{1, 2, 3}));
}

}  // namespace
}  // namespace pipeshard::testing
