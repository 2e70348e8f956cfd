// Writes attention as exporters and people do, piece by piece.
#pragma once

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "onnx_import/patterns/patterns.h"
#include "tests/onnx_import/autodiff/gradient_check.h"
#include "tests/onnx_import/check_model.h"

namespace pipeshard::testing {

using Ints = std::vector<int64_t>;

inline constexpr int64_t kBatch = 2, kHeads = 3, kQueries = 4, kKeys = 5, kWidth = 6;
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kLowest = -3.4028234663852886e38;

// Key j is seen by query i.
inline bool isCausal(int64_t i, int64_t j) { return j <= i + 1; }

// Of q, k and v, [batch, heads, queries or keys, width].
class Writer {
 public:
  explicit Writer(TestGraph& test, int64_t heads = kHeads, int64_t key_heads = kHeads)
      : test_(test),
        q(test.parameter("q", {kBatch, heads, kQueries, kWidth})),
        k(test.parameter("k", {kBatch, key_heads, kKeys, kWidth})),
        v(test.parameter("v", {kBatch, key_heads, kKeys, kWidth})) {}

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
  ValueId kept(const Shape& shape) {
    Constant keep{DataType::kBool, shape, std::vector<std::byte>(elementCount(shape))};
    for (size_t i = 0; i < keep.bytes.size(); ++i) keep.bytes[i] = std::byte(i * 7 % 5 != 3);
    return test_.constant(keep);
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
  ValueId bias(int64_t heads = kHeads) { return test_.parameter("bias", {heads * kQueries * kKeys}); }
  ValueId zeroBias() { return test_.parameter("zero_bias", {kQueries, kKeys}, 0, 0); }
  ValueId headBias() { return test_.parameter("head_bias", {kHeads, 1, kKeys}); }
  ValueId numbers(const Shape& shape, const std::vector<double>& elements) {
    return test_.constant(makeConstant<double>(shape, elements));
  }
  ValueId temperature() { return test_.parameter("temperature", {kHeads, 1, 1}, 0.5, 1.5); }
  ValueId integers(const Ints& elements) { return test_.integers(elements); }
  ValueId where(ValueId condition, ValueId a, ValueId b) { return op("Where", {condition, a, b}); }
  ValueId withoutNan(ValueId p) { return where(op("IsNaN", {p}), number(0), p); }

 private:
  TestGraph& test_;

 public:
  ValueId q, k, v;
};

inline std::vector<double> valuesOf(TestGraph& test, const std::string& name) {
  return elementsOf(Interpreter(test.graph()).run(test.contents()).at(name));
}

inline void expectEqual(const std::vector<double>& got, const std::vector<double>& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], tolerance * (1 + std::abs(want[i])));
}

struct Form {
  std::string name;
  std::function<ValueId(Writer&)> write;
  std::string overload;
  size_t others = 0;  // nodes beside the attention
  int64_t heads = kHeads, key_heads = kHeads;
};

struct Near {
  std::string name;
  std::function<ValueId(Writer&)> write;
  std::string reason;  // "": it is nothing like attention
  int64_t heads = kHeads, key_heads = kHeads;
};

// One attention of the same values.
inline void expectOneNode(const Form& form) {
  TestGraph test;
  Writer writer(test, form.heads, form.key_heads);
  const ValueId y = form.write(writer);
  const std::string name = test.graph().value(y).name;
  test.graph().outputs = {y};
  const std::vector<double> before = valuesOf(test, name);
  const FoundPatterns found = recognisePatterns(test.graph());
  EXPECT_EQ(found.found, (std::map<PatternKind, int>{{PatternKind::kAttention, 1}}));
  EXPECT_TRUE(found.missed.empty()) << found.missed[0].reason;
  verifyGraph(test.graph());
  checkModel(test.graph());
  EXPECT_EQ(test.graph().nodes.size(), 1 + form.others);
  for (const Node& node : test.graph().nodes) {
    if (node.domain == kPipeshardDomain) {
      EXPECT_EQ(node.overload, form.overload);
    }
  }
  expectEqual(valuesOf(test, name), before, 1e-14);
}

// The gradients of differences.
inline void expectSlopes(const Form& form) {
  TestGraph test;
  Writer writer(test, form.heads, form.key_heads);
  const ValueId y = form.write(writer);
  const std::string name = test.graph().value(y).name;
  test.graph().outputs = {y};
  recognisePatterns(test.graph());
  checkGradients(test, {findValue(test.graph(), name)});
}

inline std::map<std::string, Constant> gradientsOf(const Form& form, bool with_patterns) {
  TestGraph test;
  Writer writer(test, form.heads, form.key_heads);
  const ValueId y = form.write(writer);
  const std::string name = test.graph().value(y).name;
  test.graph().outputs = {y};
  if (with_patterns) recognisePatterns(test.graph());
  return trainAndRun(test, test.weightedSum({findValue(test.graph(), name)})).gradients;
}

// The gradients of the nodes' own gradient graph.
inline void expectGradientsOfTheNodes(const Form& form) {
  const std::map<std::string, Constant> got = gradientsOf(form, true);
  for (const auto& [name, want] : gradientsOf(form, false)) {
    SCOPED_TRACE(name);
    expectEqual(elementsOf(got.at(name)), elementsOf(want), 1e-14);
  }
}

inline void expectNoAttention(const Near& near) {
  TestGraph test;
  Writer writer(test, near.heads, near.key_heads);
  test.graph().outputs = {near.write(writer)};
  const size_t nodes = test.graph().nodes.size();
  const FoundPatterns found = recognisePatterns(test.graph());
  EXPECT_TRUE(found.found.empty());
  EXPECT_EQ(test.graph().nodes.size(), nodes);
  ASSERT_EQ(found.missed.size(), near.reason.empty() ? 0u : 1u);
  if (found.missed.empty()) return;
  EXPECT_EQ(found.missed[0].kind, PatternKind::kAttention);
  EXPECT_NE(found.missed[0].reason.find(near.reason), std::string::npos) << found.missed[0].reason;
}

}  // namespace pipeshard::testing
