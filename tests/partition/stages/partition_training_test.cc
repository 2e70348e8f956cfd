// partitionTraining and nodeStages on training graphs built by hand.

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/graph/training_graph.h"
#include "ir/plan/plan_json.h"
#include "partition/cut/node_stages.h"
#include "partition/layers/layers.h"
#include "partition/stages/partition_training.h"
#include "tests/partition/training_builder.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

PartitionOptions onDevices(int devices) {
  PartitionOptions options;
  options.cluster = uniformCluster(1, devices);
  return options;
}

void expectError(const TrainingGraph& training, const PartitionOptions& options, ErrorCode code,
                 const std::string& message) {
  try {
    planFor(training, options);
    ADD_FAILURE() << "accepted; expected " << message;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    EXPECT_THAT(error.message(), HasSubstr(message));
  }
}

std::vector<int64_t> stageEnds(const Plan& plan) {
  std::vector<int64_t> ends;
  for (const StagePlan& stage : plan.stages) ends.push_back(plan.layers[stage.last_layer].last);
  return ends;
}

TEST(PartitionTraining, GivesEachDeviceOneStageOfEqualFlops) {
  const TrainingGraph training = chainTraining(7, 4);  // and the loss node: 8 forward nodes
  const Plan plan = planFor(training, onDevices(4));
  ASSERT_EQ(plan.stages.size(), 4u);
  EXPECT_EQ(plan.schedule, ScheduleSpec{"1f1b"});
  EXPECT_THAT(plan.notes, IsEmpty());
  for (size_t s = 0; s < 4; ++s) {
    EXPECT_THAT(plan.stages[StageId(s)].devices, ElementsAre(RankId(s)));
    EXPECT_EQ(plan.stages[StageId(s)].peak_activations, static_cast<int64_t>(4 - s));
  }
  EXPECT_THAT(stageEnds(plan), ElementsAre(1, 3, 5, 7));
  EXPECT_EQ(plan.layers.size(), 8u);
  EXPECT_EQ(plan.layers[LayerId(0)].first_node, "node_h0");
  EXPECT_EQ(plan.layers[LayerId(7)].last_node, "node_loss");
  EXPECT_EQ(plan.stages[StageId(0)].parameter_bytes, 2 * 24);
  EXPECT_GT(plan.stages[StageId(0)].backward_flops, 0);
}

TEST(PartitionTraining, SurvivesItsOwnJson) {
  const Plan plan = planFor(chainTraining(7, 4), onDevices(3));
  EXPECT_EQ(planToJson(planFromJson(planToJson(plan))), planToJson(plan));
}

TEST(PartitionTraining, NotesUnusedDevices) {
  PartitionOptions options = onDevices(4);
  options.stages = uniformStages(3);
  const Plan plan = planFor(chainTraining(5, 2), options);
  EXPECT_EQ(plan.stages.size(), 3u);
  EXPECT_THAT(plan.notes, ElementsAre("3 of 4 devices are used, one per stage: 3 stages cannot share 4 "
                                      "equally (--stage-devices gives each its number)"));
  EXPECT_THAT(planFor(chainTraining(1, 1), onDevices(3)).notes, ElementsAre(HasSubstr("2 of 3 devices")));
}

// "0,1|2,3": the devices of each stage.
std::string devicesOf(const Plan& plan) {
  std::string text;
  for (const StagePlan& stage : plan.stages) {
    EXPECT_EQ(stage.mesh_shape, (std::vector<int>{static_cast<int>(stage.devices.size()), 1}));
    text += fmt::format("{}{}", text.empty() ? "" : "|", fmt::join(stage.devices, ","));
  }
  return text;
}

TEST(PartitionTraining, GivesStagesEqualSharesOfTheDevices) {
  PartitionOptions options = onDevices(4);
  options.stages = uniformStages(2);
  const Plan plan = planFor(chainTraining(5, 2), options);  // a microbatch has two rows
  EXPECT_EQ(devicesOf(plan), "0,1|2,3");
  EXPECT_THAT(plan.notes, IsEmpty());
  options.cluster = uniformCluster(1, 5);
  EXPECT_EQ(devicesOf(planFor(chainTraining(5, 2), options)), "0,1|2,3");
  options.cluster = uniformCluster(2, 2);
  options.stages = parseStages("per-device");
  options.boundaries = {"h1"};
  EXPECT_EQ(devicesOf(planFor(chainTraining(5, 2), options)), "0,1|2,3");
}

TEST(PartitionTraining, CutsAMicrobatchOverNoMoreDevicesThanItHasRows) {
  PartitionOptions options = onDevices(8);
  options.stages = uniformStages(2);
  const Plan plan = planFor(chainTraining(5, 2), options);
  EXPECT_EQ(devicesOf(plan), "0,1|2,3");
  EXPECT_THAT(plan.notes, ElementsAre("4 of 8 devices are used, 2 per stage: a microbatch of 2 rows cannot "
                                      "be cut over more (ask for fewer --microbatches)"));
  TrainingBuilder builder(1);
  const TrainingGraph whole =
      builder.finish({builder.op("h", {builder.input("x", -1), builder.parameter("w")})});
  const Plan one = planFor(whole, options);
  EXPECT_EQ(devicesOf(one), "0|1");
  EXPECT_THAT(one.notes,
              ElementsAre(HasSubstr("no input has a batch dimension that could be cut over more")));
}

TEST(PartitionTraining, GoesByTheSmallestMicrobatch) {
  Plan plan;
  plan.dimensions = {{"batch", 3}};  // microbatches of two rows and one
  plan.batch_dimension = "batch";
  plan.microbatches = 2;
  PartitionOptions options = onDevices(4);
  options.stages = uniformStages(2);
  partitionTraining(chainTraining(5, 2), options, plan);
  EXPECT_EQ(devicesOf(plan), "0|1");
  EXPECT_THAT(plan.notes, ElementsAre(HasSubstr("a microbatch of one row cannot be cut over more")));
}

TEST(PartitionTraining, CutsAtTheBoundariesThatTheUserNames) {
  PartitionOptions options = onDevices(3);
  options.boundaries = {"h0", "h3"};
  const Plan plan = planFor(chainTraining(6, 2), options);
  EXPECT_THAT(stageEnds(plan), ElementsAre(0, 3, 6));
  EXPECT_EQ(plan.layers.size(), 3u);
}

TEST(PartitionTraining, RefusesBadBoundaries) {
  const TrainingGraph training = chainTraining(4, 2);
  PartitionOptions options = onDevices(3);
  const auto expect = [&](std::vector<std::string> boundaries, const std::string& message) {
    options.boundaries = std::move(boundaries);
    expectError(training, options, ErrorCode::kConfiguration, message);
  };
  expect({"h_1"},
         "boundary \"h_1\" is no value of the model; a boundary is a value that a forward node makes, "
         "perhaps \"h");
  expect({"x"}, "boundary \"x\" is an input, a weight or a value of the backward pass");
  expect({"d_h0_by_h1"}, "a value of the backward pass");
  expect({"h2", "h1"}, "boundary \"h1\" does not come after \"h2\"");
  expect({"h1", "h1"}, "boundary \"h1\" does not come after \"h1\"");
  expect({"loss"}, "the stage behind it would be empty");
  expect({"h0", "h1", "h2"}, "--boundary: 4 stages are asked for, but the cluster has 3 devices");
  options.boundaries = {"h1"};
  options.layers = 2;
  expectError(training, options, ErrorCode::kUsage, "--layers and --boundary exclude each other");
}

TEST(PartitionTraining, RefusesImpossibleStageCounts) {
  const TrainingGraph training = chainTraining(2, 1);
  PartitionOptions options = onDevices(8);
  for (const char* text : {"uniform:", "uniform:0", "uniform:-1", "uniform:2x", "even", ""}) {
    options.stages = parseStages(text);
    expectError(training, options, ErrorCode::kUsage,
                "is not understood; write auto (searched), per-device (one stage per device), uniform:K");
    expectError(training, options, ErrorCode::kUsage, "megatron:DP,TP,PP[,V]");
  }
  options.stages = uniformStages(9);
  expectError(training, options, ErrorCode::kConfiguration, "9 stages need 9 devices, the cluster has 8");
  options.stages = uniformStages(4);
  expectError(training, options, ErrorCode::kConfiguration,
              "4 stages were asked for, but the model has only 3 forward nodes");
  options.stages = uniformStages(3);
  options.layers = 2;
  expectError(training, options, ErrorCode::kConfiguration, "2 layers are too few for 3 stages");
  options.layers = 4;
  expectError(training, options, ErrorCode::kConfiguration, "4 layers were asked for");
  options.layers = 0;
  options.schedule = ScheduleSpec{"none"};
  expectError(training, options, ErrorCode::kUsage, "there is no schedule \"none\"");
}

TEST(CutBytes, CountsEachValueOnceAtEveryCutThatItCrosses) {
  TrainingBuilder builder(1);
  const ValueId x = builder.input("x");
  const ValueId a = builder.op("a", {x});        // 24 bytes
  const ValueId b = builder.op("b", {a, a}, 4);  // 48
  const ValueId c = builder.op("c", {b, a});     // 24; a crosses two cuts
  const TrainingGraph training = builder.finish({c, builder.op("d", {c})});
  EXPECT_THAT(cutBytes(training, forwardNodes(training)), ElementsAre(24, 24 + 48, 24, 48, 0));
}

// The stage of the node that makes the value.
StageId stageOf(const TrainingGraph& training, const std::vector<StageId>& stages, const std::string& value) {
  return stages[computeUseDef(training.graph).producer[findValue(training.graph, value).index()].index()];
}

TEST(NodeStages, FollowTheForwardNodeAndTheOwner) {
  TrainingBuilder builder(2);
  const ValueId x = builder.input("x");
  const ValueId labels = builder.input("labels");
  const ValueId shared = builder.parameter("shared");
  const ValueId h0 = builder.op("h0", {x, shared});
  const ValueId h1 = builder.op("h1", {h0, builder.parameter("w1")});
  const ValueId h2 = builder.op("h2", {h1, h0, shared});
  const TrainingGraph training = builder.finish({h2, labels, builder.total("count", labels)});
  PartitionOptions options = onDevices(3);
  options.boundaries = {"h0", "h1"};
  const std::vector<StageId> stages = nodeStages(training, planFor(training, options));
  EXPECT_EQ(stageOf(training, stages, "h0"), StageId(0));
  EXPECT_EQ(stageOf(training, stages, "h2"), StageId(2));
  EXPECT_EQ(stageOf(training, stages, "loss"), StageId(2));
  EXPECT_EQ(stageOf(training, stages, "d_h0_by_h2"), StageId(2));
  EXPECT_EQ(stageOf(training, stages, "d_h0_by_h1"), StageId(1));
  EXPECT_EQ(stageOf(training, stages, "d_h0"), StageId(0));  // the sum, with the producer of h0
  EXPECT_EQ(stageOf(training, stages, "d_w1_by_h1"), StageId(1));
  EXPECT_EQ(stageOf(training, stages, "d_shared_by_h2"), StageId(2));
  EXPECT_EQ(stageOf(training, stages, "shared_new"), StageId(0));
  EXPECT_EQ(stageOf(training, stages, "w1_new"), StageId(1));
  EXPECT_EQ(stageOf(training, stages, "rate"), StageId(0));
  EXPECT_EQ(stageOf(training, stages, "count_part"), StageId(2));
}

TEST(NodeStages, RefuseAPlanOfAnotherModel) {
  const Plan plan = planFor(chainTraining(4, 1), onDevices(2));
  try {
    nodeStages(chainTraining(5, 1), plan);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfiguration);
    EXPECT_THAT(error.message(), HasSubstr("the plan's stages cover 5 forward nodes, but the model has 6"));
  }
}

}  // namespace
}  // namespace pipeshard
