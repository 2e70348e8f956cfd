// Attention as exporters and people write it becomes one node, with the same values and gradients; what is
// nearly one stays.
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/onnx_import/patterns/attention_writer.h"

namespace pipeshard::testing {
namespace {

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
       "", 2},
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
      // It hides whatever it is added to.
      {"HiddenByASum",
       [=](W& w) {
         const ValueId hidden = w.where(w.mask(), w.number(0), w.number(-kInfinity));
         return w.attend(w.op("Add", {scaled(w), hidden}));
       },
       "mask"},
      {"SeenByASum",
       [=](W& w) {
         const auto hidden = [](int64_t i, int64_t j) { return !isCausal(i, j); };
         const ValueId added = w.where(w.mask(hidden), w.number(-kInfinity), w.number(0));
         return w.attend(w.op("Add", {added, scaled(w)}));
       },
       "mask", 1},
      {"LessenedByASum",
       [=](W& w) {
         return w.attend(w.op("Add", {scaled(w), w.where(w.mask(), w.number(0), w.number(-1e9))}));
       },
       "bias", 1},
      {"HiddenTwice",
       [=](W& w) {
         const ValueId added = w.where(w.mask(), w.number(0), w.number(-kInfinity));
         const auto seen = [](int64_t i, int64_t j) { return i != 1 || j != 0; };
         return w.attend(w.where(w.mask(seen), w.op("Add", {scaled(w), added}), w.number(kLowest)));
       },
       "bias_mask", 1},
  };
}

// Masks, and biases or rows that see nothing.
std::vector<Form> combinedForms() {
  using W = Writer;
  const auto scaled = [](W& w) { return w.mul(w.scores(), 0.4); };
  return {
      {"LowestByASum",
       [=](W& w) {
         return w.attend(w.op("Add", {scaled(w), w.where(w.mask(), w.number(0), w.number(kLowest))}));
       },
       "bias", 1},
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
  for (const std::vector<Form>& more : {maskedForms(), combinedForms()})
    all.insert(all.end(), more.begin(), more.end());
  return all;
}

class WrittenAttention : public ::testing::TestWithParam<Form> {};

TEST_P(WrittenAttention, BecomesOneNodeOfTheSameValue) { expectOneNode(GetParam()); }

TEST_P(WrittenAttention, HasTheGradientOfItsDifferences) { expectSlopes(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Patterns, WrittenAttention, ::testing::ValuesIn(forms()),
                         [](const auto& info) { return info.param.name; });

// Something else lies between the scores and the softmax, or behind it.
std::vector<Near> otherScores() {
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
  };
}

// Others read what is between, or shape and axis do not fit.
std::vector<Near> otherUses() {
  using W = Writer;
  const auto scaled = [](W& w) { return w.mul(w.scores(), 0.4); };
  return {
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

std::vector<Near> nearMisses() {
  std::vector<Near> all = otherScores();
  for (const Near& near : otherUses()) all.push_back(near);
  return all;
}

class NearlyAttention : public ::testing::TestWithParam<Near> {};

TEST_P(NearlyAttention, StaysAsItIs) { expectNoAttention(GetParam()); }

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
  expectEqual(valuesOf(test, name), before, 1e-14);
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
