// Activations as people write them become one node, with the same values and gradients; what is nearly one
// stays.
#include "onnx_import/patterns/patterns.h"

#include <cmath>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/onnx_import/autodiff/gradient_check.h"
#include "tests/onnx_import/check_model.h"

namespace pipeshard::testing {
namespace {

using ::testing::HasSubstr;

const double kK = std::sqrt(2 / M_PI);

// Writes expressions of one matrix x.
class Expression {
 public:
  explicit Expression(TestGraph& test) : test_(test), x(test.parameter("x", {3, 4}, -3, 3)) {}

  ValueId number(double value) { return test_.constant(makeScalar(DataType::kFloat64, value)); }
  ValueId mul(ValueId a, ValueId b) { return test_.op("Mul", {a, b}); }
  ValueId mul(ValueId a, double b) { return mul(a, number(b)); }
  ValueId div(ValueId a, double b) { return test_.op("Div", {a, number(b)}); }
  ValueId add(ValueId a, ValueId b) { return test_.op("Add", {a, b}); }
  ValueId add(ValueId a, double b) { return add(a, number(b)); }
  ValueId pow(ValueId a, double b) { return test_.op("Pow", {a, number(b)}); }
  ValueId f(const char* op, ValueId a) { return test_.op(op, {a}); }

 private:
  TestGraph& test_;

 public:
  ValueId x;
};

struct Form {
  std::string name;
  PatternKind kind;
  std::function<ValueId(Expression&)> write;
};

// transformers' NewGELU; its argument is k (x + c x^3).
ValueId cubic(Expression& e, double k = kK, double c = 0.044715) {
  return e.mul(e.add(e.x, e.mul(e.pow(e.x, 3), c)), k);
}
ValueId newGelu(Expression& e, double k = kK, double c = 0.044715, double half = 0.5) {
  return e.mul(e.mul(e.x, half), e.add(e.f("Tanh", cubic(e, k, c)), 1));
}

std::vector<Form> forms() {
  using E = Expression;
  const double root = std::sqrt(2.0);
  return {
      {"NewGelu", PatternKind::kGeluTanh, [](E& e) { return newGelu(e); }},
      {"InFloat32", PatternKind::kGeluTanh,
       [](E& e) { return newGelu(e, double{static_cast<float>(kK)}, double{0.044715f}); }},
      {"HalfLast", PatternKind::kGeluTanh,
       [](E& e) { return e.mul(e.mul(e.x, e.add(e.f("Tanh", cubic(e)), 1)), 0.5); }},
      {"HalfOfTheSum", PatternKind::kGeluTanh,
       [](E& e) { return e.mul(e.x, e.mul(e.add(e.number(1), e.f("Tanh", cubic(e))), 0.5)); }},
      {"CubeOfProducts", PatternKind::kGeluTanh,
       [](E& e) {
         const ValueId u = e.add(e.mul(e.x, kK), e.mul(e.mul(e.mul(e.x, e.x), e.x), kK * 0.044715));
         return e.mul(e.mul(e.x, 0.5), e.add(e.f("Tanh", u), 1));
       }},
      // x k (1 + c x x), as TensorFlow's optimised form and transformers' FastGELU have it.
      {"FactoredOut", PatternKind::kGeluTanh,
       [](E& e) {
         const ValueId inner = e.add(e.mul(e.mul(e.x, 0.044715), e.x), 1);
         return e.mul(e.mul(e.x, 0.5), e.add(e.f("Tanh", e.mul(e.mul(e.x, kK), inner)), 1));
       }},
      {"ErfInFloat32", PatternKind::kGelu,
       [](E& e) {
         const ValueId erf = e.f("Erf", e.mul(e.x, double{static_cast<float>(M_SQRT1_2)}));
         return e.mul(e.mul(e.x, 0.5), e.add(erf, 1));
       }},
      {"DividedInFloat32", PatternKind::kGelu,  // the TorchScript exporter
       [](E& e) {
         const ValueId erf = e.f("Erf", e.div(e.x, double{static_cast<float>(M_SQRT2)}));
         return e.mul(e.mul(e.x, e.add(erf, 1)), 0.5);
       }},
      {"Torch", PatternKind::kGelu,
       [root](E& e) { return e.mul(e.mul(e.x, 0.5), e.add(e.f("Erf", e.div(e.x, root)), 1)); }},
      {"TorchDynamo", PatternKind::kGelu,
       [root](E& e) { return e.mul(e.mul(e.x, e.add(e.f("Erf", e.mul(e.x, 1 / root)), 1)), 0.5); }},
      {"Expanded", PatternKind::kGelu,
       [root](E& e) {
         const ValueId half = e.div(e.x, 2);
         return e.add(half, e.mul(half, e.f("Erf", e.div(e.x, root))));
       }},
      {"OfASum", PatternKind::kGelu,
       [root](E& e) {
         const ValueId biased = e.add(e.x, e.mul(e.x, e.f("Sin", e.x)));
         return e.mul(e.mul(biased, 0.5), e.add(e.f("Erf", e.div(biased, root)), 1));
       }},
      {"Silu", PatternKind::kSwish, [](E& e) { return e.mul(e.x, e.f("Sigmoid", e.x)); }},
      {"SiluOtherWay", PatternKind::kSwish, [](E& e) { return e.mul(e.f("Sigmoid", e.x), e.x); }},
      {"QuickGelu", PatternKind::kSwish,
       [](E& e) { return e.mul(e.x, e.f("Sigmoid", e.mul(e.x, double{1.702f}))); }},
      {"SiluOfAProduct", PatternKind::kSwish,
       [](E& e) {
         const ValueId scaled = e.mul(e.x, 0.125);
         return e.mul(scaled, e.f("Sigmoid", scaled));
       }},
      {"SiluGate", PatternKind::kSwish,
       [](E& e) { return e.mul(e.mul(e.x, e.f("Sigmoid", e.x)), e.f("Cos", e.x)); }},
  };
}

class Written : public ::testing::TestWithParam<Form> {};

std::vector<double> valuesOf(TestGraph& test, const std::string& name) {
  return elementsOf(Interpreter(test.graph()).run(test.contents()).at(name));
}

TEST_P(Written, BecomesOneNodeOfTheSameValue) {
  TestGraph test;
  Expression e(test);
  const ValueId y = GetParam().write(e);
  const std::string name = test.graph().value(y).name;
  test.graph().outputs = {y};
  const std::vector<double> before = valuesOf(test, name);
  const FoundPatterns found = recognisePatterns(test.graph());
  EXPECT_EQ(found.found, (std::map<PatternKind, int>{{GetParam().kind, 1}}));
  EXPECT_TRUE(found.missed.empty());
  EXPECT_LT(found.nodes_after, found.nodes_before);
  verifyGraph(test.graph());
  checkModel(test.graph());
  const std::vector<double> after = valuesOf(test, name);
  for (size_t i = 0; i < before.size(); ++i) EXPECT_NEAR(after[i], before[i], 1e-14);
}

TEST_P(Written, HasTheGradientOfItsDifferences) {
  TestGraph test;
  Expression e(test);
  const ValueId y = GetParam().write(e);
  const std::string name = test.graph().value(y).name;
  test.graph().outputs = {y};
  recognisePatterns(test.graph());
  checkGradients(test, {findValue(test.graph(), name)});
}

INSTANTIATE_TEST_SUITE_P(Patterns, Written, ::testing::ValuesIn(forms()),
                         [](const auto& info) { return info.param.name; });

struct Near {
  std::string name;
  std::function<ValueId(Expression&)> write;
  std::string reason;  // "": it is nothing like a pattern
};

ValueId geluOf(Expression& e, ValueId x, double root = std::sqrt(2.0), double one = 1, double half = 0.5) {
  return e.mul(e.mul(x, half), e.add(e.f("Erf", e.div(x, root)), one));
}

std::vector<Near> nearGelus() {
  using E = Expression;
  const std::string rest = "nothing is x/2 + x/2 of it", cubes = "a Gelu has 0.797885 x + 0.0356774 x^3";
  return {
      {"OtherFactor", [](E& e) { return newGelu(e, 0.8); }, cubes},
      {"OtherCubic", [](E& e) { return newGelu(e, kK, 0.0447); }, cubes},
      {"SignOfTheCube", [](E& e) { return newGelu(e, kK, -0.044715); }, cubes},
      {"Whole", [](E& e) { return newGelu(e, kK, 0.044715, 1); }, rest},
      {"NoOne", [](E& e) { return e.mul(e.mul(e.x, 0.5), e.f("Tanh", cubic(e))); }, rest},
      {"MinusOne", [](E& e) { return e.mul(e.mul(e.x, 0.5), e.add(e.f("Tanh", cubic(e)), -1)); }, rest},
      {"Square",
       [](E& e) {
         return e.mul(e.mul(e.x, 0.5), e.add(e.f("Tanh", e.add(e.mul(e.x, kK), e.pow(e.x, 2))), 1));
       },
       ""},
      {"PlainTanh", [](E& e) { return e.mul(e.mul(e.x, 0.5), e.add(e.f("Tanh", e.x), 1)); }, ""},
      {"OfAnother", [](E& e) { return e.mul(e.f("Sin", e.x), e.add(e.f("Tanh", cubic(e)), 1)); }, rest},
      {"ErfOfX", [](E& e) { return geluOf(e, e.x, 1); }, ""},
      {"ErfOfHalf", [](E& e) { return geluOf(e, e.x, 2); }, ""},
      {"ErfTwice", [](E& e) { return geluOf(e, e.x, std::sqrt(2.0), 2); }, rest},
      {"ErfThird", [](E& e) { return geluOf(e, e.x, std::sqrt(2.0), 1, 1.0 / 3); }, rest},
      {"NormalDistribution",
       [](E& e) { return e.mul(e.add(e.f("Erf", e.div(e.x, std::sqrt(2.0))), 1), 0.5); }, rest},
      {"TimesItself",
       [](E& e) {
         const ValueId g = e.f("Erf", e.div(e.x, std::sqrt(2.0)));
         return e.mul(e.mul(e.x, 0.5), e.add(e.mul(g, g), 1));
       },
       rest},
      {"ReadElsewhere",
       [](E& e) {
         const ValueId t = e.f("Tanh", cubic(e));
         return e.add(e.mul(e.mul(e.x, 0.5), e.add(t, 1)), e.f("Cos", t));
       },
       "is also read by node 'Cos'"},
      // Numbers that no attribute can say.
      {"DoubleNearTheDivisor", [](E& e) { return geluOf(e, e.x, std::sqrt(2.0) * (1 + 3e-9)); },
       "is no number of float32"},
      {"DoubleNearTheFactor", [](E& e) { return newGelu(e, kK * (1 + 1e-8)); }, cubes},
      {"TanhOfACubeAlone", [](E& e) { return e.f("Tanh", cubic(e)); }, rest},
  };
}

std::vector<Near> nearGates() {
  using E = Expression;
  return {
      {"SiluWhoseGateIsRead",
       [](E& e) {
         const ValueId gate = e.f("Sigmoid", e.x);
         return e.add(e.mul(e.x, gate), e.f("Cos", gate));
       },
       "is also read by node 'Cos'"},
      {"GateOfAnother", [](E& e) { return e.mul(e.f("Sin", e.x), e.f("Sigmoid", e.x)); }, ""},
      {"SquaredGate",
       [](E& e) {
         const ValueId gate = e.f("Sigmoid", e.x);
         return e.mul(e.x, e.mul(gate, gate));
       },
       ""},
      {"ShiftedGate", [](E& e) { return e.mul(e.x, e.f("Sigmoid", e.add(e.x, 1))); }, ""},
      {"GateOfTheSquare", [](E& e) { return e.mul(e.x, e.f("Sigmoid", e.mul(e.x, e.x))); }, ""},
      {"SquareOfSilu", [](E& e) { return e.mul(e.mul(e.x, e.x), e.f("Sigmoid", e.x)); }, ""},
      {"TwiceSilu", [](E& e) { return e.mul(e.mul(e.x, 2), e.f("Sigmoid", e.mul(e.x, 2.5))); }, ""},
      {"GateOfADouble", [](E& e) { return e.mul(e.x, e.f("Sigmoid", e.mul(e.x, 1.702))); }, ""},
      {"SigmoidAlone", [](E& e) { return e.f("Sigmoid", e.x); }, ""},
      {"HardGate", [](E& e) { return e.mul(e.x, e.f("HardSigmoid", e.x)); }, ""},
  };
}

std::vector<Near> nearMisses() {
  std::vector<Near> all = nearGelus();
  for (const Near& near : nearGates()) all.push_back(near);
  return all;
}

class Nearly : public ::testing::TestWithParam<Near> {};

TEST_P(Nearly, StaysAsItIs) {
  TestGraph test;
  Expression e(test);
  test.graph().outputs = {GetParam().write(e)};
  const size_t nodes = test.graph().nodes.size();
  const FoundPatterns found = recognisePatterns(test.graph());
  EXPECT_TRUE(found.found.empty());
  EXPECT_EQ(test.graph().nodes.size(), nodes);
  ASSERT_EQ(found.missed.size(), GetParam().reason.empty() ? 0u : 1u);
  if (!found.missed.empty()) {
    EXPECT_THAT(found.missed[0].reason, HasSubstr(GetParam().reason));
  }
}

INSTANTIATE_TEST_SUITE_P(Patterns, Nearly, ::testing::ValuesIn(nearMisses()),
                         [](const auto& info) { return info.param.name; });

// RMSNorm: transformers' (rsqrt), a quotient, and a power of the variance; w before or behind.
enum class Root { kReciprocal, kQuotient, kPower };

ValueId rmsNorm(TestGraph& test, ValueId x, ValueId w, Root root, bool weight_first = true,
                const std::vector<int64_t>& axes = {-1}) {
  const auto number = [&](double value) { return test.constant(makeScalar(DataType::kFloat64, value)); };
  const ValueId square = root == Root::kPower ? test.op("Mul", {x, x}) : test.op("Pow", {x, number(2)});
  const ValueId mean = test.op("ReduceMean", {square, test.integers(axes)}, {{"keepdims", int64_t{1}}});
  const ValueId shifted = test.op("Add", {mean, number(1e-3)});
  ValueId normal;
  if (root == Root::kPower) normal = test.op("Mul", {x, test.op("Pow", {shifted, number(-0.5)})});
  if (root == Root::kQuotient) normal = test.op("Div", {x, test.op("Sqrt", {shifted})});
  if (root == Root::kReciprocal)
    normal = test.op("Mul", {x, test.op("Reciprocal", {test.op("Sqrt", {shifted})})});
  return weight_first ? test.op("Mul", {w, normal}) : test.op("Mul", {normal, w});
}

TEST(PatternsTest, RmsNormalizationsBecomeOneNode) {
  for (const Root root : {Root::kReciprocal, Root::kQuotient, Root::kPower}) {
    for (const bool weight_first : {true, false}) {
      TestGraph test;
      const ValueId x = test.parameter("x", {2, 3, 5}), w = test.parameter("w", {5});
      const ValueId y = rmsNorm(test, x, w, root, weight_first);
      const std::string name = test.graph().value(y).name;
      test.graph().outputs = {y};
      const std::vector<double> before = valuesOf(test, name);
      const FoundPatterns found = recognisePatterns(test.graph());
      EXPECT_EQ(found.found, (std::map<PatternKind, int>{{PatternKind::kRmsNorm, 1}}));
      EXPECT_EQ(test.graph().nodes.size(), 1u);
      checkModel(test.graph());
      const std::vector<double> after = valuesOf(test, name);
      // Its epsilon is an attribute, so a float32.
      for (size_t i = 0; i < before.size(); ++i) EXPECT_NEAR(after[i], before[i], 1e-7);
      checkGradients(test, {findValue(test.graph(), name)});
    }
  }
}

TEST(PatternsTest, OtherMeansOfSquaresStay) {
  const auto stays = [](const std::function<ValueId(TestGraph&, ValueId)>& write, size_t missed) {
    TestGraph test;
    const ValueId x = test.parameter("x", {2, 5, 5});
    test.graph().outputs = {write(test, x)};
    const FoundPatterns found = recognisePatterns(test.graph());
    EXPECT_TRUE(found.found.empty());
    EXPECT_EQ(found.missed.size(), missed);
  };
  const auto weight = [](TestGraph& test, const Shape& shape) { return test.parameter("w", shape); };
  // Another axis; several; a weight of rows; one number; the weight of another x.
  for (const std::vector<int64_t>& axes : {std::vector<int64_t>{1}, {1, 2}}) {
    stays(
        [&](TestGraph& t, ValueId x) { return rmsNorm(t, x, weight(t, {5}), Root::kReciprocal, true, axes); },
        0);
  }
  for (const Shape& shape : {Shape{5, 1}, Shape{1}, Shape{5, 5}, Shape{2, 5, 5}})
    stays([&](TestGraph& t, ValueId x) { return rmsNorm(t, x, weight(t, shape), Root::kQuotient); }, 1);
  stays(
      [&](TestGraph& t, ValueId x) {
        const ValueId mean = t.op("ReduceMean", {t.op("Mul", {x, x}), t.integers({-1})});
        return t.op("Mul", {t.op("Sqrt", {mean}), x});  // no epsilon
      },
      0);
  stays(
      [&](TestGraph& t, ValueId x) {  // of one, times another
        const ValueId mean = t.op("ReduceMean", {t.op("Mul", {x, x}), t.integers({-1})});
        const ValueId root =
            t.op("Sqrt", {t.op("Add", {mean, t.constant(makeScalar(DataType::kFloat64, 1))})});
        return t.op("Mul", {t.op("Div", {t.op("Sin", {x}), root}), weight(t, {5})});
      },
      0);
}

TEST(PatternsTest, AnInnerOutputKeepsItsNodes) {
  TestGraph test;
  Expression e(test);
  const ValueId t = e.f("Tanh", cubic(e));
  test.graph().outputs = {e.mul(e.mul(e.x, 0.5), e.add(t, 1)), t};
  const FoundPatterns found = recognisePatterns(test.graph());
  EXPECT_TRUE(found.found.empty());
  ASSERT_EQ(found.missed.size(), 1u);
  EXPECT_THAT(found.missed[0].reason, HasSubstr("is also an output"));
}

// A number that is trained is a weight, however near it is to one half.
TEST(PatternsTest, ATrainedNumberIsNoConstant) {
  TestGraph test;
  Expression e(test);
  const ValueId half = test.parameter("half", makeScalar(DataType::kFloat64, 0.5));
  test.graph().outputs = {e.mul(e.mul(e.x, half), e.add(e.f("Erf", e.div(e.x, std::sqrt(2.0))), 1))};
  EXPECT_TRUE(recognisePatterns(test.graph()).found.empty());
}

// The functions have kernels of float32 and float64.
TEST(PatternsTest, HalvesStay) {
  Graph graph;
  graph.opset_imports = {{"", 20}};
  GraphBuilder builder(graph);
  const auto half = [&](const char* name) { return builder.addValue(name, DataType::kFloat16, {4}); };
  const ValueId x = half("x"), quotient = half("quotient"), erf = half("erf"), own = half("own");
  const ValueId root = builder.addConstant("root", {DataType::kFloat16, {}, std::vector<std::byte>(2)});
  graph.inputs = {x};
  builder.addNode("", "Div", {x, root}, {quotient});
  builder.addNode("", "Erf", {quotient}, {erf});
  builder.addNode("", "Gelu", {x}, {own});
  graph.outputs = {erf, own};
  EXPECT_TRUE(recognisePatterns(graph).found.empty());
}

TEST(PatternsTest, ABroadcastIsNoActivationOfX) {
  TestGraph test;
  Expression e(test);
  const ValueId wide = test.op("Expand", {e.x, test.integers({2, 3, 4})});
  test.graph().outputs = {e.mul(wide, e.f("Sigmoid", e.x))};
  EXPECT_TRUE(recognisePatterns(test.graph()).found.empty());
}

TEST(PatternsTest, ManyAreCountedAndShareTheirFunction) {
  TestGraph test;
  Expression e(test);
  ValueId y = e.x;
  for (int layer = 0; layer < 3; ++layer) y = geluOf(e, e.f("Sin", y));
  test.graph().outputs = {e.mul(y, e.f("Sigmoid", y))};
  const FoundPatterns found = recognisePatterns(test.graph());
  EXPECT_EQ(patternsToString(found), "3 Gelu, 1 Swish: 20 nodes became 7");
  EXPECT_EQ(test.graph().functions.size(), 2u);
}

}  // namespace
}  // namespace pipeshard::testing
