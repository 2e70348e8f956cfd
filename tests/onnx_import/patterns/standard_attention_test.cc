// ONNX's Attention and those of com.microsoft, prepared as the command does, become the same function; its
// values are those of the nodes that they stand for, and so are its gradients.
#include <gtest/gtest.h>

#include "ir/operators/operator_facts.h"
#include "onnx_import/autodiff/training.h"
#include "onnx_import/prepare/inference.h"
#include "onnx_import/prepare/prepare.h"
#include "tests/onnx_import/patterns/attention_writer.h"

namespace pipeshard::testing {
namespace {

using Attributes = std::map<std::string, Attribute>;

struct Operator {
  std::string name, domain, op_type;
  std::vector<std::optional<Constant>> inputs;
  Attributes attributes;
  std::string overlays;
  int keys_of = 0;  // heads that share keys
};

// sin(1.3 i + phase)
Constant wave(const Shape& shape, double phase) {
  std::vector<double> elements(elementCount(shape));
  for (size_t i = 0; i < elements.size(); ++i) elements[i] = std::sin(1.3 * static_cast<double>(i) + phase);
  return makeTensor(shape, elements);
}

Constant seen(const Shape& shape) {
  Constant mask{DataType::kBool, shape, std::vector<std::byte>(elementCount(shape))};
  for (size_t i = 0; i < mask.bytes.size(); ++i) mask.bytes[i] = std::byte(i % 4 != 2);
  return mask;
}

Constant ids(const Shape& shape, const std::vector<int32_t>& elements) {
  return makeConstant<int32_t>(shape, elements);
}

// (Its body with a mask that is added and is_causal is of float32 alone.)
std::vector<Operator> standardOperators() {
  const Constant q = wave({2, 4, 3, 6}, 0), k = wave({2, 4, 5, 6}, 1), v = wave({2, 4, 5, 2}, 2);
  const Constant shared_k = wave({2, 2, 5, 6}, 1), shared_v = wave({2, 2, 5, 2}, 2);
  const Constant flat_q = wave({2, 3, 24}, 0), flat_k = wave({2, 5, 24}, 1), flat_v = wave({2, 5, 8}, 2);
  const Attributes causal = {{"is_causal", int64_t{1}}};
  const Attributes heads = {{"q_num_heads", int64_t{4}}, {"kv_num_heads", int64_t{4}}};
  return {
      {"Plain", "", "Attention", {q, k, v}, {}, ""},
      {"Scaled", "", "Attention", {q, k, v}, {{"scale", 0.3F}}, ""},
      {"Causal", "", "Attention", {q, k, v}, causal, "bias"},
      {"Added", "", "Attention", {q, k, v, wave({3, 5}, 3)}, {}, "bias"},
      {"AddedForExamples", "", "Attention", {q, k, v, wave({2, 1, 3, 5}, 3)}, {}, "bias"},
      {"Chosen", "", "Attention", {q, k, v, seen({3, 5})}, {}, "bias"},
      {"ThreeAxes", "", "Attention", {flat_q, flat_k, flat_v}, heads, ""},
      {"Groups", "", "Attention", {q, shared_k, shared_v}, {}, "", 2},
      {"GroupsCausal", "", "Attention", {q, shared_k, shared_v}, causal, "bias", 2},
  };
}

std::vector<Operator> microsoftOperators() {
  const char* domain = "com.microsoft";
  const Attributes heads = {{"num_heads", int64_t{2}}};
  Attributes causal = heads;
  causal["unidirectional"] = int64_t{1};
  const Constant x = wave({2, 3, 4}, 0), weights = wave({4, 12}, 1), bias = wave({12}, 2);
  const Constant k = wave({2, 5, 4}, 1), v = wave({2, 5, 6}, 2);
  return {
      {"MicrosoftPlain", domain, "Attention", {x, weights, bias}, heads, ""},
      {"MicrosoftCausal", domain, "Attention", {x, weights, bias}, causal, "mask"},
      {"MicrosoftPadded",
       domain,
       "Attention",
       {x, weights, bias, ids({2, 3}, {1, 0, 1, 1, 1, 0})},
       causal,
       "bias_mask"},
      {"MicrosoftPaddedWithPositions",
       domain,
       "Attention",
       {x, weights, bias, ids({2}, {2, 3}), {}, wave({1, 2, 3, 3}, 3)},
       causal,
       "bias_bias_mask"},
      {"MicrosoftMultiHead", domain, "MultiHeadAttention", {x, k, v}, heads, ""},
      {"MicrosoftMultiHeadWithPositions",
       domain,
       "MultiHeadAttention",
       {x, k, v, {}, ids({2}, {4, 5}), wave({2, 1, 3, 5}, 4)},
       heads,
       "bias_bias"},
      {"MicrosoftGroups",
       domain,
       "GroupQueryAttention",
       {wave({1, 3, 32}, 0), wave({1, 3, 16}, 1), wave({1, 3, 16}, 2), {}, {}, ids({1}, {2}), ids({}, {3})},
       {{"num_heads", int64_t{4}}, {"kv_num_heads", int64_t{2}}},
       "mask",
       2},
  };
}

std::vector<Operator> operators() {
  std::vector<Operator> all = standardOperators();
  const std::vector<Operator> more = microsoftOperators();
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

struct Prepared {
  TestGraph test;
  std::string output;
};

void prepareOperator(const Operator& of, Prepared& prepared) {
  TestGraph& test = prepared.test;
  test.graph().opset_imports = {{"", 23}, {"com.microsoft", 1}};
  std::vector<ValueId> inputs;
  for (const std::optional<Constant>& given : of.inputs) {
    if (!given) {
      inputs.emplace_back();
    } else if (isFloatingPoint(given->data_type)) {
      inputs.push_back(test.parameter("x" + std::to_string(inputs.size()), *given));
    } else {
      inputs.push_back(test.constant(*given));
    }
  }
  const ValueId y = test.builder().addValue("y", DataType::kUndefined, {});
  test.graph().value(y).shape.reset();
  test.builder().addNode(of.domain, of.op_type, inputs, {y}, of.attributes);
  test.graph().outputs = {y};
  prepared.output = "y";
  PrepareOptions options;
  options.supported = [](const Node& node) {
    return hasKernel(node) && hasGradientRule(node.domain, node.op_type);
  };
  test.graph() = prepareModel(test.graph(), options);
}

class StandardAttention : public ::testing::TestWithParam<Operator> {};

TEST_P(StandardAttention, BecomesTheFunction) {
  Prepared prepared;
  prepareOperator(GetParam(), prepared);
  Graph& graph = prepared.test.graph();
  const std::vector<double> before = valuesOf(prepared.test, prepared.output);
  const FoundPatterns found = recognisePatterns(graph);
  EXPECT_TRUE(found.missed.empty()) << found.missed[0].reason;
  std::map<PatternKind, int> expected = {{PatternKind::kAttention, 1}};
  const bool projects = GetParam().domain == "com.microsoft" && GetParam().op_type == "Attention";
  if (projects) expected[PatternKind::kFusedProjection] = 1;
  EXPECT_EQ(found.found, expected);
  verifyGraph(graph);
  giveDivided(prepared.test);
  for (const Node& node : graph.nodes) {
    EXPECT_NE(node.op_type, "Expand");  // keys and values are not copied
    if (node.op_type != "Attention") continue;
    EXPECT_EQ(node.stringAttribute("overlays", ""), GetParam().overlays);
    const Shape query = graph.shape(node.inputs[0]), key = graph.shape(node.inputs[1]);
    EXPECT_EQ(elementCount(Shape(query.begin(), query.end() - 2)),
              elementCount(Shape(key.begin(), key.end() - 2)) * std::max(1, GetParam().keys_of));
  }
  expectEqual(valuesOf(prepared.test, prepared.output), before, 1e-12);
}

std::map<std::string, Constant> gradientsOf(const Operator& of, bool with_patterns) {
  Prepared prepared;
  prepareOperator(of, prepared);
  Graph& graph = prepared.test.graph();
  if (with_patterns) recognisePatterns(graph);
  GraphBuilder builder(graph);
  const ValueId y = findValue(graph, prepared.output);
  const DataType type = graph.dataType(y);
  const ValueId weights = builder.addConstant("weights", wave(graph.shape(y), 5));
  const ValueId weighted = builder.addValue("weighted", type, graph.shape(y));
  const ValueId loss = builder.addValue("loss", type, {});
  builder.addNode("", "Mul", {y, weights}, {weighted});
  builder.addNode("", "ReduceSum", {weighted}, {loss}, {{"keepdims", int64_t{0}}});
  return trainAndRun(prepared.test, loss).gradients;
}

TEST_P(StandardAttention, HasTheGradientOfTheNodes) {
  const std::map<std::string, Constant> got = gradientsOf(GetParam(), true);
  for (const auto& [name, want] : gradientsOf(GetParam(), false)) {
    SCOPED_TRACE(name);
    expectEqual(elementsOf(got.at(name)), elementsOf(want), 1e-12);
  }
}

INSTANTIATE_TEST_SUITE_P(Operators, StandardAttention, ::testing::ValuesIn(operators()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace pipeshard::testing
