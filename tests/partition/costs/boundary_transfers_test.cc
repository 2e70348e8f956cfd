// What crosses from stage to stage, and which submeshes are alike.
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "ir/graph/training_graph.h"
#include "partition/costs/sharded_stage_costs.h"
#include "partition/costs/stage_costs.h"
#include "partition/cut/node_stages.h"
#include "sharding/specs/cross_mesh.h"
#include "tests/sharding/stage_models.h"

namespace pipeshard {
namespace {

std::vector<RankId> devicesOf(const Submesh& submesh) {
  std::vector<RankId> devices;
  for (int i = 0; i < submesh.deviceCount(); ++i) devices.push_back(RankId(submesh.first_device + i));
  return devices;
}

// x of the first layer is read by the second and the fourth: it and its gradient cross three cuts.
TrainingGraph skipping() {
  testing::StageModel model;
  const Shape shape{16, 64};
  const auto layer = [&](ValueId value, const std::string& name) {
    return model.op("Relu", {model.op("MatMul", {value, model.parameter(name, {64, 64})}, shape)}, shape);
  };
  const ValueId x = layer(model.input("x", shape), "w0");
  const ValueId y = layer(layer(x, "w1"), "w2");
  const ValueId sum = model.op("Add", {x, y}, shape);
  TrainingGraph training = model.finish(model.op("ReduceSum", {sum}, {}, {{"keepdims", int64_t{0}}}));
  training.microbatches = 2;
  return training;
}

// How many values go forward, and how many gradients back, between two stages: by the stage of every node.
std::pair<int64_t, int64_t> crossingsOf(const TrainingGraph& training, const Clustering& clustering,
                                        int cut) {
  const int64_t border = clustering.ends[LayerId(cut)];
  Plan plan;
  plan.layers.resize(2);
  plan.layers[LayerId(0)].last = border;
  plan.layers[LayerId(1)].first = border + 1;
  plan.layers[LayerId(1)].last = clustering.ends.back();
  plan.stages.resize(2);
  plan.stages[StageId(1)].first_layer = plan.stages[StageId(1)].last_layer = LayerId(1);
  const std::vector<StageId> stages = nodeStages(training, plan);
  std::pair<int64_t, int64_t> counts;
  for (size_t n = 0; n < stages.size(); ++n) {
    if (training.node_phase[n] == Phase::kUpdate) continue;
    for (ValueId output : training.graph.nodes[n].outputs) {
      bool crosses = false;
      for (size_t reader = 0; reader < stages.size(); ++reader) {
        const std::vector<ValueId>& inputs = training.graph.nodes[reader].inputs;
        const bool reads = std::find(inputs.begin(), inputs.end(), output) != inputs.end();
        crosses = crosses ||
                  (reads && training.node_phase[reader] != Phase::kUpdate && stages[reader] != stages[n]);
      }
      if (crosses) ++(stages[n] == StageId(0) ? counts.first : counts.second);
    }
  }
  return counts;
}

TEST(StageCosts, TransfersAreThoseOfAllValuesThatCrossTheCut) {
  const TrainingGraph training = skipping();
  Clustering clustering;
  clustering.ends = {1, 3, 5, std::ssize(forwardNodes(training)) - 1};
  clustering.kinds = {0, 1, 1, 2};
  const Cluster cluster = uniformCluster(2, 4);
  const ShardedStageCosts costs(training, clustering, cluster, {});
  EXPECT_EQ(crossingsOf(training, clustering, 0).first, 1);
  EXPECT_EQ(crossingsOf(training, clustering, 2).first, 2);
  const auto sideOf = [&](const Submesh& submesh, int parts) {
    const int count = submesh.deviceCount();
    const LogicalMesh mesh =
        parts == 1 || parts == count ? LogicalMesh{{count}} : LogicalMesh{{parts, count / parts}};
    return CrossMeshSide{mesh, parseSpec(parts == 1 ? "R,R" : "S0,R"),
                         costModelOn(cluster, devicesOf(submesh), mesh)};
  };
  // (from, boundary and parts), (to, boundary and parts); boundaries count the divisors from one upwards.
  struct Case {
    Submesh from;
    int from_boundary, from_parts;
    Submesh to;
    int to_boundary, to_parts;
  };
  const std::vector<Case> cases = {{{0, 1, 1}, 0, 1, {1, 1, 1}, 0, 1}, {{0, 1, 2}, 1, 2, {2, 1, 2}, 0, 1},
                                   {{0, 1, 4}, 1, 2, {4, 1, 4}, 2, 4}, {{0, 1, 3}, 1, 3, {4, 1, 2}, 1, 2},
                                   {{3, 1, 1}, 0, 1, {4, 1, 4}, 2, 4}, {{0, 1, 4}, 2, 4, {4, 1, 4}, 2, 4}};
  for (const Case& test : cases) {
    const CrossMeshSide from = sideOf(test.from, test.from_parts), to = sideOf(test.to, test.to_parts);
    const std::vector<RankId> senders = devicesOf(test.from), receivers = devicesOf(test.to);
    const int64_t there =
        planCrossMesh({16, 64}, DataType::kFloat32, from, to, linkBetween(cluster, senders, receivers))
            .cost_ns;
    const int64_t back =
        planCrossMesh({16, 64}, DataType::kFloat32, to, from, linkBetween(cluster, receivers, senders))
            .cost_ns;
    for (int cut = 0; cut < 3; ++cut) {
      const auto [forward, gradients] = crossingsOf(training, clustering, cut);
      const int64_t cost = costs.transfer(cut, test.from, test.from_boundary, test.to, test.to_boundary);
      EXPECT_EQ(cost, forward * there + gradients * back) << "cut " << cut;
    }
  }
}

TEST(StageCosts, SubmeshesOfAClassAreAlike) {
  const TrainingGraph training = skipping();
  Clustering clustering;
  clustering.ends = {1, 3, std::ssize(forwardNodes(training)) - 1};
  clustering.kinds = {0, 1, 2};
  Cluster cluster = uniformCluster(4, 4);
  cluster.kinds.push_back(cluster.kinds.front());
  cluster.kinds.back().memory_bytes = 1 << 30;
  cluster.nodes[3].kind = 1;
  const ShardedStageCosts costs(training, clustering, cluster, {});
  const auto same = [&](const Submesh& a, const Submesh& b) {
    return costs.submeshClass(a) == costs.submeshClass(b);
  };
  EXPECT_TRUE(same({1, 1, 2}, {5, 1, 2}));
  EXPECT_TRUE(same({1, 1, 2}, {2, 1, 2}));
  EXPECT_FALSE(same({0, 1, 2}, {2, 1, 2}));  // what comes before it is in another node
  EXPECT_FALSE(same({1, 1, 2}, {1, 1, 3}));
  EXPECT_TRUE(same({0, 2, 4}, {4, 2, 4}));
  EXPECT_FALSE(same({0, 2, 4}, {8, 2, 4}));  // another kind of node
  EXPECT_FALSE(same({1, 1, 2}, {13, 1, 2}));
  EXPECT_EQ(costs.memoryBytes({0, 2, 4}), INT64_MAX);
  EXPECT_EQ(costs.memoryBytes({8, 2, 4}), 1 << 30);
}
// Sixteen rows on 32 devices.
TEST(StageCosts, WhatCannotCrossACutHasNoTransfer) {
  const TrainingGraph training = skipping();
  Clustering clustering;
  clustering.ends = {1, 3, std::ssize(forwardNodes(training)) - 1};
  clustering.kinds = {0, 1, 2};
  const Cluster cluster = uniformCluster(8, 8);
  const ShardedStageCosts costs(training, clustering, cluster, {});
  const Submesh many{0, 4, 8}, few{32, 1, 8};
  EXPECT_LT(costs.transfer(0, many, 4, few, 0), kNever);  // 16 parts
  EXPECT_EQ(costs.transfer(0, many, 5, few, 0), kNever);  // 32
  EXPECT_EQ(costs.transfer(0, few, 0, many, 5), kNever);
}

}  // namespace
}  // namespace pipeshard
