#include "sharding/spmd/operator_work.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "sharding/spmd/strategy.h"
#include "sharding/spmd/strategy_cost.h"
#include "sharding/spmd/work_count.h"

namespace pipeshard {
namespace {

using Sizes = std::array<int64_t, kSizeCount>;

// A graph of one node.
Graph oneNode(const std::string& op, const std::vector<Shape>& inputs, const Shape& output,
              std::map<std::string, Attribute> attributes = {}) {
  Graph graph;
  graph.opset_imports = {{"", 18}, {"pipeshard", 1}};
  GraphBuilder builder(graph);
  std::vector<ValueId> ids;
  for (const Shape& shape : inputs) ids.push_back(builder.addValue("input", DataType::kFloat32, shape));
  graph.inputs = ids;
  graph.outputs = {builder.addValue("output", DataType::kFloat32, output)};
  builder.addNode("", op, ids, graph.outputs, std::move(attributes));
  return graph;
}

OperatorWork workOf(const Graph& graph) {
  const auto rule = factorRule(graph, graph.nodes[0]);
  return operatorWork(graph, graph.nodes[0], rule, nodeWork(graph, graph.nodes[0], rule));
}

TEST(OperatorWork, OfAProductHasItsFactors) {
  const OperatorWork work = workOf(oneNode("MatMul", {{2, 8, 16}, {16, 32}}, {2, 8, 32}));
  EXPECT_EQ(work.op, "MatMul");
  EXPECT_EQ(work.sizes, (Sizes{1, 16, 32, 16, 1}));
  EXPECT_EQ(work.flops, 16384);
  EXPECT_EQ(work.bytes, 4 * (256 + 512 + 512));
}

TEST(OperatorWork, BatchesOfAProductAreShared) {
  EXPECT_EQ(workOf(oneNode("MatMul", {{2, 3, 8, 16}, {2, 3, 16, 32}}, {2, 3, 8, 32})).sizes,
            (Sizes{6, 8, 32, 16, 1}));
}

TEST(OperatorWork, ABiasThatIsAddedOnceLeavesTheSumASum) {
  EXPECT_EQ(workOf(oneNode("Gemm", {{8, 16}, {16, 32}, {32}}, {8, 32})).sizes, (Sizes{1, 8, 32, 16, 1}));
}

TEST(OperatorWork, TellsBroadcastsAndWholeAxesApart) {
  EXPECT_EQ(workOf(oneNode("Add", {{8, 16}, {8, 16}}, {8, 16})).sizes, (Sizes{128, 1, 1, 1, 1}));
  EXPECT_EQ(workOf(oneNode("Add", {{8, 16}, {16}}, {8, 16})).sizes, (Sizes{16, 8, 1, 1, 1}));
  EXPECT_EQ(workOf(oneNode("Softmax", {{2, 8, 16}}, {2, 8, 16}, {{"axis", int64_t{-1}}})).sizes,
            (Sizes{16, 1, 1, 1, 16}));
}

TEST(OperatorWork, FractionsAreNoAttributes) {
  EXPECT_EQ(
      workOf(oneNode("Transpose", {{8, 16}}, {16, 8}, {{"perm", std::vector<int64_t>{1, 0}}})).attributes,
      "perm=[1,0]");
  EXPECT_EQ(workOf(oneNode("Gemm", {{8, 16}, {16, 32}}, {8, 32}, {{"alpha", 0.5F}, {"transA", int64_t{0}}}))
                .attributes,
            "transA=0");
}

TEST(NodeTime, IsTheMeasuredTimeOfTheDevicesPart) {
  const Graph graph = oneNode("MatMul", {{8, 16}, {16, 32}}, {8, 32});
  const Graph half = oneNode("MatMul", {{8, 16}, {16, 16}}, {8, 16});
  Profile profile;
  profile.points = {{workOf(half), 700, 900}, {workOf(graph), 1000, 1500}};
  const LogicalMesh mesh{{2}};
  CostModel model = CostModel::uniform(mesh);
  model.times = std::make_shared<OperatorTimes>(profile);
  const auto cost = [&](const std::string& uses) {
    return strategyCost(
               graph, graph.nodes[0], mesh,
               *makeStrategy(graph, graph.nodes[0], mesh, parseUses(graph, graph.nodes[0], mesh, uses)),
               model)
        .compute_ns;
  };
  EXPECT_EQ(cost("replicate"), 1000);
  EXPECT_EQ(cost("0:j"), 700);
  model.busy = true;
  EXPECT_EQ(cost("0:j"), 900);
  EXPECT_EQ(countWork(half, mesh, {}, model).compute_ns, 900);
  EXPECT_EQ(workParts(half, {}, model)[0].compute, 900);
}

// No strategy is charged for it, but the device does it.
TEST(WorkParts, CountWhatBringsValuesIntoPlace) {
  Graph graph = oneNode("Neg", {{8, 16}}, {8, 16});
  const LogicalMesh mesh{{1}};
  const CostModel model = CostModel::uniform(mesh);
  const int64_t own = countWork(graph, mesh, {}, model).compute_ns;
  EXPECT_GT(own, 0);
  markPlacing(graph.nodes[0]);
  EXPECT_EQ(countWork(graph, mesh, {}, model).compute_ns, 0);
  EXPECT_EQ(workParts(graph, {}, model)[0].compute, own);
}

TEST(NodeTime, FallsBackToRatesAndViewsAreFree) {
  const Graph graph = oneNode("MatMul", {{8, 16}, {16, 32}}, {8, 32});
  CostModel model;
  model.times = std::make_shared<OperatorTimes>(Profile{});
  EXPECT_EQ(workParts(graph, {}, model)[0].compute, computeCost(model, 8192, 4 * (128 + 512 + 256)));
  Profile profile;
  profile.points = {{{.op = "Identity"}, 50, 0}};
  model.times = std::make_shared<OperatorTimes>(profile);
  EXPECT_EQ(workParts(oneNode("Identity", {{8}}, {8}), {}, model)[0].compute, 0);
}

}  // namespace
}  // namespace pipeshard
