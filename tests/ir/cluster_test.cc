#include "ir/cluster.h"

#include <gtest/gtest.h>

namespace pipeshard {
namespace {

TEST(CostCurve, IsLinearBetweenItsPointsAndBeyondThem) {
  const CostCurve curve{{{1000, 50}, {100000, 2050}}};
  EXPECT_EQ(curve.at(1000), 50);
  EXPECT_EQ(curve.at(50500), 1050);
  EXPECT_EQ(curve.at(200000), 4070);
  EXPECT_EQ(curve.at(0), 30);
}

TEST(CostCurve, OfARateTakesHalfItAtItsHalfAmount) {
  const CostCurve curve = CostCurve::ofRate(10, 4000, 0);
  EXPECT_EQ(curve.at(4000), 800);  // 5 per ns
  EXPECT_NEAR(static_cast<double>(curve.at(4e9)), 4e8, 1e3);
}

TEST(Cluster, NumbersDevicesNodeByNode) {
  Cluster cluster = uniformCluster(3, 2);
  cluster.nodes[1].devices = 4;
  EXPECT_EQ(cluster.deviceCount(), 8);
  EXPECT_EQ(cluster.nodeOf(1), 0);
  EXPECT_EQ(cluster.nodeOf(2), 1);
  EXPECT_EQ(cluster.nodeOf(6), 2);
  EXPECT_EQ(cluster.firstDeviceOf(2), 6);
  EXPECT_FALSE(cluster.isUniform());
  EXPECT_TRUE(uniformCluster(3, 2).isUniform());
}

}  // namespace
}  // namespace pipeshard
