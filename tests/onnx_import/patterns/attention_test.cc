// Attention as exporters and people write it becomes one node, with the same values and gradients; what is
// nearly one stays.
#include <cmath>
#include <functional>
#include <limits>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "onnx_import/patterns/patterns.h"
#include "tests/onnx_import/autodiff/gradient_check.h"
#include "tests/onnx_import/check_model.h"

namespace pipeshard::testing {
namespace {

using ::testing::HasSubstr;
using Ints = std::vector<int64_t>;

constexpr int64_t kBatch = 2, kHeads = 3, kQueries = 4, kKeys = 5, kWidth = 6;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLowest = -3.4028234663852886e38;

// Key j is seen by query i.
bool isCausal(int64_t i, int64_t j) { return j <= i + 1; }

// Writes attention of q, k and v, [batch, heads, queries or keys, width], piece by piece.
class Writer {
 public:
  explicit Writer(TestGraph& test)
      : test_(test),
        q(test.parameter("q", {kBatch, kHeads, kQueries, kWidth})),
        k(test.parameter("k", {kBatch, kHeads, kKeys, kWidth})),
        v(test.parameter("v", {kBatch, kHeads, kKeys, kWidth})) {}

  ValueId number(double value) { return test_.constant(makeScalar(DataType::kFloat64, value)); }
  ValueId op(const char* type, std::vector<ValueId> inputs,
             std::map<std::string, Attribute> attributes = {}) {
    return test_.op(type, std::move(inputs), std::move(attributes));
  }
  ValueId mul(ValueId a, double b) { return op("Mul", {a, number(b)}); }
  ValueId div(ValueId a, double b) { return op("Div", {a, number(b)}); }
  ValueId turned(ValueId x, Ints perm = {0, 1, 3, 2}) { return op("Transpose", {x}, {{"perm", perm}}); }
  ValueId reshaped(ValueId x, Ints shape) { return op("Reshape", {x, test_.integers(shape)}); }
  ValueId scores() { return op("MatMul", {q, turned(k)}); }
  ValueId softmax(ValueId s) { return op("Softmax", {s}, {{"axis", int64_t{-1}}}); }
  ValueId values(ValueId p) { return op("MatMul", {p, v}); }
  ValueId attend(ValueId s) { return values(softmax(s)); }

  ValueId mask(const std::function<bool(int64_t, int64_t)>& seen = isCausal) {
    Constant mask{DataType::kBool, {kQueries, kKeys}, std::vector<std::byte>(kQueries * kKeys)};
    for (int64_t i = 0; i < kQueries; ++i) {
      for (int64_t j = 0; j < kKeys; ++j) mask.bytes[i * kKeys + j] = std::byte(seen(i, j));
    }
    return test_.constant(mask);
  }
  // What is added: 0 where a key is seen.
  ValueId addedMask(double fill) {
    std::vector<double> elements;
    for (int64_t i = 0; i < kQueries; ++i) {
      for (int64_t j = 0; j < kKeys; ++j) elements.push_back(isCausal(i, j) ? 0 : fill);
    }
    return test_.constant(makeConstant<double>({1, 1, kQueries, kKeys}, elements));
  }
  // Of examples: the last key of the first is none.
  ValueId padding() {
    std::vector<double> elements(kBatch * kKeys);
    elements[kKeys - 1] = -1e9;
    return test_.constant(makeConstant<double>({kBatch, 1, 1, kKeys}, elements));
  }
  ValueId bias() { return test_.parameter("bias", {kHeads * kQueries * kKeys}); }
  ValueId temperature() { return test_.parameter("temperature", {kHeads, 1, 1}, 0.5, 1.5); }
  ValueId integers(const Ints& elements) { return test_.integers(elements); }
  ValueId where(ValueId condition, ValueId a, ValueId b) { return op("Where", {condition, a, b}); }
  ValueId withoutNan(ValueId p) { return where(op("IsNaN", {p}), number(0), p); }

 private:
  TestGraph& test_;

 public:
  ValueId q, k, v;
};

struct Form {
  std::string name;
  std::function<ValueId(Writer&)> write;
  std::string overload;
  size_t others = 0;  // nodes beside the attention
};

std::vector<Form> plainForms() {
  using W = Writer;
  const double root = std::sqrt(std::sqrt(1.0 / kWidth)), scale = root * root;
  return {
      {"Unscaled", [](W& w) { return w.attend(w.scores()); }, ""},
      {"Multiplied", [=](W& w) { return w.attend(w.mul(w.scores(), scale)); }, ""},
      {"ScaleFirst",
       [=](W& w) {
         return w.attend(w.op("Mul", {w.number(scale), w.scores()}));
       },
       ""},
      {"Divided", [](W& w) { return w.attend(w.div(w.scores(), std::sqrt(6.0))); }, ""},
      {"ScaledQueries",
       [=](W& w) {
         return w.attend(w.op("MatMul", {w.mul(w.q, scale), w.turned(w.k)}));
       },
       ""},
      {"RootOnBoth",
       [=](W& w) {
         return w.attend(w.op("MatMul", {w.mul(w.q, root), w.mul(w.turned(w.k), root)}));
       },
       ""},
      {"RootBeforeTheTurn",
       [=](W& w) {
         return w.attend(w.op("MatMul", {w.mul(w.q, root), w.turned(w.mul(w.k, root))}));
       },
       "", 1},
      // torch.export's decomposition of scaled_dot_product_attention
      {"TurnedAsMatrices",
       [=](W& w) {
         const ValueId flat = w.reshaped(w.k, {-1, kKeys, kWidth});
         const ValueId turned = w.reshaped(w.turned(flat, {0, 2, 1}), {kBatch, kHeads, kWidth, kKeys});
         return w.attend(w.op("MatMul", {w.mul(w.q, root), w.mul(turned, root)}));
       },
       ""},
      // Heads and axes in one Transpose, of [batch, keys, heads, width].
      {"TurnedWithTheHeads",
       [=](W& w) {
         const ValueId k = w.turned(w.op("Sin", {w.k}), {0, 2, 1, 3});
         return w.attend(w.mul(w.op("MatMul", {w.q, w.turned(k, {0, 2, 3, 1})}), scale));
       },
       "", 3},
      {"KeysFromElsewhere",
       [=](W& w) {
         const ValueId turned = w.op("Cos", {w.turned(w.k)});
         return w.attend(w.mul(w.op("MatMul", {w.q, turned}), scale));
       },
       "", 3},
      // bmm: heads and examples are one axis
      {"ThreeAxes",
       [=](W& w) {
         const auto flat = [&](ValueId x, int64_t rows) { return w.reshaped(x, {-1, rows, kWidth}); };
         const ValueId s = w.op("MatMul", {flat(w.q, kQueries), w.turned(flat(w.k, kKeys), {0, 2, 1})});
         return w.op("MatMul", {w.softmax(w.mul(s, scale)), flat(w.v, kKeys)});
       },
       "", 3},
      {"SafeSoftmax", [=](W& w) { return w.values(w.withoutNan(w.softmax(w.mul(w.scores(), scale)))); },
       "safe"},
  };
}

std::vector<Form> maskedForms() {
  using W = Writer;
  const auto scaled = [](W& w) { return w.mul(w.scores(), 0.4); };
  return {
      {"MaskChooses", [=](W& w) { return w.attend(w.where(w.mask(), scaled(w), w.number(kLowest))); },
       "mask"},
      {"MaskIsInfinite", [=](W& w) { return w.attend(w.where(w.mask(), scaled(w), w.number(-kInfinity))); },
       "mask"},
      // masked_fill
      {"MaskFills",
       [=](W& w) {
         const auto hidden = [](int64_t i, int64_t j) { return !isCausal(i, j); };
         return w.attend(w.where(w.mask(hidden), w.number(-1e9), scaled(w)));
       },
       "mask", 1},
      {"FillIsExpanded",
       [=](W& w) {
         const ValueId fill = w.op("Expand", {w.number(-1e4), w.integers({kQueries, kKeys})});
         return w.attend(w.where(w.mask(), scaled(w), fill));
       },
       "mask"},
      {"MaskIsAdded",
       [=](W& w) {
         return w.attend(w.op("Add", {scaled(w), w.addedMask(kLowest)}));
       },
       "bias"},
      {"MaskIsAddedFirst",
       [=](W& w) {
         return w.attend(w.op("Add", {w.addedMask(-1e9), scaled(w)}));
       },
       "bias"},
      // T5, Swin: what is added is trained.
      {"RelativePositions",
       [=](W& w) {
         return w.attend(w.op("Add", {scaled(w), w.reshaped(w.bias(), {1, kHeads, kQueries, kKeys})}));
       },
       "bias", 1},
      {"CausalAndPadded",
       [=](W& w) {
         const ValueId s = w.where(w.mask(), scaled(w), w.number(kLowest));
         return w.attend(w.op("Add", {s, w.padding()}));
       },
       "mask_bias"},
      {"PaddedAndCausal",
       [=](W& w) {
         const ValueId s = w.op("Add", {scaled(w), w.padding()});
         return w.attend(w.where(w.mask(), s, w.number(kLowest)));
       },
       "bias_mask"},
      // The first row sees nothing: even over all keys, and with a finite fill so are the nodes.
      {"RowThatSeesNothing",
       [=](W& w) {
         const auto seen = [](int64_t i, int64_t) { return i > 0; };
         return w.attend(w.where(w.mask(seen), scaled(w), w.number(kLowest)));
       },
       "mask"},
      {"SafeRowThatSeesNothing",
       [=](W& w) {
         const auto seen = [](int64_t i, int64_t) { return i > 0; };
         return w.values(w.withoutNan(w.softmax(w.where(w.mask(seen), scaled(w), w.number(-kInfinity)))));
       },
       "mask_safe"},
  };
}

std::vector<Form> forms() {
  std::vector<Form> all = plainForms();
  for (const Form& form : maskedForms()) all.push_back(form);
  return all;
}

std::vector<double> valuesOf(TestGraph& test, const std::string& name) {
  return elementsOf(Interpreter(test.graph()).run(test.contents()).at(name));
}

class WrittenAttention : public ::testing::TestWithParam<Form> {};

TEST_P(WrittenAttention, BecomesOneNodeOfTheSameValue) {
  TestGraph test;
  Writer writer(test);
  const ValueId y = GetParam().write(writer);
  const std::string name = test.graph().value(y).name;
  test.graph().outputs = {y};
  const std::vector<double> before = valuesOf(test, name);
  const FoundPatterns found = recognisePatterns(test.graph());
  EXPECT_EQ(found.found, (std::map<PatternKind, int>{{PatternKind::kAttention, 1}}));
  EXPECT_TRUE(found.missed.empty());
  verifyGraph(test.graph());
  checkModel(test.graph());
  EXPECT_EQ(test.graph().nodes.size(), 1 + GetParam().others);
  EXPECT_EQ(test.graph().nodes.back().overload, GetParam().overload);
  const std::vector<double> after = valuesOf(test, name);
  ASSERT_EQ(after.size(), before.size());
  for (size_t i = 0; i < before.size(); ++i) EXPECT_NEAR(after[i], before[i], 1e-12);
}

TEST_P(WrittenAttention, HasTheGradientOfItsDifferences) {
  TestGraph test;
  Writer writer(test);
  const ValueId y = GetParam().write(writer);
  const std::string name = test.graph().value(y).name;
  test.graph().outputs = {y};
  recognisePatterns(test.graph());
  checkGradients(test, {findValue(test.graph(), name)});
}

INSTANTIATE_TEST_SUITE_P(Patterns, WrittenAttention, ::testing::ValuesIn(forms()),
                         [](const auto& info) { return info.param.name; });

struct Near {
  std::string name;
  std::function<ValueId(Writer&)> write;
  std::string reason;  // "": it is nothing like attention
};

std::vector<Near> nearMisses() {
  using W = Writer;
  const auto scaled = [](W& w) { return w.mul(w.scores(), 0.4); };
  return {
      {"Softcap", [=](W& w) { return w.attend(w.mul(w.op("Tanh", {w.div(scaled(w), 30)}), 30)); },
       "lies between the product of queries and keys and the softmax"},
      {"ScaledBehindTheBias",
       [=](W& w) {
         return w.attend(w.mul(w.op("Add", {w.scores(), w.padding()}), 0.4));
       },
       "scaled behind a mask or a bias"},
      {"ScaledBehindTheMask",
       [=](W& w) { return w.attend(w.div(w.where(w.mask(), w.scores(), w.number(-9)), 2)); },
       "scaled behind a mask or a bias"},
      // Swin's windows
      {"MaskThroughAReshape",
       [=](W& w) {
         const ValueId windows = w.reshaped(scaled(w), {1, kBatch, kHeads, kQueries, kKeys});
         const ValueId masked = w.op("Add", {windows, w.addedMask(-100)});
         return w.attend(w.reshaped(masked, {kBatch, kHeads, kQueries, kKeys}));
       },
       "lies between the product of queries and keys and the softmax"},
      {"TwoBiases",
       [=](W& w) {
         return w.attend(w.op("Add", {w.op("Add", {scaled(w), w.padding()}), w.addedMask(-1e9)}));
       },
       "two tensors are added to its scores"},
      {"TwoMasks",
       [=](W& w) {
         const ValueId once = w.where(w.mask(), scaled(w), w.number(-1e9));
         return w.attend(w.where(w.mask([](int64_t, int64_t j) { return j != 2; }), once, w.number(-1e9)));
       },
       "two masks lie over its scores"},
      {"Dropout",
       [=](W& w) {
         return w.values(w.op("Mul", {w.softmax(scaled(w)), w.addedMask(0.5)}));
       },
       "lies between its softmax and the product with the values"},
      {"GroupedHeads",
       [=](W& w) {
         const ValueId one = w.op("Slice", {w.v, w.integers({0}), w.integers({1}), w.integers({1})});
         return w.op("MatMul", {w.softmax(scaled(w)), one});
       },
       "differ in their heads"},
      {"WeightsAreReturned",
       [=](W& w) {
         const ValueId p = w.softmax(scaled(w));
         return w.op("Add", {w.values(p), w.op("ReduceSum", {p, w.integers({-1})})});
       },
       "is also read by"},
      {"ScoresAreReadElsewhere",
       [=](W& w) {
         const ValueId s = scaled(w);
         return w.op("Add", {w.attend(s), w.op("ReduceSum", {s, w.integers({-1})})});
       },
       "is also read by"},
      {"LearnedTemperature",
       [=](W& w) {
         return w.attend(w.op("Mul", {w.scores(), w.temperature()}));
       },
       "lies between the product of queries and keys and the softmax"},
      {"FillIsATensor", [=](W& w) { return w.attend(w.where(w.mask(), scaled(w), w.addedMask(-9))); },
       "lies between the product of queries and keys and the softmax"},
      {"QuotientOfANumber",
       [=](W& w) {
         return w.attend(w.op("Div", {w.number(1), w.scores()}));
       },
       "lies between the product of queries and keys and the softmax"},
      {"OverTheQueries",
       [=](W& w) {
         return w.values(w.op("Softmax", {scaled(w)}, {{"axis", int64_t{-2}}}));
       },
       ""},
      {"NoProductBehind", [=](W& w) { return w.softmax(scaled(w)); }, ""},
      {"NoProductBefore",
       [=](W& w) {
         const ValueId q = w.op("Slice", {w.q, w.integers({0}), w.integers({kKeys}), w.integers({3})});
         return w.attend(w.op("Sin", {q}));
       },
       ""},
  };
}

class NearlyAttention : public ::testing::TestWithParam<Near> {};

TEST_P(NearlyAttention, StaysAsItIs) {
  TestGraph test;
  Writer writer(test);
  test.graph().outputs = {GetParam().write(writer)};
  const size_t nodes = test.graph().nodes.size();
  const FoundPatterns found = recognisePatterns(test.graph());
  EXPECT_TRUE(found.found.empty());
  EXPECT_EQ(test.graph().nodes.size(), nodes);
  ASSERT_EQ(found.missed.size(), GetParam().reason.empty() ? 0u : 1u);
  if (found.missed.empty()) return;
  EXPECT_EQ(found.missed[0].kind, PatternKind::kAttention);
  EXPECT_THAT(found.missed[0].reason, HasSubstr(GetParam().reason));
}

INSTANTIATE_TEST_SUITE_P(Patterns, NearlyAttention, ::testing::ValuesIn(nearMisses()),
                         [](const auto& info) { return info.param.name; });

// A scale that somebody else reads stays where it is, on the queries or on the keys.
TEST(AttentionPatterns, AScaledTensorThatIsReadElsewhereStays) {
  TestGraph test;
  Writer w(test);
  const ValueId q = w.mul(w.q, 0.5);
  const ValueId y = w.attend(w.op("MatMul", {q, w.turned(w.k)}));
  test.graph().outputs = {w.op("Add", {y, q})};
  const std::string name = test.graph().value(test.graph().outputs[0]).name;
  const std::vector<double> before = valuesOf(test, name);
  EXPECT_EQ(recognisePatterns(test.graph()).found.at(PatternKind::kAttention), 1);
  EXPECT_EQ(test.graph().nodes.size(), 3u);
  const std::vector<double> after = valuesOf(test, name);
  for (size_t i = 0; i < before.size(); ++i) EXPECT_NEAR(after[i], before[i], 1e-12);
}

// Self attention and cross attention share a function and their numbers.
TEST(AttentionPatterns, SeveralShareFunctionAndNumbers) {
  TestGraph test;
  Writer w(test);
  const ValueId first = w.attend(w.mul(w.scores(), 0.5));
  const ValueId second = w.attend(w.mul(w.op("MatMul", {first, w.turned(w.k)}), 0.5));
  test.graph().outputs = {second};
  EXPECT_EQ(patternsToString(recognisePatterns(test.graph())), "2 Attention: 10 nodes became 2");
  EXPECT_EQ(test.graph().functions.size(), 1u);
  EXPECT_EQ(test.graph().nodes[0].inputs[3], test.graph().nodes[1].inputs[3]);
}

}  // namespace
}  // namespace pipeshard::testing
