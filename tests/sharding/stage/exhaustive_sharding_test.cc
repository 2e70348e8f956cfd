#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "sharding/stage/exhaustive.h"
#include "sharding/stage/shard_stage.h"
#include "tests/expect_error.h"
#include "tests/sharding/stage_models.h"

namespace pipeshard {
namespace {

using testing::allNodes;

// Two matmul layers on four devices, as in the published experiment with xmap.
TEST(ExhaustiveSharding, ListsAllInputShardingsOfTwoMatmulLayers) {
  const TrainingGraph training = testing::twoLayers({.batch = 2048, .width = 8192});
  const LogicalMesh mesh = parseMesh("4");
  const CostModel model = CostModel::uniform(mesh);
  const std::vector<Combination> list =
      exhaustiveSharding(training, allNodes(training), mesh, model, {}, 100);
  ASSERT_EQ(list.size(), 81u);
  const auto total = [](const Combination& combination) {
    return combination.compute_ns + combination.communication_ns;
  };
  int64_t least_bytes = INT64_MAX;
  int64_t published = -1;
  for (size_t index = 0; index < list.size(); ++index) {
    EXPECT_GE(total(list[index > 0 ? index - 1 : 0]), total(list[index]));
    least_bytes = std::min(least_bytes, list[index].communication_bytes);
    std::string text;
    for (const auto& [name, spec] : list[index].inputs) text += name + "=" + printSpec(spec) + " ";
    if (text == "x=R,R y=R,R w1=R,S0 w2=S0,R ") published = list[index].communication_bytes;
  }
  EXPECT_EQ(published, least_bytes);
  EXPECT_EQ(shardStage(training, allNodes(training), mesh, model, {}).total_ns(), total(list.back()));
  EXPECT_ERROR((void)exhaustiveSharding(training, allNodes(training), mesh, model, {}, 80),
               ErrorCode::kConfiguration, "81 combinations");
}

TEST(MeshesFor, OneAndTwoAxes) {
  const auto print = [](const std::vector<LogicalMesh>& meshes) {
    std::string text;
    for (const LogicalMesh& mesh : meshes) text += printMesh(mesh) + " ";
    return text;
  };
  EXPECT_EQ(print(meshesFor(8, {ShardingKind::kAuto})), "8 2x4 4x2 ");
  EXPECT_EQ(print(meshesFor(8, {ShardingKind::kZero2})), "8 ");
  EXPECT_EQ(print(meshesFor(8, {ShardingKind::kExhaustive})), "8 ");
  EXPECT_EQ(print(meshesFor(8, {ShardingKind::kMegatron, 4, 2})), "4x2 ");
  EXPECT_ERROR((void)meshesFor(8, {ShardingKind::kMegatron, 2, 2}), ErrorCode::kConfiguration,
               "are 4, but the stage has 8");
  EXPECT_ERROR((void)meshesFor(4, {ShardingKind::kMegatron, 100, 42949673}), ErrorCode::kConfiguration,
               "are 4294967300, but the stage has 4");
}

}  // namespace
}  // namespace pipeshard
