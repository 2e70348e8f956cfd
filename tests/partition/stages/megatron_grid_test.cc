// Options of other systems: Megatron's grid, and the names that Alpa gives to what its search may try.

#include "partition/stages/megatron_grid.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "partition/search/search_limits.h"
#include "partition/stages/partition_options.h"
#include "tests/expect_error.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;

TEST(MegatronGrid, IsThreeOrFourNumbers) {
  EXPECT_EQ(parseMegatronGrid("megatron:2,3,4"), (MegatronGrid{2, 3, 4, 1}));
  EXPECT_EQ(parseMegatronGrid("megatron:1,1,8,2"), (MegatronGrid{1, 1, 8, 2}));
  EXPECT_EQ(parseMegatronGrid("megatron:2,2"), std::nullopt);  // the method of one stage
  EXPECT_EQ(parseMegatronGrid("uniform:3"), std::nullopt);
  EXPECT_EQ(megatronGridToString({2, 3, 4, 1}), "megatron:2,3,4");
  EXPECT_EQ(megatronGridToString({1, 1, 8, 2}), "megatron:1,1,8,2");
  for (const char* text :
       {"megatron:", "megatron:2", "megatron:2,2,", "megatron:2,,2", "megatron:0,1,1", "megatron:2,2,2,2,2",
        "megatron:a,1,1", "megatron:1,1,-1", "megatron:1,1,1025", "megatron: 1,1,1"}) {
    EXPECT_ERROR(parseMegatronGrid(text), ErrorCode::kUsage,
                 "write megatron:DP,TP,PP or megatron:DP,TP,PP,V");
  }
}

PartitionOptions gridOn(int devices, const std::string& stages) {
  PartitionOptions options;
  options.cluster = uniformCluster(1, devices);
  options.stages = parseStages(stages);
  return options;
}

TEST(StagesRequest, EveryTextIsARequestAndBack) {
  using Kind = StagesRequest::Kind;
  const std::vector<std::pair<std::string, Kind>> texts = {
      {"per-device", Kind::kPerDevice},  {"uniform:3", Kind::kUniform}, {"megatron:2,3,4", Kind::kGrid},
      {"megatron:1,1,8,2", Kind::kGrid}, {"auto", Kind::kSearched},     {"./stages.json", Kind::kFile},
      {"uniform:0", Kind::kFile}};
  for (const auto& [text, kind] : texts) {
    EXPECT_EQ(parseStages(text).kind, kind) << text;
    EXPECT_EQ(stagesToString(parseStages(text)), text);
  }
}

TEST(MegatronGrid, IsUniformStagesOnSoManyDevicesEach) {
  PartitionOptions options = gridOn(12, "megatron:2,3,2");
  useMegatronGrid(options);
  EXPECT_EQ(stagesToString(options.stages), "uniform:2");
  EXPECT_THAT(options.stage_devices, ElementsAre(6, 6));
  EXPECT_EQ(options.sharding.method, (ShardingMethod{ShardingKind::kMegatron, 2, 3}));
  EXPECT_FALSE(options.schedule);
}

TEST(MegatronGrid, InterleavesSeveralStagesPerRank) {
  PartitionOptions options = gridOn(4, "per-device");
  options.method_grid = {1, 1, 4, 3};
  useMegatronGrid(options);
  EXPECT_EQ(stagesToString(options.stages), "uniform:12");
  EXPECT_THAT(options.stage_devices, ElementsAre(1, 1, 1, 1));
  EXPECT_FALSE(options.sharding.method);
  EXPECT_EQ(options.schedule, ScheduleChoice(ScheduleSpec{"interleaved", {{"v", 3}}}));
  options = gridOn(4, "megatron:1,1,4,2");
  options.schedule = ScheduleSpec{"zbv"};
  useMegatronGrid(options);
  EXPECT_EQ(options.schedule, ScheduleChoice(ScheduleSpec{"zbv"}));
}

TEST(MegatronGrid, RefusesWhatContradictsIt) {
  const auto refuse = [](PartitionOptions options, ErrorCode code, const std::string& message) {
    EXPECT_ERROR(useMegatronGrid(options), code, message);
  };
  PartitionOptions options = gridOn(4, "megatron:2,2,2");
  refuse(options, ErrorCode::kConfiguration,
         "--stages megatron:2,2,2: found a grid of 8 devices; expected at most 4");
  options = gridOn(8, "megatron:2,2,2");
  options.sharding.method = {ShardingKind::kZero3};
  refuse(options, ErrorCode::kUsage, "leave out --method");
  options = gridOn(8, "uniform:2");
  options.method_grid = {2, 2, 2, 1};
  refuse(options, ErrorCode::kUsage,
         "--method megatron:2,2,2 says stages, their devices and how they are sharded; leave out --stages");
  options = gridOn(8, "megatron:2,2,2");
  options.stage_devices = {4, 4};
  refuse(options, ErrorCode::kUsage, "leave out --stage-devices");
  options = gridOn(8, "megatron:2,2,2,2");
  options.schedule = ScheduleSpec{"gpipe"};
  refuse(options, ErrorCode::kConfiguration,
         "found 2 stages on each pipeline rank, but --schedule gpipe has 1");
  EXPECT_ERROR(parseStages("megatron:2,2"), ErrorCode::kUsage,
               "--stages megatron:2,2: expected three or four numbers, megatron:DP,TP,PP[,V]; two are for");
  options = gridOn(8, "uniform:2");
  options.sharding.method = {ShardingKind::kMegatron, 2, 2};
  useMegatronGrid(options);
  EXPECT_EQ(stagesToString(options.stages), "uniform:2");
}

TEST(SearchLimits, SubmeshesByTheirNames) {
  const auto allowed = [](const char* name, int nodes, int devices) {
    return allowedSubmeshes(parseSubmeshLimit(name))(Submesh{0, nodes, devices});
  };
  EXPECT_FALSE(allowedSubmeshes(parseSubmeshLimit("all")));  // no limit
  EXPECT_EQ(usualSubmeshes(uniformCluster(2, 8)), SubmeshLimit::kAll);
  EXPECT_EQ(usualSubmeshes(uniformCluster(8, 8)), SubmeshLimit::kPowerOfTwo);
  EXPECT_EQ(usualSubmeshes(uniformCluster(8, 6)), SubmeshLimit::kAll);
  EXPECT_TRUE(allowed("power-of-two", 1, 4));
  EXPECT_FALSE(allowed("power_of_two", 1, 3));
  EXPECT_TRUE(allowed("power_of_two", 8, 6));  // whole nodes, whatever they have
  EXPECT_FALSE(allowed("power_of_two", 6, 8));
  EXPECT_TRUE(allowed("small-power-of-two", 4, 8));
  EXPECT_FALSE(allowed("small_power_of_two", 8, 8));
  EXPECT_ERROR(parseSubmeshLimit("some"), ErrorCode::kUsage,
               "--submeshes some: there is no such choice; expected one of all, power-of-two");
}

TEST(SearchLimits, LogicalMeshesByTheirNames) {
  const auto meshes = [](const char* name, int nodes, int devices) {
    StageCostOptions options;
    limitLogicalMeshes(parseLogicalMeshLimit(name), options);
    return options.meshes(Submesh{0, nodes, devices});
  };
  EXPECT_THAT(meshes("all", 1, 6), ElementsAre(std::vector{6}, std::vector{3, 2}, std::vector{2, 3}));
  EXPECT_THAT(meshes("all", 2, 4), ElementsAre(std::vector{8}, std::vector{4, 2}, std::vector{2, 4}));
  EXPECT_THAT(meshes("single_node_model_parallel", 4, 2), ElementsAre(std::vector{4, 2}));
  EXPECT_THAT(meshes("single-node-model-parallel", 1, 4), ElementsAre(std::vector{4}, std::vector{2, 2}));
  EXPECT_THAT(meshes("same_as_physical", 2, 4), ElementsAre(std::vector{2, 4}));
  EXPECT_THAT(meshes("same_as_physical", 1, 4), ElementsAre(std::vector{4}));
  StageCostOptions options;
  options.methods = {{ShardingKind::kAuto}, {ShardingKind::kZero3}};
  limitLogicalMeshes(parseLogicalMeshLimit("data-parallel-only"), options);
  EXPECT_THAT(options.methods, ElementsAre(ShardingMethod{ShardingKind::kZero3}));
  options.methods = {ShardingMethod{}};
  limitLogicalMeshes(parseLogicalMeshLimit("data_parallel_only"), options);
  EXPECT_THAT(options.methods,
              ElementsAre(ShardingMethod{ShardingKind::kDataParallel}, ShardingMethod{ShardingKind::kZero2},
                          ShardingMethod{ShardingKind::kZero3}));
  limitLogicalMeshes(parseLogicalMeshLimit("model-parallel-only"), options);
  EXPECT_THAT(options.methods, ElementsAre(ShardingMethod{ShardingKind::kTensorParallel}));
  EXPECT_ERROR(parseLogicalMeshLimit("any"), ErrorCode::kUsage, "--logical-meshes any");
}

}  // namespace
}  // namespace pipeshard
