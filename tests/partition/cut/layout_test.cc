// Which stages a rank has, and which microbatches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "partition/cut/layout.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TrainingFamily familyOf(int64_t batch, int64_t microbatches) {
  return TrainingFamily(batch, microbatches, [](int64_t) { return TrainingGraph(); });
}

struct Mesh {
  std::vector<int> devices;
  int data = 1;
  int model = 1;
};

Plan planOf(const std::vector<Mesh>& meshes, int64_t microbatches) {
  Plan plan;
  plan.microbatches = microbatches;
  for (const Mesh& mesh : meshes) {
    plan.stages.emplace_back().devices = idsAt<RankId>(mesh.devices);
    plan.stages.back().mesh_shape = {mesh.data, mesh.model};
  }
  return plan;
}

TEST(Rows, SharesCoverTheRowsAndDifferByAtMostOne) {
  for (int64_t count = 1; count <= 20; ++count) {
    for (int64_t parts = 1; parts <= count; ++parts) {
      int64_t next = 7;
      for (int64_t i = 0; i < parts; ++i) {
        const Rows share = shareOf({7, count}, i, parts);
        EXPECT_EQ(share.first, next);
        EXPECT_GE(share.count, count / parts);
        EXPECT_LE(share.count, (count + parts - 1) / parts);
        next = share.end();
      }
      EXPECT_EQ(next, 7 + count);
    }
  }
}

TEST(Layout, ReplicasTakeMicrobatchesInTurn) {
  const TrainingFamily family = familyOf(8, 4);
  const Plan plan = planOf({{{0}, 1, 1}, {{4, 3, 2, 1}, 2, 2}}, 4);
  const Layout layout(plan, family, true);
  EXPECT_EQ(layout.ranks(), 5);
  EXPECT_EQ(layout.replicas(StageId(0)), 1);
  EXPECT_EQ(layout.replicas(StageId(1)), 2);
  EXPECT_EQ(layout.devicesOf(StageId(1), 0), idsAt<RankId>({4, 3}));
  EXPECT_EQ(layout.devicesOf(StageId(1), layout.replicaOf(StageId(1), 3)), idsAt<RankId>({2, 1}));
  EXPECT_TRUE(layout.takes(RankId(3), 2));
  EXPECT_FALSE(layout.takes(RankId(3), 1));
  EXPECT_TRUE(layout.takes(RankId(0), 1));
  EXPECT_EQ(layout.counterparts(RankId(4)), idsAt<RankId>({2, 4}));
  EXPECT_EQ(layout.counterparts(RankId(1)), idsAt<RankId>({1, 3}));
  EXPECT_EQ(layout.counterparts(RankId(0)), idsAt<RankId>({0}));
}

TEST(Layout, WithoutTurnsEveryDeviceTakesEveryMicrobatch) {
  const TrainingFamily family = familyOf(8, 4);
  const Layout layout(planOf({{{0}, 1, 1}, {{1, 2}, 2, 1}}, 4), family);
  EXPECT_EQ(layout.replicas(StageId(1)), 1);
  for (int k = 0; k < 4; ++k) EXPECT_TRUE(layout.takes(RankId(2), k));
  EXPECT_EQ(layout.counterparts(RankId(2)), idsAt<RankId>({2}));
}

TEST(Layout, StagesOnTheSameDevicesAreOneGroup) {
  const TrainingFamily family = familyOf(8, 2);
  const Layout layout(planOf({{{2}, 1, 1}, {{0, 1}, 2, 1}, {{2}, 1, 1}, {{0, 1}, 2, 1}}, 2), family);
  EXPECT_EQ(layout.ranks(), 3);
  EXPECT_EQ(layout.stages(), 4);
  ASSERT_EQ(layout.groups(), 2);
  EXPECT_THAT(layout.stagesOf(PipelineRankId(0)), ElementsAre(StageId(0), StageId(2)));
  EXPECT_THAT(layout.stagesOf(PipelineRankId(1)), ElementsAre(StageId(1), StageId(3)));
  EXPECT_EQ(layout.place(RankId(2)).group, PipelineRankId(0));
}

TEST(Layout, RefusesWhatDoesNotFitTogether) {
  const auto expect = [](const Plan& plan, const std::string& message) {
    const TrainingFamily family = familyOf(8, 3);
    try {
      const Layout layout(plan, family);
      ADD_FAILURE() << "accepted; expected " << message;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kConfiguration);
      EXPECT_THAT(error.message(), HasSubstr(message));
    }
  };
  expect(planOf({}, 3), "no stages");
  expect(planOf({{{0}, 1, 1}}, 2), "2 microbatches, the training graph was built for 3");
  expect(planOf({{{0}, 1, 1}, {{2}, 1, 1}}, 3),
         "on devices [0,2]; expected 0 to 1, and stages that share a device to list the same");
  expect(planOf({{{0, 1}, 2, 1}, {{1, 0}, 2, 1}}, 3), "on devices [0,1,1,0]; expected 0 to 3");
  expect(planOf({{{0, 1}, 2, 1}, {{0, 1}, 1, 2}}, 3),
         "stages 0 and 1 share the devices [0,1], but cut their work differently");
  expect(planOf({{{0, 1}, 1, 1}}, 3), "mesh [1,1] and 2 device(s)");
  expect(planOf({{{0, 1, 2}, 3, 1}}, 3),
         "3 data-parallel devices, but a microbatch has only 2 example(s) (a batch of 8 in 3");
}

}  // namespace
}  // namespace pipeshard
