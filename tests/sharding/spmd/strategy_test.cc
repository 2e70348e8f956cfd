#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "sharding/spmd/strategy.h"
#include "sharding/spmd/strategy_cost.h"
#include "tests/expect_error.h"
#include "tests/sharding/rules/rule_cases.h"

namespace pipeshard::testing {
namespace {

// A graph of one node; input i is named "input<i>".
class OneNode {
 public:
  explicit OneNode(const std::string& op_type, std::map<std::string, Attribute> attributes = {},
                   const std::string& domain = "")
      : op_type_(op_type), domain_(domain), attributes_(std::move(attributes)) {
    graph_.opset_imports = {{"", 18}, {"pipeshard", 1}};
  }
  OneNode& input(Shape shape, DataType type = DataType::kFloat32) {
    inputs_.push_back(
        GraphBuilder(graph_).addValue("input" + std::to_string(inputs_.size()), type, std::move(shape)));
    graph_.inputs.push_back(inputs_.back());
    return *this;
  }
  OneNode& again(size_t input) {
    inputs_.push_back(inputs_[input]);
    return *this;
  }
  OneNode& constant(Constant constant) {
    inputs_.push_back(GraphBuilder(graph_).addConstant("constant", std::move(constant)));
    return *this;
  }
  OneNode& output(Shape shape, DataType type = DataType::kFloat32) {
    outputs_.push_back(GraphBuilder(graph_).addValue("output", type, std::move(shape)));
    return *this;
  }
  const Graph& graph() {
    if (graph_.nodes.empty()) GraphBuilder(graph_).addNode(domain_, op_type_, inputs_, outputs_, attributes_);
    return graph_;
  }
  const Node& node() { return graph().nodes[0]; }

  // "0:k 1:j" -> "R,S0 S0,S1 -> R,S1;P0"; "none" where the operator cannot do it.
  std::string specs(const std::string& mesh, const std::string& uses) {
    const LogicalMesh logical = parseMesh(mesh);
    const auto strategy = makeStrategy(graph(), node(), logical, parseUses(graph(), node(), logical, uses));
    std::string text;
    for (const ShardingSpec& spec : strategy->inputs) text += printSpec(spec) + " ";
    text += "->";
    for (const ShardingSpec& spec : strategy->outputs) text += " " + printSpec(spec);
    return text;
  }
  std::string all(const std::string& mesh) {
    std::string text;
    for (const Strategy& strategy : strategies(graph(), node(), parseMesh(mesh))) {
      text += (text.empty() ? "" : ", ") + printUses(graph(), node(), strategy.uses);
    }
    return text;
  }

 private:
  std::string op_type_, domain_;
  std::map<std::string, Attribute> attributes_;
  Graph graph_;
  std::vector<ValueId> inputs_, outputs_;
};

OneNode matMul() { return OneNode("MatMul").input({8, 16}).input({16, 32}).output({8, 32}); }

TEST(Strategy, MatMulByTheExampleOfTheHeader) {
  OneNode node = (OneNode("MatMul").input({8, 16}).input({16, 32}).output({8, 32}));
  EXPECT_EQ(node.specs("2x2", "0:k 1:j"), "R,S0 S0,S1 -> R,S1;P0");
  EXPECT_EQ(node.specs("2x2", "1:j 0:k"), "R,S0 S0,S1 -> R,S1;P0");
  EXPECT_EQ(node.specs("2x2", "0:i 1:i"), "S01,R R,R -> S01,R");
  EXPECT_EQ(node.specs("2x2", "0:pass0 1:pass1"), "R,R;P0 R,R;P1 -> R,R;P01");
  EXPECT_EQ(node.specs("2x2", "replicate"), "R,R R,R -> R,R");
  EXPECT_EQ(node.all("4"), "replicate, 0:i, 0:k, 0:j, 0:pass0, 0:pass1");
  EXPECT_EQ(node.all("4x1"), "replicate, 0:i, 0:k, 0:j, 0:pass0, 0:pass1");
}

TEST(Strategy, WhatIsAddedOnceIsAPartialSum) {
  OneNode gemm = (OneNode("Gemm").input({8, 16}).input({16, 32}).input({32}).output({8, 32}));
  EXPECT_EQ(gemm.specs("2x2", "0:k 1:j"), "R,S0 S0,S1 S1;P0 -> R,S1;P0");
  EXPECT_EQ(gemm.specs("2", "0:pass0"), "R,R;P0 R,R R;P0 -> R,R;P0");
  OneNode conv = (OneNode("Conv", {{"kernel_shape", std::vector<int64_t>{1, 1}}})
                      .input({4, 6, 3, 5})
                      .input({2, 6, 1, 1})
                      .input({2})
                      .output({4, 2, 3, 5}));
  EXPECT_EQ(conv.specs("3x2", "0:c 1:f"), "R,S0,R,R S1,S0,R,R S1;P0 -> R,S1,R,R;P0");
}

TEST(Strategy, SumsPassLinearOperators) {
  const Shape shape = {8, 6};
  OneNode add = (OneNode("Add").input(shape).input({6}).output(shape));
  EXPECT_EQ(add.specs("2", "0:pass0"), "R,R;P0 R;P0 -> R,R;P0");
  OneNode square = (OneNode("Mul").input(shape).again(0).output(shape));
  EXPECT_EQ(square.all("2"), "replicate, 0:a0, 0:a1");
  OneNode twice = (OneNode("Add").input(shape).again(0).output(shape));
  EXPECT_EQ(twice.all("2"), "replicate, 0:a0, 0:a1, 0:pass0");
  OneNode relu = (OneNode("Relu").input(shape).output(shape));
  EXPECT_EQ(relu.all("2"), "replicate, 0:a0, 0:a1");
  OneNode integers = (OneNode("Add")
                          .input(shape, DataType::kInt64)
                          .input(shape, DataType::kInt64)
                          .output(shape, DataType::kInt64));
  EXPECT_EQ(integers.all("2"), "replicate, 0:a0, 0:a1");
  OneNode gradient = (OneNode("ReluGrad", {}, "pipeshard").input(shape).input(shape).output(shape));
  EXPECT_EQ(gradient.specs("2x2", "0:a0 1:pass0"), "S0,R;P1 S0,R -> S0,R;P1");
  OneNode scaled = (OneNode("Mul").input(shape).constant(makeScalar(DataType::kFloat32, 2)).output(shape));
  EXPECT_EQ(scaled.all("2"), "replicate, 0:a0, 0:a1, 0:pass0");  // a constant is no partial sum
}

TEST(Strategy, SizesDecide) {
  OneNode odd = (OneNode("Relu").input({3, 5}).output({3, 5}));
  EXPECT_EQ(odd.all("4"), "replicate, 0:a1");
  EXPECT_EQ(odd.all("2x2"), "replicate, 1:a0, 1:a1, 0:a0, 0:a0 1:a1, 0:a1, 0:a1 1:a0, 0:a1 1:a1");
  OneNode merged = (OneNode("Reshape").input({6, 4}).constant(makeConstant<int64_t>({1}, {24})).output({24}));
  EXPECT_EQ(merged.all("3"), "replicate, 0:r0, 0:pass0");
  EXPECT_EQ(merged.all("4"), "replicate, 0:pass0");  // 6 rows do not come apart into 4 equal shares
  EXPECT_EQ(merged.specs("3x2", "0:r0 1:r0"), "S01,R R -> S01");
  OneNode broadcast = (OneNode("Add").input({4, 1}).input({1, 6}).output({4, 6}));
  EXPECT_EQ(broadcast.specs("2x2", "0:a0 1:a1"), "S0,R R,S1 -> S0,S1");
}

// Rows are shared unevenly, and heads evenly, by one mesh: an axis of both is cut as the first of them is.
TEST(Strategy, MergedRowsAreCutBetweenRows) {
  OneNode rows = (OneNode("Reshape").input({6, 4}).constant(makeConstant<int64_t>({1}, {24})).output({24}));
  OneNode heads =
      (OneNode("Reshape").input({3, 48}).constant(makeConstant<int64_t>({3}, {3, 6, 8})).output({3, 6, 8}));
  const auto can = [](OneNode& node, const LogicalMesh& mesh, int factor) {
    return makeStrategy(node.graph(), node.node(), mesh, {{AxisUse::Kind::kFactor, factor}}).has_value();
  };
  EXPECT_TRUE(can(rows, {{4}, 6}, 0));
  EXPECT_FALSE(can(rows, {{4}}, 0));
  EXPECT_FALSE(can(rows, {{4}, 6, {24}}, 0));
  EXPECT_TRUE(can(rows, {{3}, 6, {24}}, 0));  // equal parts, wherever they are cut
  EXPECT_TRUE(can(heads, {{2}, 3, {6, 48}}, 1));
  EXPECT_FALSE(can(heads, {{2}, 3, {48}}, 1));
}

TEST(Strategy, MeansAreCutWhereTheShareIsKnown) {
  OneNode mean = (OneNode("ReduceMean").input({6, 4}).output({1, 1}));
  EXPECT_EQ(mean.specs("2x2", "0:a0 1:a1"), "S0,S1 -> R,R;P01");
  const auto loss = [](std::map<std::string, Attribute> attributes) {
    return std::move(OneNode("SoftmaxCrossEntropyLoss", std::move(attributes))
                         .input({8, 5})
                         .input({8}, DataType::kInt64)
                         .output({})
                         .output({8, 5}));
  };
  OneNode plain = loss({});
  EXPECT_EQ(plain.specs("2", "0:a0"), "S0,R S0 -> -;P0 S0,R");
  OneNode ignoring = loss({{"ignore_index", int64_t{1}}});
  // What the labels of a part weigh is exchanged: nothing is left to be summed but the parts of the loss.
  EXPECT_EQ(ignoring.specs("2", "0:a0"), "S0,R S0 -> -;P0 S0,R");
  OneNode largest =
      (OneNode("ReduceMax").input({6, 4}).constant(makeConstant<int64_t>({1}, {1})).output({6, 1}));
  // maxima are exchanged: there are no partial ones
  EXPECT_EQ(largest.specs("2x2", "0:a0 1:a1"), "S0,S1 R -> S0,R");
  OneNode integers = (OneNode("ReduceSum").input({6}, DataType::kInt64).output({1}, DataType::kInt64));
  EXPECT_EQ(integers.all("2"), "replicate");
}

TEST(Strategy, RandomNumbersAreDrawnWhole) {
  OneNode evaluation = (OneNode("Dropout").input({8, 6}).output({8, 6}));
  EXPECT_EQ(evaluation.all("2"), "replicate, 0:a0, 0:a1, 0:pass0");
  OneNode training = (OneNode("Dropout").input({8, 6}).constant(makeScalar(DataType::kFloat32, 0.5)));
  training.constant({DataType::kBool, {}, {std::byte{1}}}).output({8, 6});
  EXPECT_EQ(training.all("2"), "replicate");
}

TEST(Strategy, AnOperatorWithoutARuleRunsReplicated) {
  OneNode unknown = (OneNode("NonZero").input({8}).output({1, 8}, DataType::kInt64));
  EXPECT_EQ(unknown.all("2x2"), "replicate");
}

TEST(Strategy, TextThatIsNoStrategyIsRefused) {
  OneNode node = matMul();
  const auto parse = [&](const std::string& text) {
    parseUses(node.graph(), node.node(), parseMesh("2x2"), text);
  };
  const auto fails = [&](const std::string& text, const std::string& reason) {
    EXPECT_ERROR(parse(text), ErrorCode::kConfiguration, reason);
  };
  fails("", "it is empty");
  fails("0:q", "it has no factor \"q\"");
  fails("k", "does not start with a mesh axis");
  fails("2:k", "there is no mesh axis 2");
  fails("0:k 0:j", "names mesh axis 0 twice");
  fails("0:q", "It can: i (8), k (16), j (32), pass0, pass1");
  OneNode odd = (OneNode("Relu").input({3, 5}).output({3, 5}));
  EXPECT_ERROR(parseUses(odd.graph(), odd.node(), parseMesh("4"), "0:a0"), ErrorCode::kConfiguration,
               "cannot be shared so");
}

TEST(Strategy, CostIsThatOfTheLargestShard) {
  const LogicalMesh mesh = parseMesh("3x2");
  const CostModel model = CostModel::uniform(mesh);
  OneNode node = matMul();
  const auto cost = [&](const std::string& uses) {
    const auto strategy =
        makeStrategy(node.graph(), node.node(), mesh, parseUses(node.graph(), node.node(), mesh, uses));
    return strategyCost(node.graph(), node.node(), mesh, *strategy, model);
  };
  const auto time = [&](double i, double k, double j) {
    return computeCost(model, 2 * i * k * j, 4 * (i * k + k * j + i * j));
  };
  EXPECT_EQ(cost("replicate").compute_ns, time(8, 16, 32));
  EXPECT_EQ(cost("0:pass0 1:pass1").compute_ns, time(8, 16, 32));
  EXPECT_EQ(cost("0:i 1:j").compute_ns, time(3, 16, 16));
  EXPECT_EQ(cost("0:k 1:k").compute_ns, time(8, 3, 32));
  EXPECT_EQ(cost("0:k 1:k").communication_ns, 0);
  OneNode view = (OneNode("Identity").input({8, 6}).output({8, 6}));
  EXPECT_EQ(
      strategyCost(view.graph(), view.node(), mesh, strategies(view.graph(), view.node(), mesh)[0], model)
          .total(),
      0);
}

// All strategies of all operators: specs that the tensors can have, text that reads back, in an order without
// repetitions.
TEST(Strategy, OfEveryOperatorFitsItsTensors) {
  for (const RuleCase& rule_case : ruleCases()) {
    const Graph graph = caseGraph(rule_case);
    const Node& node = graph.nodes[0];
    for (const char* text : {"2", "3", "2x2", "1x2", "2x3"}) {
      const LogicalMesh mesh = parseMesh(text);
      SCOPED_TRACE(rule_case.name + " on " + text);
      const std::vector<Strategy> all = strategies(graph, node, mesh);
      ASSERT_FALSE(all.empty());
      EXPECT_EQ(printUses(graph, node, all[0].uses), "replicate");
      std::set<std::vector<AxisUse>> seen;
      for (const Strategy& strategy : all) {
        EXPECT_TRUE(seen.insert(strategy.uses).second);
        EXPECT_EQ(parseUses(graph, node, mesh, printUses(graph, node, strategy.uses)), strategy.uses);
        ASSERT_EQ(strategy.inputs.size(), node.inputs.size());
        ASSERT_EQ(strategy.outputs.size(), node.outputs.size());
        for (size_t i = 0; i < node.inputs.size(); ++i) {
          if (!node.inputs[i].valid()) continue;
          EXPECT_EQ(specFault(strategy.inputs[i], graph.shape(node.inputs[i]), mesh), "");
        }
        for (size_t o = 0; o < node.outputs.size(); ++o) {
          if (!node.outputs[o].valid()) continue;
          EXPECT_EQ(specFault(strategy.outputs[o], graph.shape(node.outputs[o]), mesh), "");
        }
      }
    }
  }
}

}  // namespace
}  // namespace pipeshard::testing
