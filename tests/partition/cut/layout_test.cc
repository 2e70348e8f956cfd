// Who computes which rows, and what travels between stages of different widths.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "partition/cut/layout.h"
#include "partition/cut/node_stages.h"
#include "partition/cut/shipments.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Kind = TimeKind::Kind;

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

std::vector<std::string> texts(const std::vector<Shipment>& list) {
  std::vector<std::string> result;
  for (const Shipment& s : list)
    result.push_back(fmt::format("{}>{} [{}:{}]", s.sender, s.receiver, s.rows.first, s.rows.end()));
  return result;
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

TEST(Layout, CellsAreTheRowsOfTheDataAxis) {
  const TrainingFamily family = familyOf(8, 2);
  const Layout layout(planOf({{{0}, 1, 1}, {{1, 2, 3}, 3, 1}}, 2), family);
  EXPECT_EQ(layout.ranks(), 4);
  EXPECT_EQ(layout.cell(RankId(0), 1), (Rows{4, 4}));
  EXPECT_EQ(layout.cell(RankId(1), 1), (Rows{4, 1}));
  EXPECT_EQ(layout.cell(RankId(2), 1), (Rows{5, 1}));
  EXPECT_EQ(layout.cell(RankId(3), 1), (Rows{6, 2}));
  EXPECT_EQ(layout.dataGroup(RankId(2)), idsAt<RankId>({1, 2, 3}));
  EXPECT_EQ(layout.dataGroup(RankId(0)), idsAt<RankId>({0}));
}

TEST(Layout, DevicesAlongTheModelAxisHaveTheSameRows) {
  const TrainingFamily family = familyOf(4, 1);
  const Layout layout(planOf({{{3, 2, 1, 0}, 2, 2}}, 1), family);
  EXPECT_EQ(layout.cell(RankId(3), 0), (Rows{0, 2}));
  EXPECT_EQ(layout.cell(RankId(2), 0), (Rows{0, 2}));
  EXPECT_EQ(layout.cell(RankId(1), 0), (Rows{2, 2}));
  EXPECT_EQ(layout.dataGroup(RankId(3)), idsAt<RankId>({1, 3}));
  EXPECT_EQ(layout.dataGroup(RankId(0)), idsAt<RankId>({0, 2}));
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
  EXPECT_EQ(layout.cell(RankId(1), 1), (Rows{6, 2}));
  EXPECT_EQ(layout.dataGroup(RankId(0)), idsAt<RankId>({0, 1}));
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

TEST(Shipments, EqualMeshesSendToTheirCounterparts) {
  const TrainingFamily family = familyOf(8, 2);
  const Layout layout(planOf({{{0, 1}, 2, 1}, {{2, 3}, 2, 1}}, 2), family);
  for (Kind kind : {Kind::kSplit, Kind::kSum, Kind::kInvariant}) {
    EXPECT_THAT(texts(shipments(layout, kind, 1, StageId(0), StageId(1))),
                ElementsAre("0>2 [4:6]", "1>3 [6:8]"));
  }
}

TEST(Shipments, BetweenOneAndThreeDevices) {
  const TrainingFamily family = familyOf(8, 2);
  const Layout layout(planOf({{{0}, 1, 1}, {{1, 2, 3}, 3, 1}}, 2), family);
  EXPECT_THAT(texts(shipments(layout, Kind::kSplit, 0, StageId(0), StageId(1))),
              ElementsAre("0>1 [0:1]", "0>2 [1:2]", "0>3 [2:4]"));
  EXPECT_THAT(texts(shipments(layout, Kind::kSplit, 0, StageId(1), StageId(0))),
              ElementsAre("1>0 [0:1]", "2>0 [1:2]", "3>0 [2:4]"));
  EXPECT_THAT(texts(shipments(layout, Kind::kSum, 0, StageId(0), StageId(1))), ElementsAre("0>1 [0:4]"));
  EXPECT_THAT(texts(shipments(layout, Kind::kSum, 0, StageId(1), StageId(0))),
              ElementsAre("1>0 [0:1]", "2>0 [1:2]", "3>0 [2:4]"));
  EXPECT_THAT(texts(shipments(layout, Kind::kInvariant, 0, StageId(0), StageId(1))),
              ElementsAre("0>1 [0:4]", "0>2 [0:4]", "0>3 [0:4]"));
  EXPECT_THAT(texts(shipments(layout, Kind::kInvariant, 0, StageId(1), StageId(0))),
              ElementsAre("1>0 [0:1]"));
}

TEST(Shipments, RowsThatOverlapTwoSendersComeFromBoth) {
  const TrainingFamily family = familyOf(6, 1);
  const Layout layout(planOf({{{0, 1}, 2, 1}, {{2, 3, 4}, 3, 1}}, 1), family);
  EXPECT_THAT(texts(shipments(layout, Kind::kSplit, 0, StageId(0), StageId(1))),
              ElementsAre("0>2 [0:2]", "0>3 [2:3]", "1>3 [3:4]", "1>4 [4:6]"));
}

TEST(Shipments, ReplicasAreServedInTurn) {
  const TrainingFamily family = familyOf(4, 1);
  const Layout layout(planOf({{{0, 1}, 1, 2}, {{2, 3, 4, 5}, 2, 2}}, 1), family);
  EXPECT_THAT(texts(shipments(layout, Kind::kSplit, 0, StageId(0), StageId(1))),
              ElementsAre("0>2 [0:2]", "1>3 [0:2]", "0>4 [2:4]", "1>5 [2:4]"));
}

TrainingGraph meanOfSquares() {
  TrainingGraph training;
  training.graph.opset_imports = {{"", 20}};
  GraphBuilder builder(training.graph);
  ValueId last = builder.addValue("x", DataType::kFloat32, {4, 8});
  training.graph.inputs = {last};
  training.inputs = {{last, 0}};
  const auto node = [&](const std::string& op_type, const std::vector<ValueId>& inputs,
                        const std::string& name, Shape shape) {
    last = builder.addValue(name, DataType::kFloat32, std::move(shape));
    builder.addNode("", op_type, inputs, {last}, {{"keepdims", int64_t{0}}});
    training.node_phase.push_back(Phase::kForward);
    training.forward_node.emplace_back();
  };
  node("Mul", {last, last}, "squares", {4, 8});
  node("ReduceMean", {last}, "part", {});
  node("Mul", {last, builder.addConstant("share", makeScalar(DataType::kFloat32, 0.5))}, "scaled", {});
  node("Relu", {last}, "loss", {});
  training.loss = last;
  return training;
}

// Stages of these nodes (inclusive), each on as many data-parallel devices.
Plan cutAt(const std::vector<int64_t>& ends, const std::vector<int>& widths) {
  Plan plan;
  int64_t first = 0;
  for (size_t s = 0; s < ends.size(); ++s) {
    LayerPlan& layer = plan.layers.emplace_back();
    layer.first = first;
    layer.last = ends[s];
    first = ends[s] + 1;
    StagePlan& stage = plan.stages.emplace_back();
    stage.first_layer = stage.last_layer = LayerId(s);
    stage.mesh_shape = {widths[s], 1};
  }
  return plan;
}

TEST(NodeStages, AMeanIsScaledByItsShareOfTheBatchBeforeItGoesToOtherRows) {
  const TrainingGraph training = meanOfSquares();
  EXPECT_THAT(nodeStages(training, cutAt({1, 3}, {2, 1})),
              ElementsAre(StageId(0), StageId(0), StageId(0), StageId(1)));
  EXPECT_THAT(nodeStages(training, cutAt({1, 3}, {1, 3})),
              ElementsAre(StageId(0), StageId(0), StageId(0), StageId(1)));
  EXPECT_THAT(nodeStages(training, cutAt({1, 3}, {2, 2})),
              ElementsAre(StageId(0), StageId(0), StageId(1), StageId(1)));
  EXPECT_THAT(nodeStages(training, cutAt({0, 3}, {2, 1})),
              ElementsAre(StageId(0), StageId(1), StageId(1), StageId(1)));
  try {
    nodeStages(training, cutAt({1, 2, 3}, {2, 1, 1}));
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfiguration);
    EXPECT_THAT(error.message(), HasSubstr("stage 1 has only"));
  }
}

}  // namespace
}  // namespace pipeshard
