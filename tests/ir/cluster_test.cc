#include "ir/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/plan.h"
#include "tests/expect_error.h"

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

TEST(DeviceKind, TakesTheLongerOfComputingAndMoving) {
  DeviceKind kind;
  kind.memory = CostCurve::ofRate(100);
  kind.rates.push_back({WorkClass::kContraction, DataType::kFloat32, CostCurve::ofRate(1000), {}});
  kind.rates.push_back({WorkClass::kContraction, DataType::kFloat16, CostCurve::ofRate(4000), CostCurve::ofRate(50)});
  EXPECT_EQ(kind.time(WorkClass::kContraction, DataType::kFloat32, 1e6, 1e3), 1000);
  EXPECT_EQ(kind.time(WorkClass::kContraction, DataType::kFloat32, 1e6, 1e6), 10'000);
  EXPECT_EQ(kind.time(WorkClass::kContraction, DataType::kFloat16, 8e6, 0), 2000);
  EXPECT_EQ(kind.time(WorkClass::kContraction, DataType::kFloat16, 0, 1e6), 20'000);  // its own bytes
  EXPECT_EQ(kind.time(WorkClass::kContraction, DataType::kFloat64, 1e6, 0), 2000);    // twice as wide
  EXPECT_EQ(kind.time(WorkClass::kContraction, DataType::kBfloat16, 1e6, 0), 1000);   // no faster than float32
  EXPECT_EQ(kind.time(WorkClass::kMovement, DataType::kFloat32, 1e9, 1e6), 10'000);   // only memory is known
  kind.efficiency[static_cast<size_t>(WorkClass::kContraction)] = 0.5;
  EXPECT_EQ(kind.time(WorkClass::kContraction, DataType::kFloat32, 1e6, 1e3), 2000);
}

TEST(ClusterPreset, CountsNodesOrDevices) {
  EXPECT_EQ(parseCluster("p3.16xlarge:8").deviceCount(), 64);
  EXPECT_EQ(parseCluster("p3.16xlarge:8").nodeCount(), 8);
  EXPECT_EQ(parseCluster("P3.16xlarge").deviceCount(), 8);
  EXPECT_EQ(parseCluster("p3.16xlarge:2x4").devicesPerNode(), 4);
  EXPECT_EQ(parseCluster("v100").deviceCount(), 1);
  EXPECT_EQ(parseCluster("v100:8").nodeCount(), 1);
  EXPECT_EQ(parseCluster("v100:8").deviceCount(), 8);
  EXPECT_EQ(parseCluster("dgx-h100:4").kindOf(31).name, "H100-SXM5-80GB");
  EXPECT_TRUE(parseCluster("dgx-h100:4").isUniform());
}

TEST(ClusterPreset, RefusesWhatItIsNot) {
  EXPECT_ERROR(parseCluster("p3.16xlrge:8"), ErrorCode::kUsage, "did you mean p3.16xlarge");
  EXPECT_ERROR(parseCluster("p3.16xlarge:many"), ErrorCode::kUsage, "found \"many\"; expected a number of nodes");
  EXPECT_ERROR(parseCluster("p3.16xlarge:"), ErrorCode::kUsage, "found \"\"");
  EXPECT_ERROR(parseCluster("v100:16"), ErrorCode::kUsage, "v100:2x8");
  EXPECT_ERROR(parseCluster("0x4"), ErrorCode::kUsage, "NODESxDEVICES");
}

// Peaks of the data sheets (docs/clusters.md): time of a large matrix product at efficiency 1.
TEST(ClusterPreset, HasTheDataSheetsPeaks) {
  const auto tflops = [](const char* name, DataType type) {
    DeviceKind kind = parseCluster(name).kinds[0];
    kind.efficiency.fill(1);
    return 1e15 / static_cast<double>(kind.time(WorkClass::kContraction, type, 1e15, 0)) / 1e3;
  };
  EXPECT_NEAR(tflops("v100", DataType::kFloat16), 125, 0.1);
  EXPECT_NEAR(tflops("v100", DataType::kFloat32), 15.7, 0.01);
  EXPECT_NEAR(tflops("v100", DataType::kBfloat16), 15.7, 0.01);  // no such units
  EXPECT_NEAR(tflops("a100", DataType::kBfloat16), 312, 0.5);
  EXPECT_NEAR(tflops("h200", DataType::kFloat64), 67, 0.1);
  EXPECT_NEAR(tflops("t4", DataType::kFloat16), 65, 0.1);
}

TEST(ClusterFile, GivesBackEveryCluster) {
  for (const ClusterPreset& preset : clusterPresets()) {
    const Cluster cluster = parseCluster(preset.name);
    EXPECT_EQ(parseClusterFile(clusterFileText(cluster), "c.json"), cluster) << preset.name;
  }
  Cluster odd = uniformCluster(3, 2);
  odd.name = "odd";
  odd.nodes[1].devices = 5;
  odd.nodes[1].cores = 2;
  odd.nodes[2].shared_memory = true;
  odd.nodes[2].inside = {1, 1.0 / 3, {{{0, 7}, {1000, 90}}}};
  EXPECT_EQ(parseClusterFile(clusterFileText(odd), "c.json"), odd);
}

}  // namespace
}  // namespace pipeshard
