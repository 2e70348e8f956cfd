// Clusters as a user gives them: presets, files, unequal nodes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// 1 + 3 devices.
constexpr const char* kUnequal = R"({
  "version": 1,
  "kinds": {"worker": {"memory": "64GB"}},  // its rates are not known
  "nodes": [{"kind": "worker"}, {"kind": "worker", "devices": 3, "inside": {"gbytes_per_s": 4}}]})";

TEST(ClusterCommand, ListsPresetsAndShowsOne) {
  const CommandResult list = runPipeshard({"cluster"});
  EXPECT_EQ(list.exit_code, 0) << list.errors;
  for (const char* name : {"p3.16xlarge", "v100", "dgx-a100-40gb", "dgx-h100", "h200", "g4dn.12xlarge"})
    EXPECT_THAT(list.output, HasSubstr(name));
  const CommandResult one = runPipeshard({"cluster", "p3.16xlarge:8"});
  EXPECT_THAT(one.output, HasSubstr("8 x 8 devices V100-SXM2-16GB"));
  EXPECT_THAT(one.output, HasSubstr("125 TFLOP/s x 0.58, from 4.0 us"));
  EXPECT_THAT(one.output, HasSubstr("2.5 GB/s"));  // 25 Gbit/s, 0.8 of it
  EXPECT_THAT(runPipeshard({"cluster", "this"}).output, HasSubstr("nothing is known of its rates"));
  EXPECT_THAT(runPipeshard({"plan", "--help"}).output, HasSubstr("p3.16xlarge:8, v100:8, dgx-h100:4"));
}

TEST(ClusterCommand, WritesAFileThatGivesTheSamePlan) {
  const TemporaryFolder folder;
  const std::string file = folder.file("mine.json");
  ASSERT_EQ(runPipeshard({"cluster", "t4:1x2", "--json", file}).exit_code, 0);
  const auto planned = [&](const std::string& cluster, const std::string& name) {
    const CommandResult result = runPipeshard({"plan", "examples/mlp.onnx", "--cluster", cluster, "--stages",
                                               "uniform:1", "--method", "auto", "-o", folder.file(name)});
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    return readFile(folder.path() / name / "plan.json");
  };
  const std::string plan = planned("t4:1x2", "a.plan");
  EXPECT_EQ(plan, planned(file, "b.plan"));
  EXPECT_EQ(json::parse(plan).at("cluster").at("name"), "t4:1x2");
  EXPECT_EQ(json::parse(plan).at("shardings").at(0).at("memory_limit"), 15'000'000'000);
}

// The same devices behind NVLink, or each behind the NIC of its node.
TEST(ClusterCommand, WhatAPlanCostsFollowsTheLinksOfItsDevices) {
  const TemporaryFolder folder;
  const auto communication = [&](const std::string& cluster) {
    const CommandResult result =
        runPipeshard({"plan", "examples/gpt2.onnx", "--cluster", cluster, "--stages", "uniform:1", "--method",
                      "data-parallel", "-o", folder.file("gpt2.plan")});
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    const json plan = json::parse(readFile(folder.path() / "gpt2.plan" / "plan.json"));
    return plan.at("shardings").at(0).at("predicted").at("communication_ns").get<double>();
  };
  const double inside = communication("p3.16xlarge:1x4");
  const double across = communication("p3.16xlarge:4x1");
  EXPECT_GT(across, 3 * inside);  // at least the latencies, 30 us against 10
  EXPECT_GT(communication("p3.16xlarge:2x2"), across * 0.99);
}

TEST(ClusterCommand, RunsOnUnequalNodesAndReplaysWithoutTheFile) {
  const TemporaryFolder folder;
  writeFile(folder.path() / "lab.json", kUnequal);
  writeFile(folder.path() / "stages.json", R"({"version": 1, "stages": [
    {"layer_count": 2, "devices": [0]},
    {"layer_count": 2, "submesh": [1, 3], "mesh": [3, 1], "sharding": {"method": "data-parallel"}}]})");
  const std::string plan = folder.file("mlp.plan");
  const CommandResult planned =
      runPipeshard({"plan", "examples/mlp.onnx", "--cluster", folder.file("lab.json"), "--stages",
                    folder.file("stages.json"), "-o", plan});
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  EXPECT_THAT(planned.output, HasSubstr("cluster       lab.json, 4 devices: 1 x 1 worker, 1 x 3 worker"));
  EXPECT_THAT(readFile(folder.path() / "mlp.plan" / "report.html"),
              HasSubstr("2 nodes of up to 3 devices, 4 ranks in all"));
  std::filesystem::remove(folder.path() / "lab.json");
  EXPECT_EQ(runPipeshard({"simulate", plan}).exit_code, 0);
  const CommandResult validated = runPipeshard({"validate", plan, "--steps", "2"});
  EXPECT_EQ(validated.exit_code, 0) << validated.errors;
  EXPECT_THAT(validated.output, HasSubstr("PASS"));
}

TEST(ClusterCommand, RefusesWhatIsNoCluster) {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& cluster, int code, const std::string& message) {
    const CommandResult result =
        runPipeshard({"plan", "examples/mlp.onnx", "--cluster", cluster, "-o", folder.file("no.plan")});
    EXPECT_EQ(result.exit_code, code) << cluster << ": " << result.errors;
    EXPECT_THAT(result.errors, HasSubstr(message));
    EXPECT_FALSE(std::filesystem::exists(folder.path() / "no.plan"));
  };
  refused("p3.16xlrge:2", 64, "did you mean p3.16xlarge");
  refused(folder.file("none.json"), 66, "there is no file of this name");
  writeFile(folder.path() / "bad.json", R"({"version": 1, "nodes": [{"kind": "T4-16"}]})");
  refused(folder.file("bad.json"), 78, "bad.json.nodes[0].kind: found \"T4-16\"");
}

// Every device has a hundredth of the example's parameters.
TEST(ClusterCommand, MemoryOfDevicesIsALimit) {
  const TemporaryFolder folder;
  writeFile(
      folder.path() / "small.json",
      R"({"version": 1, "kinds": {"tiny": {"memory": 40000}}, "nodes": [{"kind": "tiny", "devices": 2}]})");
  const std::vector<std::string> plan = {"plan",      "examples/gpt2.onnx",
                                         "--cluster", folder.file("small.json"),
                                         "--stages",  "uniform:1",
                                         "--method",  "auto",
                                         "-o",        folder.file("small.plan")};
  const CommandResult result = runPipeshard(plan);
  EXPECT_EQ(result.exit_code, 83) << result.errors;
  std::vector<std::string> more = plan;
  more.insert(more.end(), {"--memory", "16GB"});
  EXPECT_EQ(runPipeshard(more).exit_code, 0);
}

// Two devices of 4 MB and two of 1 MB; the first stage needs 2 MB of each of its devices, the second 0.5 MB.
TEST(ClusterCommand, AStageHasTheMemoryOfItsOwnDevices) {
  const TemporaryFolder folder;
  writeFile(folder.path() / "two.json", R"({"version": 1,
    "kinds": {"large": {"memory": "4MB"}, "small": {"memory": "1MB"}},
    "nodes": [{"kind": "large", "devices": 2}, {"kind": "small", "devices": 2}]})");
  const auto planned = [&](const std::string& first, const std::string& second) {
    writeFile(folder.path() / "stages.json",
              R"({"version": 1, "stages": [{"layer_count": 3, "devices": )" + first +
                  R"(, "sharding": {"method": "zero2"}}, {"layer_count": 1, "devices": )" + second +
                  R"(, "sharding": {"method": "zero2"}}]})");
    return runPipeshard({"plan", "examples/gpt2.onnx", "--cluster", folder.file("two.json"), "--layers", "4",
                         "--stages", folder.file("stages.json"), "-o", folder.file("two.plan")});
  };
  const CommandResult fits = planned("[0, 1]", "[2, 3]");
  ASSERT_EQ(fits.exit_code, 0) << fits.errors;
  const json shardings = json::parse(readFile(folder.path() / "two.plan" / "plan.json")).at("shardings");
  EXPECT_EQ(shardings.at(0).at("memory_limit"), 4'000'000);
  EXPECT_EQ(shardings.at(1).at("memory_limit"), 1'000'000);
  EXPECT_EQ(runPipeshard({"plan", "--check", folder.file("two.plan")}).exit_code, 0);
  const CommandResult swapped = planned("[2, 3]", "[0, 1]");
  EXPECT_EQ(swapped.exit_code, 83);
  EXPECT_THAT(swapped.errors, HasSubstr("stage 0 (device 2, small, has 1000000 bytes): method zero2"));
}

// A plan fits on 16 MB and 1 MB; none does on 1 MB and 1 MB.
TEST(ClusterCommand, ASearchKnowsTheMemoryOfEveryDevice) {
  const TemporaryFolder folder;
  const auto searched = [&](const std::string& first) {
    writeFile(folder.path() / "two.json", R"({"version": 1,
      "kinds": {"large": {"memory": "16MB"}, "small": {"memory": "1MB"}},
      "nodes": [{"kind": ")" + first + R"("}, {"kind": "small"}]})");
    return runPipeshard({"plan", "examples/gpt2.onnx", "--cluster", folder.file("two.json"), "--layers", "4",
                         "--microbatches", "8", "--stages", "auto", "-o", folder.file("two.plan")});
  };
  const CommandResult found = searched("large");
  EXPECT_EQ(found.exit_code, 0) << found.errors;
  EXPECT_EQ(runPipeshard({"plan", "--check", folder.file("two.plan")}).exit_code, 0);
  EXPECT_EQ(searched("small").exit_code, 83);
}

}  // namespace
}  // namespace pipeshard
