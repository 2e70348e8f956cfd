#include "ir/base/sharding_spec.h"

#include <gtest/gtest.h>

#include "tests/expect_error.h"

namespace pipeshard {
namespace {

const LogicalMesh kMesh{{2, 2}};

TEST(LogicalMesh, CountsRowMajor) {
  const LogicalMesh mesh{{2, 4}};
  EXPECT_EQ(mesh.deviceCount(), 8);
  EXPECT_EQ(mesh.coordinate(DeviceId(5), 0), 1);
  EXPECT_EQ(mesh.coordinate(DeviceId(5), 1), 1);
  EXPECT_EQ(mesh.lineOf(DeviceId(5), 0), (std::vector{DeviceId(1), DeviceId(5)}));
  EXPECT_EQ(mesh.lineOf(DeviceId(5), 1), (std::vector{DeviceId(4), DeviceId(5), DeviceId(6), DeviceId(7)}));
  EXPECT_EQ(printMesh(parseMesh("2x4")), "2x4");
  EXPECT_ERROR(parseMesh("2x"), ErrorCode::kUsage, "no logical mesh");
  EXPECT_ERROR(parseMesh("0"), ErrorCode::kUsage, "no logical mesh");
  EXPECT_EQ(parseMesh("1048576").deviceCount(), 1 << 20);
  // more devices than an int counts
  EXPECT_ERROR(parseMesh("65536x65536"), ErrorCode::kUsage, "no logical mesh");
}

TEST(ShardingSpec, ReadsWhatItPrints) {
  for (const char* text : {"S0,R", "R,S01", "R,S10", "R,S1;P0", "-", "-;P01", "R"})
    EXPECT_EQ(printSpec(parseSpec(text)), text);
  EXPECT_ERROR(parseSpec("S0,X"), ErrorCode::kConfiguration, "found \"X\"");
  EXPECT_ERROR(parseSpec("S"), ErrorCode::kConfiguration, "no sharding spec");
  EXPECT_ERROR(parseSpec("R;Q"), ErrorCode::kConfiguration, "found \"Q\"");
  EXPECT_ERROR(parseSpec(""), ErrorCode::kConfiguration, "no sharding spec");
}

TEST(ShardingSpec, NamesItsFault) {
  EXPECT_EQ(specFault(parseSpec("S0,R"), {8, 3}, kMesh), "");
  EXPECT_EQ(specFault(parseSpec("S0"), {8, 3}, kMesh), "it has 1 axes, the tensor has 2");
  EXPECT_EQ(specFault(parseSpec("R,S01"), {8, 3}, kMesh), "axis 1 has 3 elements for 4 devices");
  EXPECT_EQ(specFault(parseSpec("S2,R"), {8, 3}, kMesh), "mesh axis 2 of a mesh of 2 axes");
  EXPECT_EQ(specFault(parseSpec("S0,R;P0"), {8, 3}, kMesh), "mesh axis 0 is used twice");
  EXPECT_EQ(specFault(parseSpec("R,S00"), {8, 3}, kMesh), "mesh axis 0 is used twice");
  // However often: a product of the sizes would overflow.
  EXPECT_EQ(specFault(parseSpec("R,S" + std::string(80, '0')), {8, 3}, kMesh), "mesh axis 0 is used twice");
}

TEST(ShardingSpec, CutsUnevenAxesIntoSharesOfShares) {
  std::vector<std::pair<int64_t, int64_t>> columns;
  for (const DeviceId device : kMesh.devices()) {
    const Shard shard = shardOf(parseSpec("R,S01"), {8, 6}, kMesh, device);
    EXPECT_EQ(shard.start[0], 0);
    EXPECT_EQ(shard.size[0], 8);
    columns.emplace_back(shard.start[1], shard.size[1]);
  }
  EXPECT_EQ(columns, (std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {1, 2}, {3, 1}, {4, 2}}));
  EXPECT_EQ(shardOf(parseSpec("R,S10"), {8, 6}, kMesh, DeviceId(1)).start[1], 3);
  EXPECT_EQ(largestShard(parseSpec("R,S01"), {8, 6}, kMesh), 16);
}

TEST(ShardingSpec, EveryElementIsInOneShard) {
  for (int64_t size : {4, 5, 7, 50257}) {
    for (const char* text : {"S0", "S1", "S01", "S10"}) {
      const ShardingSpec spec = parseSpec(text);
      int64_t largest = 0, total = 0;
      for (const DeviceId device : kMesh.devices()) {
        const Shard shard = shardOf(spec, {size}, kMesh, device);
        EXPECT_GT(shard.size[0], 0);
        largest = std::max(largest, shard.size[0]);
        total += shard.size[0];
      }
      EXPECT_EQ(total, spec.axes[0].size() == 2 ? size : 2 * size) << text;
      EXPECT_EQ(largest, largestShard(spec, {size}, kMesh)) << text;
    }
  }
}

TEST(ShardingSpec, CutsBetweenTheRowsOfABatch) {
  const LogicalMesh mesh{{3}, 4};
  EXPECT_EQ(partStarts(parseSpec("S0"), 0, 4, mesh), (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(partStarts(parseSpec("S0"), 0, 64, mesh), (std::vector<int64_t>{0, 16, 32}));
  EXPECT_EQ(partStarts(parseSpec("S0"), 0, 64, LogicalMesh{{3}}), (std::vector<int64_t>{0, 21, 42}));
  EXPECT_EQ(partStarts(parseSpec("S0"), 0, 7, mesh), (std::vector<int64_t>{0, 2, 4}));  // no multiple
  EXPECT_EQ(shardOf(parseSpec("S0,R"), {64, 5}, mesh, DeviceId(2)), (Shard{{32, 0}, {32, 5}}));
  EXPECT_EQ(largestShard(parseSpec("S0,R"), {64, 5}, mesh), 160);
  EXPECT_EQ(specFault(parseSpec("S0"), {64}, (LogicalMesh{{5}, 4})), "axis 0 has 4 rows for 5 devices");
  EXPECT_EQ(mesh.unit(64), 16);
  EXPECT_EQ(mesh.unit(6), 1);
  EXPECT_EQ(mesh.unit(0), 1);
}

TEST(ShardingSpec, CutsOtherAxesAnywhereWhateverTheRows) {
  const LogicalMesh mesh{{2}, 3, {48}};
  EXPECT_EQ(partStarts(parseSpec("S0"), 0, 96, mesh), (std::vector<int64_t>{0, 32}));
  EXPECT_EQ(partStarts(parseSpec("S0"), 0, 48, mesh), (std::vector<int64_t>{0, 24}));  // not 0, 16
  EXPECT_EQ(shardOf(parseSpec("S0,R"), {48, 3}, mesh, DeviceId(1)), (Shard{{24, 0}, {24, 3}}));
}

}  // namespace
}  // namespace pipeshard
