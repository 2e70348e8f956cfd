// The order of nodes: against all topological orders of small graphs, and what it does for cuts.
#include "partition/layers/node_order.h"

#include <algorithm>
#include <numeric>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/graph/training_graph.h"
#include "ir/plan/optimizer.h"
#include "onnx_import/autodiff/training.h"
#include "partition/layers/layer_clustering.h"
#include "partition/layers/layers.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;

bool isTopological(const OrderProblem& problem, const std::vector<int>& order) {
  std::vector<int> place(order.size());
  for (size_t i = 0; i < order.size(); ++i) place[order[i]] = i;
  return std::all_of(problem.values.begin(), problem.values.end(), [&](const OrderProblem::Value& value) {
    return value.maker < 0 || std::all_of(value.readers.begin(), value.readers.end(),
                                          [&](int reader) { return place[value.maker] < place[reader]; });
  });
}

// What orderForCuts minimises, of an order.
int64_t crossingBytes(const OrderProblem& problem, const std::vector<int>& order) {
  std::vector<int64_t> place(order.size());
  for (size_t i = 0; i < order.size(); ++i) place[order[i]] = i;
  int64_t sum = 0;
  for (const OrderProblem::Value& value : problem.values) {
    if (value.readers.empty()) continue;
    int64_t first = INT64_MAX, last = 0;
    for (int reader : value.readers) {
      first = std::min(first, place[reader]);
      last = std::max(last, place[reader]);
    }
    sum += value.bytes * (last - (value.maker < 0 ? first : place[value.maker]));
  }
  return sum;
}

// In lexicographic order, so that the first of the best is the one nearest to the given order.
std::vector<int> bestOfAll(const OrderProblem& problem) {
  std::vector<int> order(problem.nodes), best;
  std::iota(order.begin(), order.end(), 0);
  int64_t least = INT64_MAX;
  do {
    if (!isTopological(problem, order)) continue;
    const int64_t bytes = crossingBytes(problem, order);
    if (bytes >= least) continue;
    least = bytes;
    best = order;
  } while (std::next_permutation(order.begin(), order.end()));
  return best;
}

OrderProblem randomProblem(std::mt19937& random) {
  const auto below = [&](int limit) { return static_cast<int>(random() % static_cast<unsigned>(limit)); };
  OrderProblem problem;
  problem.nodes = 2 + below(6);
  for (int maker = -1; maker < problem.nodes; ++maker) {
    OrderProblem::Value value{maker, {}, below(9)};
    const int likely = 1 + below(4);
    for (int reader = maker + 1; reader < problem.nodes; ++reader) {
      if (below(5) < likely) value.readers.push_back(reader);
    }
    if (maker >= 0 || below(2) == 0) problem.values.push_back(value);
  }
  return problem;
}

TEST(NodeOrderTest, EqualsTheBestOfAllTopologicalOrdersOfRandomGraphs) {
  std::mt19937 random(11);
  int changed = 0;
  for (int trial = 0; trial < 400; ++trial) {
    const OrderProblem problem = randomProblem(random);
    const std::vector<int> got = orderForCuts(problem, 0);
    ASSERT_EQ(got, bestOfAll(problem)) << "trial " << trial;
    if (!std::is_sorted(got.begin(), got.end())) ++changed;
  }
  EXPECT_GT(changed, 80);
}

// Two branches of `length` nodes from inputs of their own, which end in something small, interleaved as they
// were written.
OrderProblem branches(int length) {
  OrderProblem problem;
  problem.nodes = 2 * length + 1;
  for (int node = 0; node < 2 * length; ++node) {
    const bool last = node >= 2 * length - 2;
    problem.values.push_back({node, {last ? 2 * length : node + 2}, last ? 1 : 100});
  }
  return problem;
}

TEST(NodeOrderTest, BranchesStandOneBehindTheOther) {
  const OrderProblem problem = branches(3);
  const std::vector<int> order = orderForCuts(problem);
  EXPECT_THAT(order, ElementsAre(0, 2, 4, 1, 3, 5, 6));
  EXPECT_EQ(crossingBytes(problem, order), 4 * 100 + 4 * 1 + 1);
}

TEST(NodeOrderTest, ManyBranchesAreMoreSetsThanAreKeptAndAreStillNoWorse) {
  OrderProblem problem;  // 12 branches of 6 nodes: 7^12 sets
  problem.nodes = 12 * 6 + 1;
  for (int node = 0; node < 72; ++node)
    problem.values.push_back({node, {node < 60 ? node + 12 : 72}, node < 60 ? 100 : 1});
  std::vector<int> given(73);
  std::iota(given.begin(), given.end(), 0);
  const std::vector<int> order = orderForCuts(problem);
  EXPECT_TRUE(isTopological(problem, order));
  EXPECT_LT(crossingBytes(problem, order), crossingBytes(problem, given) / 3);
}

TEST(NodeOrderTest, ASmallSavingIsNoReasonToChangeTheOrder) {
  OrderProblem problem;  // 0 and 1 both go to 2; the larger one had better be made last
  problem.nodes = 3;
  problem.values = {{0, {2}, 101}, {1, {2}, 100}};
  EXPECT_THAT(orderForCuts(problem), ElementsAre(0, 1, 2));
  EXPECT_THAT(orderForCuts(problem, 0), ElementsAre(1, 0, 2));
}

// x -> two branches a and b of matrix products, each narrowed at its end -> their sum.
Graph twoTowers(bool interleaved) {
  Graph graph;
  graph.opset_imports[""] = 18;
  GraphBuilder builder(graph);
  const auto weight = [&](const std::string& name, Shape shape) {
    const ValueId id = builder.addValue(name, DataType::kFloat32, shape);
    graph.initializers[id] =
        WeightReference{"none", 0, static_cast<uint64_t>(byteCount(DataType::kFloat32, shape))};
    return id;
  };
  std::vector<std::vector<std::pair<ValueId, ValueId>>> tower(2);  // input and weight of each product
  std::vector<ValueId> out(2);
  for (size_t t = 0; t < 2; ++t) {
    out[t] = builder.addValue("in" + std::to_string(t), DataType::kFloat32, {8, 64});
    graph.inputs.push_back(out[t]);
  }
  const auto product = [&](size_t t, int layer) {
    const int64_t width = layer == 3 ? 2 : 64;
    const std::string name = std::to_string(t) + "_" + std::to_string(layer);
    const ValueId next = builder.addValue("h" + name, DataType::kFloat32, {8, width});
    builder.addNode("", "MatMul", {out[t], weight("w" + name, {64, width})}, {next});
    out[t] = next;
  };
  for (int step = 0; step < 8; ++step) {
    if (interleaved) {
      product(step % 2, step / 2);
    } else {
      product(step / 4, step % 4);
    }
  }
  const ValueId difference = builder.addValue("difference", DataType::kFloat32, {8, 2});
  builder.addNode("", "Sub", {out[0], out[1]}, {difference});
  const ValueId loss = builder.addValue("loss", DataType::kFloat32, {});
  builder.addNode("", "ReduceMean", {difference}, {loss}, {{"keepdims", int64_t{0}}});
  graph.outputs.push_back(loss);
  return graph;
}

TrainingGraph train(Graph graph) {
  ForwardGraph forward;
  forward.loss = graph.outputs[0];
  for (ValueId input : graph.inputs) forward.inputs.push_back({input, 0});
  forward.graph = std::move(graph);
  return buildTrainingGraph(std::move(forward), parseOptimizer("sgd:lr=0.1"));
}

TEST(NodeOrderTest, TwoTowersWrittenInterleavedHaveACheaperCutAfterwards) {
  const auto cutOfTwo = [](const Graph& graph) {
    const TrainingGraph training = train(graph);
    const Clustering clustering = clusterTraining(training, {.layers = 2});
    return cutBytes(training, forwardNodes(training))[clustering.ends.front()];
  };
  Graph graph = twoTowers(true);
  EXPECT_EQ(cutOfTwo(graph), 2 * 8 * 64 * 4);
  reorderNodes(graph, nodeOrderForCuts(graph));
  verifyGraph(graph);
  EXPECT_EQ(cutOfTwo(graph), 8 * 2 * 4);
  EXPECT_EQ(cutOfTwo(twoTowers(false)), 8 * 2 * 4);
}

TEST(NodeOrderTest, WeightsAreTransposedRightBeforeTheyAreRead) {
  Graph graph = twoTowers(true);
  GraphBuilder builder(graph);
  const ValueId transposed = builder.addValue("transposed", DataType::kFloat32, {64, 64});
  const NodeId last = builder.addNode("", "Transpose", {graph.nodes[3].inputs[1]}, {transposed});
  graph.nodes[3].inputs[1] = transposed;
  std::rotate(graph.nodes.begin(), graph.nodes.begin() + last.index(), graph.nodes.end());
  verifyGraph(graph);
  reorderNodes(graph, nodeOrderForCuts(graph));
  verifyGraph(graph);
  const UseDef uses = computeUseDef(graph);
  const size_t made = uses.producer[transposed.index()].index();
  EXPECT_EQ(uses.consumers[transposed.index()].at(0).index(), made + 1);
}

// The second call first would cost half: its result is small. It may read a view of the mean.
void expectGivenOrderOfCalls(const char* view) {
  Graph graph;
  graph.opset_imports = {{"", 18}};
  GraphBuilder builder(graph);
  const Shape rows = {8, 64};
  const auto channels = [&](const char* name) {
    return builder.addConstant(name, makeConstant<float>({64}, std::vector<float>(64, 1)));
  };
  const auto add = [&](const char* op, std::vector<ValueId> inputs, const Shape& shape,
                       std::map<std::string, Attribute> attributes = {}) {
    const ValueId output = builder.addValue("v", DataType::kFloat32, shape);
    builder.addNode("", op, std::move(inputs), {output}, std::move(attributes));
    return output;
  };
  const std::vector<ValueId> module = {channels("scale"), channels("shift"), channels("mean"),
                                       channels("var")};
  const auto call = [&](ValueId x, ValueId mean) {
    return add("BatchNormalization", {x, module[0], module[1], mean, module[3]}, rows,
               {{"training_mode", int64_t{1}}});
  };
  graph.inputs = {builder.addValue("x", DataType::kFloat32, rows),
                  builder.addValue("z", DataType::kFloat32, rows)};
  const ValueId made = add("Relu", {graph.inputs[0]}, rows);
  const ValueId first = call(graph.inputs[1], module[2]);
  ValueId mean = module[2];
  if (view != nullptr) {
    const ValueId shape = builder.addConstant("shape", makeConstant<int64_t>({1}, {64}));
    mean = std::string(view) == "Reshape" ? add(view, {mean, shape}, {64}) : add(view, {mean}, {64});
  }
  const ValueId second = call(made, mean);
  const ValueId small = add("ReduceSum", {second}, {1, 1});
  graph.outputs = {add("Mul", {first, small}, rows)};
  reorderNodes(graph, nodeOrderForCuts(graph));
  verifyGraph(graph);
  const UseDef uses = computeUseDef(graph);
  EXPECT_LT(uses.producer[first.index()], uses.producer[second.index()]);
}

TEST(NodeOrderTest, CallsOfOneNormalizationStayInTheGivenOrder) {
  for (const char* view : {static_cast<const char*>(nullptr), "Identity", "Reshape"})
    expectGivenOrderOfCalls(view);
}

}  // namespace
}  // namespace pipeshard
