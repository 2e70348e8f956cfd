// A product whose columns are queries, keys and values (or a gate and what it lets through), as exporters
// write it, becomes a product of each: the same values, the same gradients of the same elements. What is no
// such product stays.
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "onnx_import/patterns/patterns.h"
#include "tests/onnx_import/autodiff/gradient_check.h"
#include "tests/onnx_import/check_model.h"

namespace pipeshard::testing {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRows = 2, kTokens = 3, kWidth = 8, kHeads = 2, kOfHead = 4;

// Writes x [2,3,8] through one projection into attention.
class Writer {
 public:
  Writer() : x(test.parameter("x", {kRows, kTokens, kWidth})) {}

  using Values = std::vector<ValueId>;
  ValueId op(const char* type, Values inputs, std::map<std::string, Attribute> attributes = {}) {
    return test.op(type, std::move(inputs), std::move(attributes));
  }
  ValueId reshape(ValueId value, const Shape& shape) { return op("Reshape", {value, test.integers(shape)}); }
  ValueId transpose(ValueId value, const std::vector<int64_t>& order) {
    return op("Transpose", {value}, {{"perm", order}});
  }
  ValueId slice(ValueId value, int64_t from, int64_t to, int64_t axis) {
    return op("Slice", {value, test.integers({from}), test.integers({to}), test.integers({axis})});
  }
  Values split(ValueId value, int64_t axis, int64_t parts) {
    return test.ops("Split", {value}, parts, {{"axis", axis}, {"num_outputs", parts}});
  }

  ValueId weight(int64_t parts = 3) { return test.parameter("w", {kWidth, parts * kWidth}); }
  ValueId turnedWeight() { return transpose(test.parameter("w", {3 * kWidth, kWidth}), {1, 0}); }
  ValueId bias(int64_t parts = 3) { return test.parameter("b", {parts * kWidth}); }
  ValueId linear(int64_t parts = 3) { return op("Add", {op("MatMul", {x, weight(parts)}), bias(parts)}); }

  // [2,3,8] as [2,heads,3,4]
  ValueId heads(ValueId value) {
    return transpose(reshape(value, {kRows, kTokens, kHeads, kOfHead}), {0, 2, 1, 3});
  }
  ValueId attention(ValueId q, ValueId k, ValueId v) {
    const ValueId scores = op("MatMul", {q, transpose(k, {0, 1, 3, 2})});
    return op("MatMul", {op("Softmax", {scores}, {{"axis", int64_t{-1}}}), v});
  }
  ValueId attentionOf(const Values& parts) {
    return attention(heads(parts[0]), heads(parts[1]), heads(parts[2]));
  }
  // timm: [3,2,heads,3,4]
  ValueId headsInFront(ValueId qkv) {
    return transpose(reshape(qkv, {kRows, kTokens, 3, kHeads, kOfHead}), {2, 0, 3, 1, 4});
  }

  TestGraph test;
  ValueId x;
};

struct Form {
  std::string name;
  std::function<ValueId(Writer&)> write;
  bool attends = true;
  Shape weight = {kWidth, 3, kWidth};  // afterwards
};

// Three parts of a weight [8,24].
std::vector<Form> threeParts() {
  using W = Writer;
  return {
      {"Gpt2",
       [](W& w) {
         const ValueId rows = w.reshape(w.x, {kRows * kTokens, kWidth});
         const ValueId qkv =
             w.reshape(w.op("Gemm", {rows, w.weight(), w.bias()}), {kRows, kTokens, 3 * kWidth});
         return w.attentionOf(w.split(qkv, 2, 3));
       }},
      {"Mpt",
       [](W& w) {
         return w.attentionOf(w.split(w.op("MatMul", {w.x, w.weight()}), -1, 3));
       }},
      {"Phi3",
       [](W& w) {
         const ValueId qkv = w.linear();
         const ValueId v = w.slice(qkv, -kWidth, 1000, 2);
         return w.attentionOf({w.slice(qkv, 0, kWidth, 2), w.slice(qkv, kWidth, 2 * kWidth, -1), v});
       }},
      {"Timm",
       [](W& w) {
         const ValueId qkv = w.headsInFront(w.linear());
         std::vector<ValueId> parts;
         for (int64_t i = 0; i < 3; ++i)
           parts.push_back(w.op("Squeeze", {w.slice(qkv, i, i + 1, 0), w.test.integers({0})}));
         return w.attention(parts[0], parts[1], parts[2]);
       }},
      {"TimmUnbound",
       [](W& w) {
         std::vector<ValueId> parts;
         for (const ValueId part : w.split(w.headsInFront(w.linear()), 0, 3))
           parts.push_back(w.reshape(part, {kRows, kHeads, kTokens, kOfHead}));
         return w.attention(parts[0], parts[1], parts[2]);
       }},
      {"MultiheadAttention",
       [](W& w) {
         const ValueId viewed = w.reshape(w.linear(), {kRows, kTokens, 3, kWidth});
         const ValueId turned =
             w.transpose(w.op("Unsqueeze", {viewed, w.test.integers({0})}), {3, 1, 2, 0, 4});
         const ValueId qkv = w.op("Squeeze", {turned, w.test.integers({3})});
         std::vector<ValueId> parts;
         for (const int64_t i : {0, 1, -1})
           parts.push_back(w.op("Gather", {qkv, w.test.constant(makeConstant<int64_t>({}, {i}))},
                                {{"axis", int64_t{0}}}));
         return w.attentionOf(parts);
       }},
      {"RotatedHeads",
       [](W& w) {
         std::vector<ValueId> parts = w.split(w.linear(), 2, 3);
         for (ValueId& part : parts) part = w.heads(part);
         for (size_t i = 0; i < 2; ++i) {
           const ValueId left = w.slice(parts[i], 0, 2, 3), right = w.slice(parts[i], 2, 4, 3);
           const ValueId half = w.op("Concat", {w.op("Neg", {right}), left}, {{"axis", int64_t{3}}});
           parts[i] = w.op("Add", {w.op("Mul", {parts[i], w.op("Cos", {parts[i]})}), half});
         }
         return w.attention(parts[0], parts[1], parts[2]);
       }},
  };
}

// Weights that lie otherwise, and others than queries, keys and values.
std::vector<Form> otherParts() {
  using W = Writer;
  return {
      {"TransposedWeight",
       [](W& w) {
         const ValueId qkv = w.op("Add", {w.bias(), w.op("MatMul", {w.x, w.turnedWeight()})});
         return w.attentionOf(w.split(qkv, 2, 3));
       },
       true,
       {3, kWidth, kWidth}},
      {"TransposingGemm",
       [](W& w) {
         const ValueId rows = w.reshape(w.x, {kRows * kTokens, kWidth});
         const ValueId weight = w.test.parameter("w", {3 * kWidth, kWidth});
         std::vector<ValueId> parts;
         for (const ValueId part :
              w.split(w.op("Gemm", {rows, weight, w.bias()}, {{"transB", int64_t{1}}}), 1, 3))
           parts.push_back(w.reshape(part, {kRows, kTokens, kWidth}));
         return w.attentionOf(parts);
       },
       true,
       {3, kWidth, kWidth}},
      {"KeysAndValues",
       [](W& w) {
         const std::vector<ValueId> parts = w.split(w.linear(2), 2, 2);
         return w.attention(w.heads(w.op("Sin", {w.x})), w.heads(parts[0]), w.heads(parts[1]));
       },
       true,
       {kWidth, 2, kWidth}},
      {"Gate",
       [](W& w) {
         const std::vector<ValueId> parts = w.split(w.linear(2), -1, 2);
         return w.op("Mul", {parts[1], w.op("Softplus", {parts[0]})});
       },
       false,
       {kWidth, 2, kWidth}},
  };
}

std::vector<Form> forms() {
  std::vector<Form> all = threeParts();
  for (const Form& form : otherParts()) all.push_back(form);
  return all;
}

std::map<std::string, std::vector<double>> gradientsOf(TestGraph& test, ValueId loss) {
  std::map<std::string, std::vector<double>> result;
  for (const auto& [name, gradient] : trainAndRun(test, loss).gradients) result[name] = elementsOf(gradient);
  return result;
}

class FusedProjection : public ::testing::TestWithParam<Form> {};

TEST_P(FusedProjection, BecomesAProductOfEachPart) {
  Writer w;
  const ValueId loss = w.test.weightedSum({GetParam().write(w)});
  const std::string name = w.test.graph().value(loss).name;
  w.test.graph().outputs = {loss};
  const auto value = [&] { return elementsOf(Interpreter(w.test.graph()).run(w.test.contents()).at(name)); };
  const std::vector<double> before = value();
  const auto gradients = gradientsOf(w.test, loss);

  const FoundPatterns found = recognisePatterns(w.test.graph());
  std::map<PatternKind, int> expected = {{PatternKind::kFusedProjection, 1}};
  if (GetParam().attends) expected[PatternKind::kAttention] = 1;
  EXPECT_EQ(found.found, expected);
  EXPECT_TRUE(found.missed.empty());
  verifyGraph(w.test.graph());
  giveDivided(w.test);
  EXPECT_EQ(w.test.graph().shape(findValue(w.test.graph(), "w")), GetParam().weight);
  const std::vector<double> after = value();
  for (size_t i = 0; i < before.size(); ++i) EXPECT_NEAR(after[i], before[i], 1e-12);
  const auto divided = gradientsOf(w.test, findValue(w.test.graph(), name));
  ASSERT_EQ(divided.size(), gradients.size());
  for (const auto& [parameter, elements] : gradients) {
    ASSERT_EQ(divided.at(parameter).size(), elements.size());
    for (size_t i = 0; i < elements.size(); ++i)
      EXPECT_NEAR(divided.at(parameter)[i], elements[i], 1e-12) << parameter << " " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Patterns, FusedProjection, ::testing::ValuesIn(forms()),
                         [](const auto& info) { return info.param.name; });

struct Near {
  std::string name;
  std::function<ValueId(Writer&)> write;
  std::string reason = {};  // "": it does not even look like one
};

std::vector<Near> nearMisses() {
  using W = Writer;
  return {
      // Two heads of queries for one of keys: no axis of equal parts.
      {"FewerKeys",
       [](W& w) {
         const ValueId qkv = w.op("MatMul", {w.x, w.test.parameter("w", {kWidth, 4 * kOfHead})});
         const auto one = [&](int64_t from, int64_t heads) {
           const ValueId part = w.slice(qkv, from * kOfHead, (from + heads) * kOfHead, 2);
           return w.transpose(w.reshape(part, {kRows, kTokens, heads, kOfHead}), {0, 2, 1, 3});
         };
         const auto repeated = [&](ValueId head) {
           return w.op("Concat", {head, head}, {{"axis", int64_t{1}}});
         };
         return w.attention(one(0, 2), repeated(one(2, 1)), repeated(one(3, 1)));
       },
       "its parts have 8, 4, 4 columns"},
      {"WeightOfOthers",
       [](W& w) {
         const ValueId weight = w.weight();
         const ValueId y = w.attentionOf(w.split(w.op("MatMul", {w.x, weight}), 2, 3));
         return w.op("Mul", {y, w.op("ReduceSum", {weight})});
       },
       "'w' is also read elsewhere"},
      {"ScaledGemm",
       [](W& w) {
         const ValueId rows = w.reshape(w.x, {kRows * kTokens, kWidth});
         const ValueId qkv = w.op("Gemm", {rows, w.weight(), w.bias()}, {{"alpha", 0.5F}});
         return w.attentionOf(w.split(w.reshape(qkv, {kRows, kTokens, 3 * kWidth}), 2, 3));
       },
       "it is scaled"},
      // A low-rank term beside the product: its columns would have to be divided, too.
      {"Adapted",
       [](W& w) {
         const ValueId low = w.op("MatMul", {w.x, w.test.parameter("down", {kWidth, 2})});
         const ValueId beside = w.op("MatMul", {low, w.test.parameter("up", {2, 3 * kWidth})});
         return w.attentionOf(w.split(w.op("Add", {w.op("MatMul", {w.x, w.weight()}), beside}), 2, 3));
       }},
      // Shift and scale of a normalisation: one product with few rows is cheaper than three.
      {"Modulation",
       [](W& w) {
         const std::vector<ValueId> parts = w.split(w.linear(), 2, 3);
         return w.op("Add", {w.op("Mul", {parts[0], w.x}), w.op("Add", {parts[1], parts[2]})});
       }},
      {"HeadsOutside",  // BLOOM, GPT-NeoX: cut by heads as they are
       [](W& w) {
         const ValueId qkv =
             w.transpose(w.reshape(w.linear(), {kRows, kTokens, kHeads, 3 * kOfHead}), {0, 2, 1, 3});
         const std::vector<ValueId> parts = w.split(qkv, 3, 3);
         return w.attention(parts[0], parts[1], parts[2]);
       }},
      {"UnusedPart",
       [](W& w) {
         const ValueId qkv = w.linear();
         const ValueId k = w.slice(qkv, kWidth, 2 * kWidth, 2);
         return w.attentionOf({w.slice(qkv, 0, kWidth, 2), k, k});
       }},
  };
}

class NearlyAProjection : public ::testing::TestWithParam<Near> {};

TEST_P(NearlyAProjection, StaysAsItIs) {
  Writer w;
  w.test.graph().outputs = {GetParam().write(w)};
  const FoundPatterns found = recognisePatterns(w.test.graph());
  EXPECT_FALSE(found.found.contains(PatternKind::kFusedProjection));
  std::vector<std::string> reasons;
  for (const NearMiss& missed : found.missed) {
    if (missed.kind == PatternKind::kFusedProjection) reasons.push_back(missed.reason);
  }
  ASSERT_EQ(reasons.size(), GetParam().reason.empty() ? 0u : 1u);
  for (const std::string& reason : reasons) EXPECT_THAT(reason, HasSubstr(GetParam().reason));
}

INSTANTIATE_TEST_SUITE_P(Patterns, NearlyAProjection, ::testing::ValuesIn(nearMisses()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace pipeshard::testing
