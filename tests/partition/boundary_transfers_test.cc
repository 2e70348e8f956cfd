#include <gtest/gtest.h>

#include "partition/layer_clustering.h"
#include "partition/layers.h"
#include "partition/stage_costs.h"
#include "tests/sharding/stage_models.h"

namespace pipeshard {
namespace {

// Rows that only pass a stage may be fewer than the merged rows that its batch cut is about: labels of two sequences on three devices, say.
TEST(BoundaryTransfers, WhatHasFewerRowsThanABoundaryHasPartsIsReplicated) {
  const TrainingGraph training = testing::perceptron(2, 16, 16, 16);
  Clustering clustering;
  clustering.ends = formLayers(forwardFlops(training, forwardNodes(training)), cutBytes(training, forwardNodes(training)), 2);
  clustering.kinds = {0, 1};
  const Cluster cluster = uniformCluster(1, 4);
  const ShardedStageCosts costs(training, clustering, cluster, {});
  const Submesh one{0, 1, 1}, three{1, 1, 3};
  EXPECT_GT(costs.transfer(0, one, 0, three, 0), 0);
  EXPECT_EQ(costs.transfer(0, one, 0, three, 1), costs.transfer(0, one, 0, three, 0));
}

}  // namespace
}  // namespace pipeshard
