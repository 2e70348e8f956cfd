// --schedule and --recompute in plans: which stages and devices they give, and what they refuse.
#include <filesystem>
#include <fstream>

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/plan/plan_json.h"
#include "partition/emit/emit_programs.h"
#include "partition/families/make_schedule.h"
#include "partition/families/plan_schedule.h"
#include "partition/schedules/schedule.h"
#include "partition/schedules/schedule_csv.h"
#include "partition/stages/asked_stages.h"
#include "partition/stages/partition_training.h"
#include "tests/expect_error.h"
#include "tests/partition/schedules/schedule_from_text.h"
#include "tests/partition/training_builder.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

PartitionOptions optionsFor(const std::string& schedule, int devices) {
  PartitionOptions options;
  options.schedule = parseScheduleChoice(schedule);
  options.cluster = uniformCluster(1, devices);
  return options;
}

Plan planFor(const PartitionOptions& options, int64_t microbatches = 4) {
  Plan plan;
  plan.cluster = options.cluster;
  partitionTraining(chainTraining(11, microbatches), options, plan);
  EXPECT_EQ(planToJson(planFromJson(planToJson(plan))), planToJson(plan));
  return plan;
}

void expectError(const PartitionOptions& options, ErrorCode code, const std::string& message,
                 int64_t microbatches = 4) {
  try {
    planFor(options, microbatches);
    ADD_FAILURE() << "accepted; expected " << message;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.message();
    EXPECT_THAT(error.message(), HasSubstr(message));
  }
}

// "0 | 1,2 | 0": the devices of each stage.
std::string devicesOf(const Plan& plan) {
  std::vector<std::string> texts;
  for (const StagePlan& stage : plan.stages)
    texts.push_back(fmt::format("{}", fmt::join(stage.devices, ",")));
  return fmt::format("{}", fmt::join(texts, " | "));
}

std::string writeFile(const std::string& name, const std::string& content) {
  const std::filesystem::path path = std::filesystem::path(::testing::TempDir()) / name;
  std::ofstream(path) << content;
  return path.string();
}

TEST(PlanSchedule, SeveralStagesPerRankShareItsDevices) {
  const Plan looped = planFor(optionsFor("interleaved", 2));
  EXPECT_EQ(looped.schedule, (ScheduleSpec{"interleaved", {{"v", 2}}}));
  EXPECT_EQ(devicesOf(looped), "0 | 1 | 0 | 1");
  EXPECT_THAT(looped.schedule_orders, IsEmpty());
  EXPECT_EQ(devicesOf(planFor(optionsFor("interleaved:v=3", 2))), "0 | 1 | 0 | 1 | 0 | 1");
  EXPECT_EQ(devicesOf(planFor(optionsFor("dual-pipe-v", 2))), "0 | 1 | 1 | 0");
  PartitionOptions wide = optionsFor("interleaved", 4);
  wide.stages = uniformStages(4);
  EXPECT_EQ(devicesOf(planFor(wide, 2)), "0,1 | 2,3 | 0,1 | 2,3");
  wide.stage_devices = {1, 2};
  EXPECT_EQ(devicesOf(planFor(wide, 2)), "0 | 1,2 | 0 | 1,2");
}

TEST(PlanSchedule, PeaksAreThoseOfEachStage) {
  const Plan plan = planFor(optionsFor("looped-bfs", 2));
  for (const StagePlan& stage : plan.stages) EXPECT_EQ(stage.peak_activations, 4);
  const Plan plain = planFor(optionsFor("1f1b", 4));
  EXPECT_EQ(plain.stages[StageId(0)].peak_activations, 4);
  EXPECT_EQ(plain.stages[StageId(3)].peak_activations, 1);
}

TEST(PlanSchedule, NumbersOfStagesMustFit) {
  PartitionOptions options = optionsFor("interleaved:v=2", 4);
  options.stages = uniformStages(5);
  expectError(options, ErrorCode::kConfiguration,
              "--stages uniform:5: found 5 stages; expected a multiple of 2, as --schedule interleaved:v=2 "
              "has 2 stages on every pipeline rank");
  options.stages = uniformStages(1);
  expectError(options, ErrorCode::kConfiguration, "--stages uniform:1: found 1 stage; expected");
  options.stages = uniformStages(10);
  expectError(options, ErrorCode::kConfiguration, "5 pipeline ranks need 5 devices, the cluster has 4");
  options.stages = parseStages("per-device");
  options.boundaries = {"h1", "h2"};
  expectError(options, ErrorCode::kConfiguration, "--boundary: found 3 stages; expected a multiple of 2");
  options = optionsFor("interleaved:v=20", 1);
  expectError(options, ErrorCode::kConfiguration, "20 stages");
  options = optionsFor("interleaved", 2);
  options.stage_devices = {1, 1, 1};
  options.stages = uniformStages(4);
  expectError(options, ErrorCode::kConfiguration,
              "--stage-devices 1,1,1: found 3 pipeline ranks; expected 2, one number per pipeline rank");
  expectError(optionsFor("dual-pipe-v", 4), ErrorCode::kConfiguration, "dual-pipe-v", 4);
  options.schedule = ScheduleSpec{"2f2b"};
  expectError(options, ErrorCode::kUsage, "there is no schedule \"2f2b\"");
  EXPECT_ERROR(parseScheduleChoice("2f2b"), ErrorCode::kUsage, "there is no schedule \"2f2b\"");
}

TEST(PlanSchedule, StageFilesPlaceChunks) {
  PartitionOptions options = optionsFor("interleaved", 2);
  options.stages = parseStages(writeFile("chunks.json", R"({"version": 1, "stages": [
      {"layer_count": 2, "devices": [1]}, {"layer_count": 3, "devices": [0]}, {"layer_count": 4, "devices": [1]}, {"layer_count": 2, "devices": [0]}]})"));
  EXPECT_EQ(devicesOf(planFor(options)), "1 | 0 | 1 | 0");
  options.schedule = ScheduleSpec{"dual-pipe-v"};
  expectError(options, ErrorCode::kConfiguration,
              "the schedule dual-pipe-v has stages 0 and 2 on different pipeline ranks, but their devices "
              "are [1] and [1]; expected different devices");
  options.schedule = ScheduleSpec{"1f1b"};
  expectError(options, ErrorCode::kConfiguration,
              "the schedule 1f1b runs 2 stages on 2 pipeline ranks; the plan has 4 stages on 2 groups of "
              "devices; ask for 2 stages");
}

TEST(PlanSchedule, AFileOfOrdersIsStoredAndReplays) {
  const std::string path = writeFile("orders.csv", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1I1,1W1\n");
  const Plan plan = planFor(optionsFor(path, 2), 2);
  EXPECT_EQ(plan.schedule, ScheduleSpec::ofFile());
  EXPECT_THAT(plan.schedule_orders, ElementsAre("0F0,0F1,0B0,0B1", "1F0,1B0,1F1,1I1,1W1"));
  std::filesystem::remove(path);
  const Schedule schedule = scheduleOf(planFromJson(planToJson(plan)));
  EXPECT_EQ(schedule.name(), "file");
  EXPECT_EQ(scheduleToCsv(schedule.orders), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1I1,1W1\n");
  EXPECT_EQ(emitOneSize(chainTraining(11, 2), plan).size(), 2u);
}

TEST(PlanSchedule, RefusesFilesThatDoNotFit) {
  const std::string path = writeFile("orders.csv", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  expectError(optionsFor(path, 4), ErrorCode::kConfiguration,
              "the orders of the schedule are for 2 microbatches, the plan has 4; ask for --microbatches 2");
  PartitionOptions options = optionsFor(path, 4);
  options.stages = uniformStages(3);
  expectError(options, ErrorCode::kConfiguration,
              "--stages uniform:3: found 3 stages; expected 2, as --schedule " + path + " runs", 2);
  expectError(optionsFor("no/orders", 2), ErrorCode::kMissingInput,
              "--schedule no/orders: there is no file of this name");
  expectError(optionsFor("orders.csv", 2), ErrorCode::kMissingInput,
              "--schedule orders.csv: there is no file of this name");
  expectError(optionsFor(writeFile("wrong.csv", "0F0,0X0\n"), 2), ErrorCode::kConfiguration, "wrong.csv:1:");
}

TEST(PlanSchedule, TheFirstMicrobatchesKeepTheirOrder) {
  for (const ScheduleFamily& family : scheduleFamilies()) {
    if (family.asynchronous) continue;
    const Schedule whole = makeSchedule(family.name, 4, 8);
    EXPECT_EQ(firstMicrobatches(whole, 8).orders, whole.orders);
    for (int m = 1; m < 8; ++m) {
      const Schedule part = firstMicrobatches(whole, m);
      EXPECT_EQ(part.microbatches, m);
      for (size_t r = 0; r < part.orders.size(); ++r)
        EXPECT_LE(peakActivations(part.orders[PipelineRankId(r)]),
                  peakActivations(whole.orders[PipelineRankId(r)]));
    }
  }
  EXPECT_EQ(firstMicrobatches(makeSchedule("1f1b", 4, 8), 3).orders, makeSchedule("1f1b", 4, 3).orders);
}

TEST(PlanSchedule, AsksForNumbersOfRanksAndMicrobatches) {
  EXPECT_EQ(askedStages(optionsFor("interleaved:v=3", 4)).ranks, 4);
  PartitionOptions options = optionsFor("interleaved:v=3", 4);
  options.stages = uniformStages(6);
  EXPECT_EQ(askedStages(options).ranks, 2);
  EXPECT_EQ(askedStages(options).widest, 2);
  EXPECT_EQ(askedStages(optionsFor(writeFile("orders.csv", "0F0,0F1,0B0,0B1\n"), 4)).microbatches, 2);
}

// On four devices, of one stage.
int rowsEachTime(const std::string& method) {
  PartitionOptions options = optionsFor("1f1b", 4);
  options.stages = uniformStages(1);
  options.sharding.method = parseShardingMethod(method);
  return askedStages(options).widest;
}

TEST(PlanSchedule, AsksForARowForEachDeviceOverWhichAMethodCutsTheBatch) {
  for (const char* all : {"data-parallel", "zero2", "zero3"}) EXPECT_EQ(rowsEachTime(all), 4) << all;
  EXPECT_EQ(rowsEachTime("megatron:2,2"), 2);
  EXPECT_EQ(rowsEachTime("megatron-zero2:4,1"), 4);
  for (const char* none : {"auto", "tensor-parallel", "manual"}) EXPECT_EQ(rowsEachTime(none), 1) << none;
}

// Of a batch of so many rows on four devices.
int64_t chosenMicrobatches(int64_t batch, const std::string& schedule) {
  const PartitionOptions options = optionsFor(schedule, 4);
  return chooseMicrobatches(batch, options, askedStages(options));
}

TEST(PlanSchedule, ChoosesMicrobatchesWithWhichTheScheduleExists) {
  EXPECT_EQ(chosenMicrobatches(8, "1f1b"), 8);
  EXPECT_EQ(chosenMicrobatches(12, "1f1b"), 6);
  // two per rank at least, and 8 does not divide the batch
  EXPECT_EQ(chosenMicrobatches(12, "dual-pipe-v"), 12);
  EXPECT_EQ(chosenMicrobatches(36, "dual-pipe-v"), 9);
  EXPECT_EQ(chosenMicrobatches(7, "dual-pipe-v"), 7);  // there is no such number
  EXPECT_EQ(chosenMicrobatches(24, "pipedream-2bw:m=12"), 12);
}

std::string recomputations(const std::string& text) {
  PartitionOptions options = optionsFor("1f1b", 4);
  options.recomputation = parseRecomputation(text);
  std::string result;
  for (const StagePlan& stage : planFor(options).stages)
    result += std::string(recomputationName(stage.recomputation)) + " ";
  return result;
}

TEST(PlanRecomputation, IsForAllStagesOrByStage) {
  EXPECT_EQ(recomputations("never"), "never never never never ");
  EXPECT_EQ(recomputations("always"), "always always always always ");
  EXPECT_EQ(recomputations("except-last"), "except-last except-last except-last except-last ");
  EXPECT_EQ(recomputations("layers"), "layers layers layers layers ");
  EXPECT_EQ(recomputations("0:always,1:selective,2:except-last,3:layers"),
            "always selective except-last layers ");
}

TEST(PlanRecomputation, RefusesWhatItDoesNotUnderstand) {
  for (const char* wrong :
       {"sometimes", "", "0", "0:", "0:always,", "0:always,0:never", "-1:always", "0:Always", "a:always"}) {
    EXPECT_ERROR(
        parseRecomputation(wrong), ErrorCode::kUsage,
        "expected never, selective, layers, always or except-last, for all stages or by stage, each once");
  }
  PartitionOptions options = optionsFor("1f1b", 4);
  options.recomputation = parseRecomputation("4:always");
  expectError(
      options, ErrorCode::kUsage,
      "expected never, selective, layers, always or except-last, for all stages or by stage from 0 to 3");
}

TEST(PlanRecomputation, RefusesNodesWithRandomNumbersByName) {
  TrainingGraph training = chainTraining(3, 2);
  for (Node& node : training.graph.nodes) {
    if (node.outputs[0].valid() && training.graph.value(node.outputs[0]).name == "h0") {
      node.domain = "";
      node.op_type = "RandomNormalLike";
      node.name = "noise";
    }
  }
  PartitionOptions options = optionsFor("1f1b", 2);
  options.boundaries = {"h1"};
  options.recomputation = parseRecomputation("1:always");
  Plan plan;
  partitionTraining(training, options, plan);
  EXPECT_NO_THROW(emitOneSize(training, plan));
  plan.stages[StageId(0)].recomputation = Recomputation::kAlways;
  try {
    emitOneSize(training, plan);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfiguration);
    EXPECT_THAT(error.message(), HasSubstr("stage 0 recomputes its forward pass, but"));
    EXPECT_THAT(error.message(), HasSubstr("noise"));
  }
}

}  // namespace
}  // namespace pipeshard
