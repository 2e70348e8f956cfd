#include "sharding/rules/factor_rule.h"

#include <gtest/gtest.h>

#include "tests/sharding/batch/time_model.h"

namespace pipeshard::testing {
namespace {

std::string lastRule(const Model& model) {
  return printFactorRule(*factorRule(model.graph, NodeId(model.graph.nodes.size() - 1)));
}

std::string reshapeRule(const Shape& in, const Shape& wanted, const Shape& out) {
  Model model(1);
  model.op("Reshape", {model.input("x", in), model.integers(wanted)}, out);
  return lastRule(model);
}

TEST(FactorRule, MatMulContractsOneFactor) {
  Model model(8);
  model.op("MatMul", {model.input("x", {8, 16}), model.parameter("w", {16, 32})}, {8, 32});
  EXPECT_EQ(lastRule(model), "i(8) k(16,sum) j(32): [i][k],[k][j] -> [i][j]");
  EXPECT_EQ(nodeFlops(model.graph, NodeId(0)), 2 * 8 * 16 * 32);
}

TEST(FactorRule, GemmWithBiasKeepsItsContractionWhole) {
  Model model(8);
  model.op("Gemm", {model.input("x", {8, 16}), model.parameter("w", {16, 32}), model.parameter("b", {32})},
           {8, 32});
  EXPECT_EQ(lastRule(model), "i(8) k(16,whole) j(32): [i][k],[k][j],[j] -> [i][j]");
}

TEST(FactorRule, ReshapeMergesAndSplitsFactors) {
  EXPECT_EQ(reshapeRule({8, 16, 64}, {-1, 64}, {128, 64}),
            "r0(8) r1(16) r2(64): [r0][r1][r2],[] -> [r0,r1][r2]");
  EXPECT_EQ(
      reshapeRule({6, 4, 5}, {4, 6, 5}, {4, 6, 5}),
      "r0(2) w1(3,whole) w2(2,whole) w3(6,whole) w4(4,whole) r5(5): [r0,w1][w4][r5],[] -> [r0,w2][w3][r5]");
}

TEST(FactorRule, ReshapeFollowsABatchOfOne) {
  EXPECT_EQ(reshapeRule({1, 16, 64}, {-1, 64}, {16, 64}),
            "r0(16) r1(64) u2(1): [u2][r0][r1],[] -> [u2,r0][r1]");
  EXPECT_EQ(reshapeRule({16, 64}, {-1, 16, 64}, {1, 16, 64}),
            "r0(16) r1(64) u2(1): [u2,r0][r1],[] -> [u2][r0][r1]");
  EXPECT_EQ(reshapeRule({1, 16}, {1, -1, 16}, {1, 1, 16}), "r0(16) u1(1): [u1][r0],[] -> [][u1][r0]");
}

TEST(FactorRule, TheLargestOfARowNeedTheRow) {
  Graph graph;
  graph.opset_imports = {{"", 18}};
  GraphBuilder builder(graph);
  const ValueId x = builder.addValue("x", DataType::kFloat32, {4, 6, 8});
  const ValueId k = builder.addConstant("k", makeConstant<int64_t>({1}, {2}));
  const ValueId values = builder.addValue("values", DataType::kFloat32, {4, 2, 8});
  const ValueId places = builder.addValue("places", DataType::kInt64, {4, 2, 8});
  builder.addNode("", "TopK", {x, k}, {values, places}, {{"axis", int64_t{1}}});
  EXPECT_EQ(printFactorRule(*factorRule(graph, NodeId(0))),
            "a0(4) a1(6,whole) a2(8) k(2,whole): [a0][a1][a2],[] -> [a0][k][a2],[a0][k][a2]");
}

TEST(FactorRule, OneHotKnowsItsClasses) {
  Model model(4);
  model.op("OneHot", {model.input("x", {4, 6}), model.integers({5}), model.parameter("values", {2})},
           {4, 6, 5});
  EXPECT_EQ(lastRule(model), "i0(4) i1(6) depth(5,whole): [i0][i1],[],[] -> [i0][i1][depth]");
}

TEST(FactorRule, OperatorsWithoutARuleCountTheirOutputs) {
  Model model(8);
  model.op("Unheard", {model.input("x", {8, 16})}, {8, 2});
  EXPECT_FALSE(factorRule(model.graph, NodeId(0)).has_value());
  EXPECT_EQ(nodeFlops(model.graph, NodeId(0)), 16);
}

}  // namespace
}  // namespace pipeshard::testing
