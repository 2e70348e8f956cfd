#include "ir/cluster/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/cluster/cluster_file.h"
#include "ir/cluster/cluster_presets.h"
#include "ir/plan/plan.h"
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
  kind.rates.push_back(
      {WorkClass::kContraction, DataType::kFloat16, CostCurve::ofRate(4000), CostCurve::ofRate(50)});
  EXPECT_EQ(kind.time(WorkClass::kContraction, DataType::kFloat32, 1e6, 1e3), 1000);
  EXPECT_EQ(kind.time(WorkClass::kContraction, DataType::kFloat32, 1e6, 1e6), 10'000);
  EXPECT_EQ(kind.time(WorkClass::kContraction, DataType::kFloat16, 8e6, 0), 2000);
  EXPECT_EQ(kind.time(WorkClass::kContraction, DataType::kFloat16, 0, 1e6), 20'000);  // its own bytes
  EXPECT_EQ(kind.time(WorkClass::kContraction, DataType::kFloat64, 1e6, 0), 2000);    // twice as wide
  // no faster than float32
  EXPECT_EQ(kind.time(WorkClass::kContraction, DataType::kBfloat16, 1e6, 0), 1000);
  EXPECT_EQ(kind.time(WorkClass::kMovement, DataType::kFloat32, 1e9, 1e6), 10'000);  // only memory is known
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
  EXPECT_ERROR(parseCluster("p3.16xlarge:many"), ErrorCode::kUsage,
               "found \"many\"; expected a number of nodes");
  EXPECT_ERROR(parseCluster("p3.16xlarge:"), ErrorCode::kUsage, "found \"\"");
  EXPECT_ERROR(parseCluster("v100:16"), ErrorCode::kUsage, "v100:2x8");
  EXPECT_ERROR(parseCluster("0x4"), ErrorCode::kUsage, "NODESxDEVICES");
}

std::vector<std::string> largerNames(std::string_view name) {
  std::vector<std::string> names;
  for (const Cluster& larger : largerClusters(parseCluster(name))) names.push_back(larger.name);
  return names;
}

TEST(LargerClusters, HaveMoreOfWhatTheNameCounts) {
  EXPECT_THAT(largerNames("2x4"), ::testing::ElementsAre("2x5", "2x6", "2x8", "2x16"));
  EXPECT_THAT(largerNames("1x1"), ::testing::ElementsAre("1x2", "1x3", "1x4"));
  EXPECT_THAT(largerNames("p3.16xlarge:2"),
              ::testing::ElementsAre("p3.16xlarge:3", "p3.16xlarge:4", "p3.16xlarge:8"));
  for (const Cluster& larger : largerClusters(parseCluster("2x4")))
    EXPECT_EQ(larger, parseCluster(larger.name)) << larger.name;
}

TEST(LargerClusters, EndWhereANodeHasNoMore) {
  EXPECT_THAT(largerNames("v100:6"), ::testing::ElementsAre("v100:7", "v100:8"));
  EXPECT_THAT(largerNames("v100:8"), ::testing::IsEmpty());
}

TEST(LargerClusters, AreNoneOfOtherNames) {
  EXPECT_THAT(largerNames("p3.16xlarge"), ::testing::IsEmpty());
  EXPECT_THAT(largerNames("v100:2x4"), ::testing::IsEmpty());
  Cluster file = uniformCluster(2, 4);
  file.name = "box:3.json";
  EXPECT_THAT(largerClusters(file), ::testing::IsEmpty());
}

// Peaks of the data sheets (docs/clusters.md): time of a large matrix product at efficiency 1.
TEST(ClusterPreset, SmallGroupsOfV100HaveAPartOfItsLinks) {
  const ClusterNode node = parseCluster("p3.16xlarge").nodes[0];
  const auto rate = [&](int group) { return node.insideOf(group).bytes_per_ns / 0.8; };
  EXPECT_DOUBLE_EQ(rate(2), 25);
  EXPECT_DOUBLE_EQ(rate(3), 50);
  EXPECT_DOUBLE_EQ(rate(4), 100);
  EXPECT_DOUBLE_EQ(rate(5), 150);
  EXPECT_DOUBLE_EQ(rate(8), 150);
  const ClusterNode switched = parseCluster("dgx-a100").nodes[0];
  EXPECT_EQ(switched.insideOf(2), switched.inside);
}

TEST(ClusterPreset, ADeviceHasItsOwnEfficiencyWhereASourceTellsIt) {
  const auto reached = [](const char* name, WorkClass work_class) {
    return parseCluster(name).kinds[0].efficiency[static_cast<size_t>(work_class)];
  };
  for (const char* name : {"v100", "v100-32gb", "p3.16xlarge", "dgx-1"}) {
    EXPECT_EQ(reached(name, WorkClass::kContraction), 0.58) << name;
    EXPECT_EQ(reached(name, WorkClass::kConvolution), 0.59) << name;
  }
  for (const char* name : {"a100", "h100", "h200", "t4"}) {
    EXPECT_EQ(reached(name, WorkClass::kContraction), 0.7) << name;
    EXPECT_EQ(reached(name, WorkClass::kConvolution), 0.55) << name;
  }
  for (const ClusterPreset& preset : clusterPresets()) {
    for (const double efficiency : preset.one.kinds[0].efficiency) EXPECT_LE(efficiency, 1) << preset.name;
  }
}

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

struct Malformed {
  std::string name;
  std::string text;
  std::string message;
  ErrorCode code = ErrorCode::kConfiguration;
};
void PrintTo(const Malformed& malformed, std::ostream* stream) { *stream << malformed.name; }

class MalformedClusterFile : public ::testing::TestWithParam<Malformed> {};

TEST_P(MalformedClusterFile, IsRefused) {
  EXPECT_ERROR(parseClusterFile(GetParam().text, "c.json"), GetParam().code, GetParam().message);
}

std::string file(const std::string& nodes, const std::string& kinds = "") {
  return R"({"version": 1, "kinds": {"card": {)" + kinds + R"(}}, "nodes": [)" + nodes + "]}";
}
std::string rate(const std::string& fields) {
  return file(R"({"kind": "card"})", R"("rates": [{)" + fields + "}]");
}
std::string points(const std::string& list) {
  return rate(R"("class": "movement", "type": "int8", "bytes": )" + list);
}

INSTANTIATE_TEST_SUITE_P(
    Fields, MalformedClusterFile,
    ::testing::Values(
        Malformed{"no_json", "{", "c.json: this is not JSON"},
        Malformed{"no_version", "{}", "c.json: key \"version\" is missing"},
        Malformed{"version", R"({"version": 7, "nodes": []})", "version 7 was found",
                  ErrorCode::kVersionMismatch},
        Malformed{"key", R"({"version": 1, "node": []})", "did you mean \"nodes\" or \"name\"?"},
        Malformed{"name", R"({"version": 1, "name": 3, "nodes": []})",
                  "c.json.name: found 3; expected a string"},
        Malformed{"no_nodes", R"({"version": 1, "nodes": []})",
                  "c.json.nodes: found []; expected at least one node"},
        Malformed{"node_key", file(R"({"kind": "card", "device": 3})"),
                  "c.json.nodes[0]: found an unknown key \"device\""},
        Malformed{"no_kind", file(R"({"devices": 3})"),
                  "c.json.nodes[0]: found {\"devices\":3}; expected \"kind\""},
        Malformed{"kind", file(R"({"kind": "crad"})"),
                  "c.json.nodes[0].kind: found \"crad\"; expected the name of a device kind: card, V100"},
        Malformed{"near_kind", file(R"({"kind": "V100-SXM2-16G"})"), "did you mean V100-SXM2-16GB"},
        Malformed{"preset", file(R"({"preset": "p3.16xlrge"})"), "did you mean \"p3.16xlarge\""},
        Malformed{"devices", file(R"({"kind": "card", "devices": 0})"),
                  "c.json.nodes[0].devices: found 0; expected an integer from 1"},
        Malformed{"count", file(R"({"kind": "card", "count": 1.5})"),
                  "c.json.nodes[0].count: found 1.5; expected an integer"},
        Malformed{"too_many", file(R"({"kind": "card", "count": 1048576, "devices": 2})"),
                  "at most 1048576 devices in all"},
        Malformed{"nics", file(R"({"kind": "card", "nics": 0})"), "c.json.nodes[0].nics: found 0"},
        Malformed{"cores", file(R"({"kind": "card", "cores": 0})"), "c.json.nodes[0].cores: found 0"},
        Malformed{"shared", file(R"({"kind": "card", "shared_memory": 1})"),
                  "c.json.nodes[0].shared_memory: found 1; expected true or false"},
        Malformed{"link_key", file(R"({"kind": "card", "nic": {"gbits": 3}})"),
                  "did you mean \"gbits_per_s\""},
        Malformed{"bandwidth", file(R"({"kind": "card", "nic": {"gbytes_per_s": 0}})"),
                  "c.json.nodes[0].nic.gbytes_per_s: found 0"},
        Malformed{"two_bandwidths", file(R"({"kind": "card", "nic": {"gbytes_per_s": 1, "gbits_per_s": 8}})"),
                  "nic.gbits_per_s: found 8; expected no such key beside \"gbytes_per_s\""},
        Malformed{
            "groups",
            file(
                R"({"kind": "card", "inside_groups": [{"devices": 4, "gbytes_per_s": 9}, {"devices": 4, "gbytes_per_s": 9}]})"),
            "inside_groups[1].devices: found 4"},
        Malformed{"latency", file(R"({"kind": "card", "inside": {"latency_ns": -1}})"),
                  "inside.latency_ns: found -1"},
        Malformed{"kind_key", file(R"({"kind": "card"})", R"("memry": 3)"),
                  "c.json.kinds.card: found an unknown key \"memry\""},
        Malformed{"memory", file(R"({"kind": "card"})", R"("memory": "16 GB")"),
                  "c.json.kinds.card.memory: found \"16 GB\"; expected bytes"},
        Malformed{"no_memory", file(R"({"kind": "card"})", R"("memory": 0)"),
                  "c.json.kinds.card.memory: found 0"},
        Malformed{"class", rate(R"("class": "convolutoin", "type": "float32", "flops": {"gflops": 1})"),
                  "rates[0].class: found \"convolutoin\"; expected one of \"contraction\""},
        Malformed{"type", rate(R"("class": "movement", "type": "float33", "flops": {"gflops": 1})"),
                  "rates[0].type: found \"float33\""},
        Malformed{"no_curve", rate(R"("class": "movement", "type": "float32")"),
                  "expected \"flops\", \"bytes\" or both"},
        Malformed{"same_rate", file(R"({"kind": "card"})", R"("rates": [
  {"class": "movement", "type": "int8", "bytes": [[1, 1]]},
  {"class": "movement", "type": "int8", "bytes": [[1, 1]]}])"),
                  "rates[1]: found"},
        Malformed{"rate_form", points("[]"),
                  "expected {\"gbytes_per_s\": RATE}, or a list of points [amount, ns]"},
        Malformed{"rate_key", points(R"({"gflops": 3})"), "the keys here are gbytes_per_s, latency_ns, half"},
        Malformed{"point", points("[[1, 2, 3]]"), "bytes[0]: found [1,2,3]; expected a point [amount, ns]"},
        Malformed{"points_fall", points("[[5, 2], [5, 3]]"), "bytes[1][0]: found 5; expected more than 5"},
        Malformed{"times_fall", points("[[5, 2], [6, 1]]"), "bytes[1][1]: found 1; expected at least 2"},
        Malformed{"no_time", points("[[5, 0]]"), "expected points that take time"},
        Malformed{"efficiency", file(R"({"kind": "card"})", R"("efficiency": {"contraction": 0})"),
                  "efficiency.contraction: found 0"},
        Malformed{"efficiency_class", file(R"({"kind": "card"})", R"("efficiency": {"contractions": 1})"),
                  "did you mean \"contraction\""}),
    [](const auto& info) { return info.param.name; });

TEST(ClusterFile, SaysNodesKindsAndLinks) {
  const Cluster cluster = parseClusterFile(R"({
    "version": 1,
    "kinds": {
      "card": {  // a comment
        "memory": "1.5GiB",
        "memory_bandwidth": {"gbytes_per_s": 480, "latency_ns": 4000},
        "rates": [{"class": "contraction", "type": "float32", "flops": [[0, 1000], [1000000, 3000]]}],
        "efficiency": {"contraction": 0.5}
      }
    },
    "nodes": [{"count": 2, "preset": "p3.16xlarge", "nics": 2},
              {"kind": "card", "devices": 3, "nic": {"gbits_per_s": 10, "latency_ns": 40000}, "inside": {"gbytes_per_s": 12.5}},
              {"kind": "A100-SXM4-40GB"}]})",
                                           "lab.json");
  EXPECT_EQ(cluster.name, "lab.json");
  EXPECT_EQ(cluster.deviceCount(), 20);
  EXPECT_EQ(cluster.nodes[1].nics, 2);
  EXPECT_EQ(cluster.nodes[1].inside, parseCluster("p3.16xlarge").nodes[0].inside);
  EXPECT_EQ(cluster.nodes[2].nic.bytes_per_ns, 1.25);
  EXPECT_EQ(cluster.nodes[2].inside.bytes_per_ns, 12.5);
  EXPECT_EQ(cluster.kindOf(16).name, "card");
  EXPECT_EQ(cluster.kindOf(16).memory_bytes, 1'610'612'736);
  // memory's start, at half
  EXPECT_EQ(cluster.kindOf(16).time(WorkClass::kContraction, DataType::kFloat32, 500'000, 0), 8000);
  EXPECT_EQ(cluster.kindOf(19), parseCluster("a100-40gb").kinds[0]);
  EXPECT_EQ(printCluster(cluster),
            "lab.json, 20 devices: 2 x 8 V100-SXM2-16GB, 1 x 3 card, 1 x 1 A100-SXM4-40GB");
  EXPECT_EQ(parseClusterFile(clusterFileText(cluster), "other.json"), cluster);
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
