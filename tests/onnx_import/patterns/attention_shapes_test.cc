// Attention whose scores have other axes on their way, whose keys several heads share, to which two tensors
// are added, or behind which is dropout: one node with the same values and gradients; near misses stay.
#include <gtest/gtest.h>

#include "tests/onnx_import/patterns/attention_writer.h"

namespace pipeshard::testing {
namespace {

constexpr int64_t kGroups = 2, kOfAGroup = 3, kGrouped = kGroups * kOfAGroup;

ValueId scaled(Writer& w) { return w.mul(w.scores(), 0.4); }
ValueId add(Writer& w, ValueId a, ValueId b) { return w.op("Add", {a, b}); }
ValueId positions(Writer& w) { return w.reshaped(w.bias(), {1, kHeads, kQueries, kKeys}); }
ValueId unsqueezed(Writer& w, ValueId x, int64_t axis) { return w.op("Unsqueeze", {x, w.integers({axis})}); }

std::vector<Form> addedForms() {
  using W = Writer;
  return {
      // T5: positions, and a mask that is added. The first example's last key is none.
      {"PositionsAndPadding",
       [](W& w) { return w.attend(add(w, add(w, scaled(w), positions(w)), w.padding())); }, "bias_bias", 1},
      {"PositionsAndCausal",
       [](W& w) { return w.attend(add(w, w.addedMask(kLowest), add(w, positions(w), w.scores()))); },
       "bias_bias", 1},
      {"ChosenThenTwoAdded",
       [](W& w) {
         const ValueId s = w.where(w.mask(), scaled(w), w.number(-1e9));
         return w.attend(add(w, add(w, s, positions(w)), w.padding()));
       },
       "mask_bias_bias", 1},
      {"TwoAddedThenChosen",
       [](W& w) {
         const ValueId s = add(w, add(w, scaled(w), positions(w)), w.padding());
         return w.attend(w.where(w.mask(), s, w.number(-1e9)));
       },
       "bias_bias_mask", 1},
      // T5's cross attention has positions that are 0.
      {"ZerosAndPadding",
       [](W& w) {
         const ValueId zeros =
             w.numbers({1, kHeads, kQueries, kKeys}, std::vector<double>(kHeads * kQueries * kKeys));
         return w.attend(add(w, add(w, scaled(w), zeros), w.padding()));
       },
       "bias"},
      {"ZeroParametersAreTrained", [](W& w) { return w.attend(add(w, w.scores(), w.zeroBias())); }, "bias"},
      {"BothAreTrained", [](W& w) { return w.attend(add(w, add(w, scaled(w), positions(w)), w.headBias())); },
       "bias_bias", 1},
  };
}

// [windows of all examples, heads] and back.
ValueId inWindows(Writer& w, ValueId scores) {
  return w.reshaped(scores, {1, kBatch, kHeads, kQueries, kKeys});
}
ValueId outOfWindows(Writer& w, ValueId scores) { return w.reshaped(scores, {-1, kHeads, kQueries, kKeys}); }
ValueId windowMask(Writer& w) {
  std::vector<double> elements;
  for (int64_t i = 0; i < kBatch * kQueries * kKeys; ++i) elements.push_back(i % 3 == 0 ? -100 : 0);
  return w.numbers({1, kBatch, 1, kQueries, kKeys}, elements);
}

std::vector<Form> viewedForms() {
  using W = Writer;
  return {
      // Swin of torchvision: positions, then the windows' mask.
      {"Windows",
       [](W& w) {
         const ValueId s = add(w, scaled(w), positions(w));
         return w.attend(outOfWindows(w, add(w, inWindows(w, s), windowMask(w))));
       },
       "bias_bias", 5},
      {"WindowsByUnsqueeze",
       [](W& w) {
         const ValueId s = unsqueezed(w, w.scores(), 0);
         return w.attend(w.op("Squeeze", {add(w, s, windowMask(w)), w.integers({0})}));
       },
       "bias", 4},
      // A tensor of all windows is viewed, too; that of a single head needs no view.
      {"WindowsAndPadding",
       [](W& w) {
         const ValueId s = add(w, scaled(w), w.padding());
         return w.attend(outOfWindows(w, add(w, inWindows(w, s), windowMask(w))));
       },
       "bias_bias", 5},
      {"WindowsChosen",
       [](W& w) {
         const ValueId hidden = w.op("Less", {windowMask(w), w.number(-1)});
         return w.attend(outOfWindows(w, w.where(hidden, w.number(-1e9), inWindows(w, scaled(w)))));
       },
       "mask", 6},
      // The product is of the finer view.
      {"Merged",
       [](W& w) {
         const ValueId s = w.reshaped(add(w, scaled(w), w.addedMask(-5)), {kBatch * kHeads, kQueries, kKeys});
         const ValueId v = w.reshaped(w.v, {kBatch * kHeads, kKeys, kWidth});
         return w.op("MatMul", {w.softmax(s), v});
       },
       "bias", 1},
      {"ViewsThatDoNothing", [](W& w) { return w.attend(outOfWindows(w, inWindows(w, scaled(w)))); }, "", 4},
  };
}

// Each head as often as queries have it.
ValueId repeated(Writer& w, ValueId x, int64_t rows = kKeys) {
  const ValueId one = unsqueezed(w, x, 2);
  const ValueId more = w.op("Expand", {one, w.integers({kBatch, kGroups, kOfAGroup, rows, kWidth})});
  return w.reshaped(more, {kBatch, kGrouped, rows, kWidth});
}
ValueId groupedScores(Writer& w) { return w.op("MatMul", {w.q, w.turned(repeated(w, w.k))}); }
ValueId groupedValues(Writer& w, ValueId p) { return w.op("MatMul", {p, repeated(w, w.v)}); }
ValueId attendGrouped(Writer& w, ValueId s) { return groupedValues(w, w.softmax(s)); }

std::vector<Form> groupedForms() {
  using W = Writer;
  std::vector<Form> forms = {
      {"Repeated", [](W& w) { return attendGrouped(w, w.mul(groupedScores(w), 0.4)); }, "", 4},
      {"RepeatedAndCausal",
       [](W& w) { return attendGrouped(w, w.where(w.mask(), groupedScores(w), w.number(-kInfinity))); },
       "mask", 4},
      {"RepeatedAndPadded", [](W& w) { return attendGrouped(w, add(w, groupedScores(w), w.padding())); },
       "bias", 5},
      {"RepeatedWithPositions",
       [](W& w) {
         const ValueId bias = w.reshaped(w.bias(kGrouped), {kGrouped, kQueries, kKeys});
         return attendGrouped(w, add(w, add(w, groupedScores(w), bias), w.padding()));
       },
       "bias_bias", 6},
      // torch.export's decomposition, with groups.
      {"RepeatedAndTurnedAsMatrices",
       [](W& w) {
         const ValueId flat = w.reshaped(repeated(w, w.k), {-1, kKeys, kWidth});
         const ValueId turned = w.reshaped(w.turned(flat, {0, 2, 1}), {kBatch, kGrouped, kWidth, kKeys});
         return attendGrouped(w, w.op("MatMul", {w.mul(w.q, 0.6), w.mul(turned, 0.6)}));
       },
       "", 4},
      {"RepeatedIsSafe",
       [](W& w) {
         const auto seen = [](int64_t i, int64_t) { return i > 0; };
         const ValueId s = w.where(w.mask(seen), groupedScores(w), w.number(-kInfinity));
         return groupedValues(w, w.withoutNan(w.softmax(s)));
       },
       "mask_safe", 4},
  };
  for (Form& form : forms) {
    form.heads = kGrouped;
    form.key_heads = kGroups;
  }
  // Multi-query attention: one head of keys for all.
  forms.push_back({"OneHeadOfKeys", [](W& w) { return w.attend(w.mul(w.scores(), 0.4)); }, "", 0, kHeads, 1});
  forms.push_back({"OneHeadOfKeysMasked", [](W& w) { return w.attend(add(w, w.scores(), w.padding())); },
                   "bias", 0, kHeads, 1});
  return forms;
}

// As a Dropout in training mode is lowered; what it keeps is drawn.
ValueId dropped(Writer& w, ValueId p, int64_t heads = kHeads) {
  const ValueId keep = w.kept({kBatch, heads, kQueries, kKeys});
  return w.where(keep, w.mul(p, 1.25), w.number(0));
}

std::vector<Form> droppedForms() {
  using W = Writer;
  return {
      {"Dropped", [](W& w) { return w.values(dropped(w, w.softmax(scaled(w)))); }, "drop"},
      {"DroppedAndMasked",
       [](W& w) {
         return w.values(dropped(w, w.softmax(w.where(w.mask(), scaled(w), w.number(-kInfinity)))));
       },
       "mask_drop"},
      {"DroppedBehindTheSafeSoftmax",
       [](W& w) {
         const auto seen = [](int64_t i, int64_t) { return i > 0; };
         const ValueId p = w.softmax(w.where(w.mask(seen), scaled(w), w.number(-kInfinity)));
         return w.values(dropped(w, w.withoutNan(p)));
       },
       "mask_drop_safe"},
      {"HiddenBehindTheSoftmax",
       [](W& w) { return w.values(w.where(w.mask(), w.softmax(scaled(w)), w.number(0))); }, "drop"},
      {"DroppedInGroups",
       [](W& w) { return groupedValues(w, dropped(w, w.softmax(groupedScores(w)), kGrouped)); }, "drop", 5,
       kGrouped, kGroups},
      {"DroppedInWindows",
       [](W& w) {
         const ValueId s = outOfWindows(w, add(w, inWindows(w, scaled(w)), windowMask(w)));
         return w.values(dropped(w, w.softmax(s)));
       },
       "bias_drop", 5},
  };
}

std::vector<Form> forms() {
  std::vector<Form> all = addedForms();
  for (const auto& more : {viewedForms(), groupedForms(), droppedForms()})
    all.insert(all.end(), more.begin(), more.end());
  return all;
}

class ShapedAttention : public ::testing::TestWithParam<Form> {};

TEST_P(ShapedAttention, BecomesOneNodeOfTheSameValue) { expectOneNode(GetParam()); }
TEST_P(ShapedAttention, HasTheGradientOfItsDifferences) { expectSlopes(GetParam()); }
TEST_P(ShapedAttention, HasTheGradientOfItsNodes) { expectGradientsOfTheNodes(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Patterns, ShapedAttention, ::testing::ValuesIn(forms()),
                         [](const auto& info) { return info.param.name; });

std::vector<Near> nearMisses() {
  using W = Writer;
  return {
      {"ThreeAdded",
       [](W& w) {
         const ValueId two = add(w, add(w, scaled(w), w.padding()), positions(w));
         return w.attend(add(w, two, w.addedMask(-1e9)));
       },
       "three tensors are added to its scores"},
      {"AddedBeforeAndBehindAMask",
       [](W& w) {
         const ValueId s = w.where(w.mask(), add(w, scaled(w), positions(w)), w.number(-1e9));
         return w.attend(add(w, s, w.padding()));
       },
       "a tensor is added to its scores before a mask, and one behind it"},
      {"AViewOfOtherMatrices",
       [](W& w) {
         const ValueId s = w.reshaped(scaled(w), {kBatch, kQueries, kHeads, kKeys});
         return w.attend(w.reshaped(add(w, s, w.number(2)), {kBatch, kHeads, kQueries, kKeys}));
       },
       "lies between the product of queries and keys and the softmax"},
      {"ViewsThatCutEachOther",
       [](W& w) {
         const ValueId s = w.reshaped(scaled(w), {kHeads, kBatch, kQueries, kKeys});
         return w.attend(w.reshaped(add(w, s, w.addedMask(-9)), {kBatch, kHeads, kQueries, kKeys}));
       },
       "its scores are viewed as"},
      {"DroppedToANumber",
       [](W& w) { return w.values(w.where(w.mask(), w.softmax(scaled(w)), w.number(1))); },
       "lies between its softmax and the product with the values"},
      {"WhatIsDroppedIsReadElsewhere",
       [](W& w) {
         const ValueId p = dropped(w, w.softmax(scaled(w)));
         return add(w, w.values(p), w.op("ReduceSum", {p, w.integers({-1})}));
       },
       "is also read by"},
      {"ViewIsReadElsewhere",
       [](W& w) {
         const ValueId s = inWindows(w, scaled(w));
         const ValueId y = w.attend(outOfWindows(w, add(w, s, windowMask(w))));
         return add(w, y, w.op("ReduceSum", {w.op("Squeeze", {s, w.integers({0})}), w.integers({-1})}));
       },
       "is also read by"},
  };
}

class NearlyShaped : public ::testing::TestWithParam<Near> {};

TEST_P(NearlyShaped, StaysAsItIs) { expectNoAttention(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Patterns, NearlyShaped, ::testing::ValuesIn(nearMisses()),
                         [](const auto& info) { return info.param.name; });

// A row that an added mask hides wholly is even; it has a gradient all the same, which a choice would not
// have.
TEST(ShapedAttentions, WhollyMaskedRowsHaveTheirGradient) {
  const Form form = {"",
                     [](Writer& w) {
                       std::vector<double> elements(kQueries * kKeys);
                       for (int64_t j = 0; j < kKeys; ++j) elements[kKeys + j] = kLowest;
                       const ValueId mask = w.numbers({kQueries, kKeys}, elements);
                       return w.attend(add(w, add(w, scaled(w), positions(w)), mask));
                     },
                     "bias_bias", 1};
  expectOneNode(form);
  expectGradientsOfTheNodes(form);
  EXPECT_GT(std::abs(elementsOf(gradientsOf(form, true).at("bias"))[kKeys]), 1e-3);
}

// As eager attention of transformers masks: with the lowest number, by a sum.
TEST(ShapedAttentions, RowsThatALowestNumberHidesHaveTheirGradient) {
  const Form form = {"",
                     [](Writer& w) {
                       const ValueId seen = w.mask([](int64_t i, int64_t) { return i != 1; });
                       const ValueId mask = w.where(seen, w.number(0), w.number(kLowest));
                       return w.attend(add(w, add(w, scaled(w), positions(w)), mask));
                     },
                     "bias_bias", 2};
  expectOneNode(form);
  expectGradientsOfTheNodes(form);
  EXPECT_GT(std::abs(elementsOf(gradientsOf(form, true).at("bias"))[kKeys]), 1e-3);
}

// Keys alone, or otherwise repeated than values: the function gets what the nodes made.
TEST(ShapedAttentions, WhatIsRepeatedOtherwiseStaysRepeated) {
  const Form keys = {"", [](Writer& w) { return w.op("MatMul", {w.softmax(groupedScores(w)), w.v}); }, "", 4};
  TestGraph test;
  Writer w(test, kGrouped, kGroups);
  w.v = test.parameter("all_values", {kBatch, kGrouped, kKeys, kWidth});
  test.graph().outputs = {keys.write(w)};
  const std::string name = test.graph().value(test.graph().outputs[0]).name;
  const std::vector<double> before = valuesOf(test, name);
  EXPECT_EQ(recognisePatterns(test.graph()).found.at(PatternKind::kAttention), 1);
  EXPECT_EQ(test.graph().nodes.size(), 4u);
  expectEqual(valuesOf(test, name), before, 1e-14);
}

}  // namespace
}  // namespace pipeshard::testing
