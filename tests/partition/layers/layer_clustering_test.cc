// Layer clustering: the dynamic program against brute force; blocks and layers of real models.
#include "partition/layers/layer_clustering.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/graph/training_graph.h"
#include "ir/plan/optimizer.h"
#include "onnx_import/autodiff/training.h"
#include "partition/cut/node_stages.h"
#include "partition/layers/chain.h"
#include "partition/layers/layers.h"
#include "sharding/stage/repeats.h"
#include "tests/expect_error.h"
#include "tests/sharding/example_model.h"
#include "tests/sharding/stage_models.h"

namespace pipeshard {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// ---- clusterLayers against all ways to cut ----

using Score = std::tuple<int64_t, int64_t, int64_t, std::vector<int64_t>>;

std::optional<Score> score(const ClusteringProblem& problem, const std::vector<int64_t>& ends) {
  int64_t total = 0, largest = 0, sum = 0, squares = 0, first = 0;
  for (int64_t flops : problem.flops) total += flops;
  for (int64_t end : ends) {
    int64_t flops = 0;
    for (int64_t i = first; i <= end; ++i) flops += problem.flops[i];
    if (static_cast<double>(flops * problem.layers) > (1 + problem.tolerance) * static_cast<double>(total))
      return std::nullopt;
    if (static_cast<double>(flops * problem.layers) < (1 - problem.tolerance) * static_cast<double>(total))
      return std::nullopt;
    squares += flops * flops;
    first = end + 1;
    if (end == ends.back()) continue;
    if (!problem.may_end.empty() && !problem.may_end[end]) return std::nullopt;
    largest = std::max(largest, problem.cut_bytes[end]);
    sum += problem.cut_bytes[end];
  }
  return Score{largest, sum, squares, ends};
}

void enumerate(const ClusteringProblem& problem, std::vector<int64_t>& ends, std::optional<Score>& best) {
  const auto count = std::ssize(problem.flops);
  const auto left = problem.layers - std::ssize(ends);
  for (int64_t end = left == 1 ? count - 1 : ends.empty() ? 0 : ends.back() + 1; end <= count - left; ++end) {
    ends.push_back(end);
    if (left > 1) {
      enumerate(problem, ends, best);
    } else if (const auto found = score(problem, ends); found && (!best || *found < *best)) {
      best = found;
    }
    ends.pop_back();
  }
}

TEST(LayerClusteringTest, ClusterLayersEqualsBruteForceOnRandomInstances) {
  std::mt19937 random(7);
  const auto upTo = [&](int most) {
    return static_cast<int64_t>(random() % static_cast<unsigned>(most + 1));
  };
  int solved = 0, unsolved = 0;
  for (int trial = 0; trial < 800; ++trial) {
    ClusteringProblem problem;
    const auto count = 1 + upTo(9);
    problem.layers = 1 + upTo(static_cast<int>(std::min<int64_t>(count, 5)) - 1);
    problem.tolerance = std::vector<double>{0, 0.25, 0.5, 1, 3}[upTo(4)];
    const int flops = upTo(1) == 0 ? 2 : 20;
    const bool limited = upTo(1) == 0;
    for (int64_t i = 0; i < count; ++i) {
      problem.flops.push_back(upTo(flops));
      problem.cut_bytes.push_back(i + 1 == count ? 0 : upTo(4));
      if (limited) problem.may_end.push_back(upTo(3) > 0);
    }
    std::vector<int64_t> ends;
    std::optional<Score> best;
    enumerate(problem, ends, best);
    const LayerEnds got = clusterLayers(problem);
    ASSERT_EQ(got, best ? std::get<3>(*best) : std::vector<int64_t>{}) << "trial " << trial;
    ++(best ? solved : unsolved);
  }
  EXPECT_GT(solved, 300);
  EXPECT_GT(unsolved, 50);
}

TEST(LayerClusteringTest, NumbersNearTheLargestDoNotOverflow) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max() / 4;
  EXPECT_THAT(clusterLayers({{kHuge, kHuge, kHuge, kHuge}, {1, 1, 1, 0}, {}, 2, 0.5}), ElementsAre(1, 3));
  EXPECT_THAT(clusterLayers({{kHuge, kHuge, kHuge, kHuge}, {1, 1, 1, 0}, {}, 3, 0.2}), IsEmpty());
}

TEST(LayerClusteringTest, TheLargestCutCountsBeforeTheSum) {
  // Cuts {0,2}: 5 and 5; cuts {1,3}: 6 and 0.
  EXPECT_THAT(clusterLayers({{1, 1, 1, 1, 1}, {5, 6, 5, 0, 0}, {}, 3, 2}), ElementsAre(0, 3, 4));
  EXPECT_THAT(clusterLayers({{1, 1, 1, 1, 1}, {5, 6, 5, 9, 0}, {}, 3, 2}), ElementsAre(0, 2, 4));
}

// A head that is larger than a layer may be: masks before the blocks, where little crosses, and the loss
// behind it are no layers of their own.
TEST(LayerClusteringTest, OneLargeOperatorLeavesTheOthersEven) {
  const ClusteringProblem problem{
      {0, 0, 10, 10, 10, 10, 10, 10, 10, 10, 100, 1}, {1, 1, 5, 5, 5, 5, 5, 5, 5, 5, 9, 0}, {}, 5, 0.5};
  EXPECT_THAT(clusterLayers(problem), IsEmpty());
  EXPECT_THAT(clusterAsEvenlyAsPossible(problem), ElementsAre(3, 5, 7, 9, 11));
}

// ---- repeats ----

TEST(RepeatsTest, TheHeaviestRunIsFoundWithItsExtent) {
  const RepeatedRun run = heaviestRun({9, 1, 2, 1, 2, 1}, {1, 1, 1, 1, 1, 1}, 2);
  EXPECT_EQ(run.begin, 1U);
  EXPECT_EQ(run.period, 2U);
  EXPECT_EQ(run.repeats, 2U);
  EXPECT_EQ(run.extent, 5U);
  // Two heavy ones outweigh three light ones.
  EXPECT_EQ(heaviestRun({1, 1, 1, 2, 3, 2, 3}, {1, 1, 1, 5, 5, 5, 5}, 1).begin, 3U);
  EXPECT_EQ(heaviestRun({1, 2, 3, 4}, {1, 1, 1, 1}, 1).repeats, 0U);
}

TEST(LayerClusteringTest, BlocksOfATransformerAreFoundByStructureAndAreLayersOfOneKind) {
  const TrainingGraph training =
      testing::gpt({.layers = 24, .batch = 2, .sequence = 32, .hidden = 64, .heads = 4, .vocabulary = 100});
  const std::vector<NodeId> forward = forwardNodes(training);
  const Clustering clustering = clusterTraining(training, {});
  EXPECT_EQ(clustering.blocks.blocks, 24);
  ASSERT_THAT(clustering.ends, SizeIs(24));
  EXPECT_EQ(clustering.ends.back(), std::ssize(forward) - 1);
  EXPECT_THAT(clustering.notes, IsEmpty());
  // No layer of next to nothing where cuts are cheapest, behind the inputs and before the loss.
  const LayerEnds four = clusterTraining(training, {.layers = 4}).ends;
  EXPECT_GE(four.front() + 1, 6 * clustering.blocks.length);
  // The first has the embedding, the last the loss.
  const std::vector<int> inner(clustering.kinds.begin() + 1, clustering.kinds.end() - 1);
  EXPECT_THAT(inner, Each(inner[0]));
  EXPECT_NE(clustering.kinds.front(), inner[0]);
  EXPECT_NE(clustering.kinds.back(), inner[0]);
  EXPECT_NE(clustering.kinds.back(), clustering.kinds.front());
}

TEST(LayerClusteringTest, MoreBlocksThanLayersAreLayersOfSeveralBlocks) {
  const TrainingGraph training =
      testing::gpt({.layers = 20, .batch = 2, .sequence = 32, .hidden = 64, .heads = 4});
  const Clustering automatic = clusterTraining(training, {.most_layers = 16});
  EXPECT_THAT(automatic.ends, SizeIs(10));
  const Clustering given = clusterTraining(training, {.layers = 5});
  EXPECT_THAT(given.ends, SizeIs(5));
  EXPECT_THAT(given.notes, IsEmpty());
  EXPECT_EQ(given.kinds[LayerId(1)], given.kinds[LayerId(2)]);
  // 20 blocks are not 24 layers.
  const Clustering finer = clusterTraining(training, {.layers = 24});
  EXPECT_THAT(finer.ends, SizeIs(24));
  EXPECT_THAT(finer.notes, ElementsAre(HasSubstr("end inside of repeated blocks")));
}

TEST(LayerClusteringTest, FewBlocksAreCutWhereThatCostsNoMoreThanBetweenThem) {
  const TrainingGraph training =
      testing::gpt({.layers = 4, .batch = 2, .sequence = 32, .hidden = 64, .heads = 4});
  const Clustering clustering = clusterTraining(training, {});
  ASSERT_THAT(clustering.ends, SizeIs(8));  // attention and feed-forward apart
  const std::vector<int64_t> cuts = cutBytes(training, forwardNodes(training));
  for (const LayerId l : idsBelow<LayerId>(clustering.ends.size() - 1)) {
    EXPECT_EQ(cuts[clustering.ends[l]], 2 * 32 * 64 * 4) << l.index();
  }
  EXPECT_EQ(clustering.kinds[LayerId(2)], clustering.kinds[LayerId(4)]);
  EXPECT_EQ(clustering.kinds[LayerId(1)], clustering.kinds[LayerId(3)]);
  EXPECT_NE(clustering.kinds[LayerId(2)], clustering.kinds[LayerId(3)]);
}

// Images shrink on the way, so cuts cost ever less: the cheap ones alone would leave a few layers at the end.
TEST(LayerClusteringTest, ConvolutionalNetworksHaveEnoughLayersForStages) {
  const TrainingGraph training =
      buildTrainingGraph(testing::exampleForward("resnet.onnx", 4), parseOptimizer("sgd:lr=0.1"));
  const LayerEnds ends = clusterTraining(training, {}).ends;
  ASSERT_THAT(ends, SizeIs(16));
  const std::vector<int64_t> flops = forwardFlops(training, forwardNodes(training));
  const int64_t total = std::accumulate(flops.begin(), flops.end(), int64_t{0});
  int64_t first = 0;
  for (const int64_t end : ends) {
    EXPECT_LE(sumOver(flops, first, end), total / 8) << end;
    first = end + 1;
  }
}

TEST(LayerClusteringTest, KindsTellParameterShapesAndWiringApart) {
  // Six products; the third reads the first's output beside the second's, and the fourth is wider.
  testing::StageModel model;
  ValueId x = model.input("x", {8, 16});
  std::vector<ValueId> made = {x};
  for (int i = 0; i < 6; ++i) {
    const ValueId weight = model.parameter("w" + std::to_string(i), {16, 16});
    const ValueId product = model.op("MatMul", {made.back(), weight}, {8, 16});
    made.push_back(model.op("Add", {product, i == 2 ? made[1] : made.back()}, {8, 16}));
  }
  const TrainingGraph training = model.finish(model.op(
      "ReduceSum", {model.op("Mul", {made.back(), made.back()}, {8, 16})}, {}, {{"keepdims", int64_t{0}}}));
  const Clustering clustering = clusterTraining(training, {.layers = 6});
  EXPECT_THAT(clustering.ends, ElementsAre(1, 3, 5, 7, 9, 13));
  // 0: what it makes is read behind the next layer; 1: what it makes is read once, so that no gradients are
  // added up; 2: reads from layer 0; 5: the loss.
  EXPECT_THAT(clustering.kinds, ElementsAre(0, 1, 2, 3, 3, 4));
}

TEST(LayerClusteringTest, WhatOnlyAWeightGoesIntoIsCutFromNoReader) {
  // The head of a tied embedding as exporters write it: [4,8] times the transposed [64,8], all of the work.
  testing::StageModel model;
  ValueId x = model.input("x", {4, 8});
  for (int i = 0; i < 3; ++i) x = model.op("Relu", {x}, {4, 8});
  const ValueId weight =
      model.op("Transpose", {model.parameter("w", {64, 8})}, {8, 64}, {{"perm", std::vector<int64_t>{1, 0}}});
  const ValueId logits = model.op("MatMul", {x, weight}, {4, 64});
  const TrainingGraph training =
      model.finish(model.op("ReduceSum", {logits}, {}, {{"keepdims", int64_t{0}}}));
  const std::vector<NodeId> forward = forwardNodes(training);
  const auto transpose = std::find_if(forward.begin(), forward.end(),
                                      [&](NodeId node) { return training.graph.node(node).is("Transpose"); });
  const int64_t position = transpose - forward.begin();
  const std::vector<int64_t> flops = forwardFlops(training, forward);
  EXPECT_EQ(flops.at(position), 0);
  for (const int layers : {2, 3})
    EXPECT_THAT(formLayers(flops, cutBytes(training, forward), layers), Not(Contains(position))) << layers;
}

// A batch normalisation of two towers: its running mean goes from one use to the other.
TEST(LayerClusteringTest, NoLayerEndsBetweenTwoUsesOfAStatistic) {
  TrainingGraph training =
      testing::gpt({.layers = 6, .batch = 2, .sequence = 32, .hidden = 64, .heads = 4, .vocabulary = 100});
  const std::vector<NodeId> forward = forwardNodes(training);
  LayerEnds ends = clusterTraining(training, {.most_layers = 6}).ends;
  ASSERT_THAT(ends, SizeIs(6));
  const Node& reader = training.graph.node(forward[ends[LayerId(0)] + 2]);
  const Node& updater = training.graph.node(forward[ends[LayerId(2)] + 2]);
  training.forward_states.push_back({reader.inputs[0], updater.outputs[0]});
  EXPECT_THAT(clusterTraining(training, {.most_layers = 6}).ends,
              ElementsAre(ends[LayerId(0)], ends[LayerId(3)], ends[LayerId(4)], ends[LayerId(5)]));
}

TEST(LayerClusteringTest, MoreLayersThanNodesAreRefused) {
  const TrainingGraph training = testing::twoLayers({.batch = 4, .width = 8});
  EXPECT_ERROR(clusterTraining(training, {.layers = 1000}), ErrorCode::kConfiguration, "--layers 1000");
}

// ---- real models ----

struct Example {
  const char* name;
  int64_t rows;
};
class ExampleLayersTest : public ::testing::TestWithParam<Example> {};

TEST_P(ExampleLayersTest, BackwardNodesFollowTheirForwardLayersAtEveryCut) {
  const TrainingGraph training = buildTrainingGraph(testing::exampleForward(GetParam().name, GetParam().rows),
                                                    parseOptimizer("sgd:lr=0.1"));
  const auto count = std::ssize(forwardNodes(training));
  const UseDef uses = computeUseDef(training.graph);
  for (int layers : {0, 2, 3, 5, 8}) {
    if (layers > count) continue;
    const Clustering clustering = clusterTraining(training, {.layers = layers});
    if (layers > 0) {
      EXPECT_THAT(clustering.ends, SizeIs(layers));
    }
    ASSERT_EQ(clustering.kinds.size(), clustering.ends.size());
    ASSERT_TRUE(std::is_sorted(clustering.ends.begin(), clustering.ends.end()));
    ASSERT_EQ(clustering.ends.back(), count - 1);
    Plan plan;
    int64_t first = 0;
    for (const LayerId l : clustering.ends.ids()) {
      plan.layers.push_back({"", "", first, clustering.ends[l], 0});
      first = clustering.ends[l] + 1;
      StagePlan stage;
      stage.first_layer = stage.last_layer = l;
      stage.devices = {RankId(l.index())};
      stage.mesh_shape = {1, 1};
      plan.stages.push_back(stage);
    }
    const std::vector<StageId> stages = nodeStages(training, plan);
    for (size_t n = 0; n < stages.size(); ++n) {
      const NodeId forward = training.forward_node[n];
      if (!forward.valid()) continue;
      // Earlier only where the gradient that it reads already is.
      if (stages[n] == stages[forward.index()]) continue;
      EXPECT_LT(stages[n], stages[forward.index()]) << describeNode(training.graph.nodes[n]);
      bool reads_there = false;
      for (ValueId input : training.graph.nodes[n].inputs) {
        const NodeId producer = input.valid() ? uses.producer[input.index()] : NodeId();
        reads_there = reads_there || (producer.valid() && training.forward_node[producer.index()].valid() &&
                                      stages[producer.index()] == stages[n]);
      }
      EXPECT_TRUE(reads_there) << describeNode(training.graph.nodes[n]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ExampleLayersTest,
                         ::testing::Values(Example{"mlp.onnx", 4}, Example{"gpt2.onnx", 2},
                                           Example{"llama.onnx", 2}, Example{"resnet.onnx", 2}),
                         [](const auto& info) {
                           return std::string(info.param.name, std::string_view(info.param.name).find('.'));
                         });

}  // namespace
}  // namespace pipeshard
