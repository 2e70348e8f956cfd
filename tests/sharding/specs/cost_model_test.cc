// Costs on clusters, computed by hand.
#include "sharding/specs/cost_model.h"

#include <gtest/gtest.h>

#include "sharding/specs/cross_mesh.h"

namespace pipeshard {
namespace {

std::vector<RankId> devicesFrom(int first, int count) {
  return IdRange(RankId(first), RankId(first + count));
}

// 100 GB/s inside, NICs of 3 GB/s.
Cluster twoNodes(int devices, int nics = 1) {
  Cluster cluster = uniformCluster(2, devices);
  for (ClusterNode& node : cluster.nodes) {
    node.inside = {1'000, 100, {}};
    node.nic = {7'000, 3, {}};
    node.nics = nics;
  }
  return cluster;
}

std::vector<double> rates(const Cluster& cluster, const std::vector<RankId>& devices,
                          const std::vector<int>& mesh) {
  std::vector<double> result;
  for (const LinkCost& link : costModelOn(cluster, devices, {mesh}).links)
    result.push_back(link.bytes_per_ns);
  return result;
}

TEST(CostModelOn, SharesNicsAmongTheGroupsOfAnAxis) {
  const Cluster cluster = twoNodes(4);
  const std::vector<RankId> all = devicesFrom(0, 8);
  // one ring, out of each node once
  EXPECT_EQ(rates(cluster, all, {8}), (std::vector<double>{3}));
  // axis 0: four rings share the NIC
  EXPECT_EQ(rates(cluster, all, {2, 4}), (std::vector<double>{0.75, 100}));
  EXPECT_EQ(rates(cluster, all, {4, 2}), (std::vector<double>{1.5, 100}));  // axis 0: two rings of four
  EXPECT_EQ(rates(cluster, all, {2, 2, 2}), (std::vector<double>{0.75, 100, 100}));
  EXPECT_EQ(rates(cluster, devicesFrom(4, 4), {2, 2}), (std::vector<double>{100, 100}));
  EXPECT_EQ(rates(cluster, idsAt<RankId>({0, 4}), {2}), (std::vector<double>{3}));
  // in the mesh's order, not the cluster's
  EXPECT_EQ(rates(cluster, idsAt<RankId>({0, 4, 1, 5}), {2, 2}), (std::vector<double>{100, 1.5}));
  EXPECT_EQ(rates(cluster, all, {1, 8})[1], 3);
}

TEST(CostModelOn, GroupsWithoutASwitchHaveTheLinksBetweenThem) {
  Cluster cluster = uniformCluster(1, 8);
  cluster.nodes[0].inside = {1'000, 12, {}};
  cluster.nodes[0].inside_groups = {{2, 2}, {4, 8}};
  EXPECT_EQ(rates(cluster, devicesFrom(0, 8), {8}), (std::vector<double>{12}));
  EXPECT_EQ(rates(cluster, devicesFrom(0, 8), {4, 2}), (std::vector<double>{8, 2}));
  EXPECT_EQ(rates(cluster, devicesFrom(0, 6), {2, 3}), (std::vector<double>{2, 8}));
  EXPECT_EQ(linkBetween(cluster, idsAt<RankId>({0, 1, 2, 3}), idsAt<RankId>({4, 5, 6, 7})).bytes_per_ns, 2);
}

TEST(CostModelOn, UsesAllNicsButOneForADevice) {
  const Cluster cluster = twoNodes(4, 4);
  EXPECT_EQ(rates(cluster, devicesFrom(0, 8), {8}), (std::vector<double>{12}));  // a ring over each NIC
  EXPECT_EQ(rates(cluster, devicesFrom(0, 8), {2, 4}), (std::vector<double>{3, 100}));
  EXPECT_EQ(rates(cluster, idsAt<RankId>({0, 4}), {2}), (std::vector<double>{3}));  // not all four
  EXPECT_EQ(rates(twoNodes(4, 64), devicesFrom(0, 8), {8}), (std::vector<double>{12}));
}

// 8 devices, 8 MB each, all-to-all: a device sends 4 MB to the other node, four devices share 3 GB/s; a ring
// moves 7/8 of 8 MB through it.
TEST(CostModelOn, CountsWhatAllToAllsSendToOtherNodes) {
  const LogicalMesh mesh{{8}};
  const CostModel model = costModelOn(twoNodes(4), devicesFrom(0, 8), mesh);
  EXPECT_EQ(collectiveCost(model, mesh, CollectiveKind::kAllGather, 0, 8'000'000), 7'000 + 2'333'333);
  EXPECT_EQ(collectiveCost(model, mesh, CollectiveKind::kAllReduce, 0, 8'000'000), 7'000 + 4'666'667);
  EXPECT_EQ(collectiveCost(model, mesh, CollectiveKind::kAllToAll, 0, 8'000'000), 7'000 + 4 * 4'000'000 / 3);
  // each has its NIC: 4 MB at 3 GB/s
  const CostModel many = costModelOn(twoNodes(4, 4), devicesFrom(0, 8), mesh);
  EXPECT_EQ(collectiveCost(many, mesh, CollectiveKind::kAllToAll, 0, 8'000'000), 7'000 + 4'000'000 / 3);
}

TEST(CostModelOn, IsAsSlowAsTheSlowestOfUnequalNodes) {
  Cluster cluster = twoNodes(2);
  cluster.nodes[1] = cluster.nodes[0];
  cluster.nodes[1].devices = 3;
  cluster.nodes[1].inside.bytes_per_ns = 20;
  cluster.nodes[1].nic.bytes_per_ns = 1;
  EXPECT_EQ(rates(cluster, devicesFrom(0, 5), {5}), (std::vector<double>{1}));
  EXPECT_EQ(rates(cluster, idsAt<RankId>({0, 1}), {2}), (std::vector<double>{100}));
  EXPECT_EQ(rates(cluster, idsAt<RankId>({0, 1, 2, 3}), {2, 2}), (std::vector<double>{0.5, 20}));
  EXPECT_EQ(costModelOn(cluster, idsAt<RankId>({0, 1, 2, 3}), {{2, 2}}).links[1].latency_ns, 1'000);

  DeviceKind fast, slow;
  fast.rates.push_back(
      {WorkClass::kContraction, DataType::kFloat32, CostCurve::ofRate(1000), CostCurve::ofRate(10)});
  slow.rates.push_back(
      {WorkClass::kContraction, DataType::kFloat32, CostCurve::ofRate(500), CostCurve::ofRate(20)});
  cluster.kinds = {fast, slow};
  cluster.nodes[1].kind = 1;
  const CostModel both = costModelOn(cluster, devicesFrom(0, 5), {{5}});
  EXPECT_EQ(computeCost(both, 1e6, 1000, WorkClass::kContraction), 2000);     // by the second
  EXPECT_EQ(computeCost(both, 1, 100'000, WorkClass::kContraction), 10'000);  // by the first
  EXPECT_EQ(
      computeCost(costModelOn(cluster, idsAt<RankId>({0, 1}), {{2}}), 1e6, 1000, WorkClass::kContraction),
      1000);
  EXPECT_EQ(computeCost(both, 0, 0, WorkClass::kContraction), 0);
}

TEST(CostModelOn, OfEqualNodesWithoutAProfileIsWhatItWas) {
  const Cluster cluster = uniformCluster(3, 4);
  for (const std::vector<int>& shape : {std::vector<int>{12}, {3, 4}, {4, 3}, {2, 6}, {6, 2}, {2, 3, 2}}) {
    const LogicalMesh mesh{shape};
    EXPECT_EQ(costModelOn(cluster, devicesFrom(0, 12), mesh).links, CostModel::uniform(mesh).links)
        << printMesh(mesh);
    EXPECT_EQ(costModelOn(cluster, devicesFrom(0, 12), mesh).kinds, nullptr);
  }
  EXPECT_EQ(costModelOn(cluster, devicesFrom(2, 5), {{5}}).links, CostModel::uniform({{5}}).links);
  EXPECT_EQ(linkBetween(cluster, idsAt<RankId>({0, 1, 2}), idsAt<RankId>({3, 4, 5, 6, 7})), LinkCost{});
  EXPECT_EQ(linkBetween(cluster, idsAt<RankId>({0}), idsAt<RankId>({1})), LinkCost{});
}

TEST(CostModelOn, SharesMemoryAndCoresOfOneComputer) {
  Cluster cluster = uniformCluster(1, 4);
  cluster.nodes[0].inside.bytes_per_ns = 8;
  cluster.nodes[0].shared_memory = true;
  cluster.nodes[0].cores = 2;
  EXPECT_EQ(rates(cluster, devicesFrom(0, 4), {4}), (std::vector<double>{2}));
  EXPECT_EQ(rates(cluster, devicesFrom(0, 2), {2}), (std::vector<double>{4}));
  EXPECT_EQ(linkBetween(cluster, idsAt<RankId>({0, 1}), idsAt<RankId>({2})).bytes_per_ns, 4);
  EXPECT_EQ(linkBetween(cluster, idsAt<RankId>({0, 1}), idsAt<RankId>({2})).receive_bytes_per_ns, 8);
  const CostModel model = costModelOn(cluster, idsAt<RankId>({0}), {{1}});
  EXPECT_EQ(computeCost(model, 1e6, 0), 40'000);  // 50 GFLOP/s of two devices on a core each
}

TEST(CostModelOn, FollowsMeasuredLinks) {
  Cluster cluster = twoNodes(2);
  for (ClusterNode& node : cluster.nodes) node.nic.measured = {{{0, 100}, {1000, 1100}, {2000, 1600}}};
  const LogicalMesh mesh{{2, 2}};
  const CostModel model = costModelOn(cluster, devicesFrom(0, 4), mesh);
  // Two groups share the NIC: 1000 bytes of a device take as long as 2000 of the node.
  EXPECT_EQ(collectiveCost(model, mesh, CollectiveKind::kAllGather, 0, 2000), 1600);
  EXPECT_EQ(collectiveCost(model, mesh, CollectiveKind::kAllGather, 1, 2000), 1'000 + 10);
}

TEST(LinkBetween, SharesTheNicsOfBothSides) {
  const Cluster cluster = twoNodes(4);
  EXPECT_EQ(linkBetween(cluster, idsAt<RankId>({0}), idsAt<RankId>({1})).bytes_per_ns, 100);
  EXPECT_EQ(linkBetween(cluster, idsAt<RankId>({0}), idsAt<RankId>({4})).bytes_per_ns, 3);
  const LinkCost link = linkBetween(cluster, idsAt<RankId>({0, 1, 2, 3}), idsAt<RankId>({4, 5}));
  EXPECT_EQ(link.bytes_per_ns, 0.75);
  EXPECT_EQ(link.receive_bytes_per_ns, 1.5);
  EXPECT_EQ(link.latency_ns, 7'000);
  EXPECT_EQ(linkBetween(twoNodes(4, 2), idsAt<RankId>({0, 1, 2, 3}), idsAt<RankId>({4, 5})).bytes_per_ns,
            1.5);
  // 12 kB, a fourth from each of four devices, half to each of two: through one NIC of 3 GB/s, in two
  // messages each way at most.
  const CrossMeshTransfer transfer =
      planTransfer({4, 750}, DataType::kFloat32, {{4}}, parseSpec("S0,R"), {{2}}, parseSpec("S0,R"), link);
  EXPECT_EQ(transfer.bytes, 12'000);
  EXPECT_EQ(transfer.cost_ns, 2 * 7'000 + 4'000);
}

}  // namespace
}  // namespace pipeshard
