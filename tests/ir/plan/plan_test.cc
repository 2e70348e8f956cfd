#include "ir/plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "ir/plan/plan_json.h"
#include "tests/expect_error.h"
#include "tests/ir/base/edited_text.h"

namespace pipeshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Plan examplePlan() {
  Plan plan;
  plan.model_path = "/models/gpt2.onnx";
  plan.dimensions = {{"batch", 8}, {"sequence", 16}};
  plan.batch_dimension = "batch";
  plan.loss = "loss";
  plan.given.optimizer = parseOptimizer("sgd:lr=0.1");
  plan.cluster = uniformCluster(1, 2);
  plan.microbatches = 4;
  plan.schedule = {"1f1b"};
  plan.layers = {
      {"embed", "add_1", 0, 4, 1000}, {"norm", "mlp", 5, 5, 3000000000}, {"head", "loss", 6, 9, 2000}};
  plan.stages = {{LayerId(0), LayerId(1), {RankId(0)}, {1, 1}, 3000001000, 6000002000, 4000000, 2},
                 {LayerId(2), LayerId(2), {RankId(1)}, {1, 1}, 2000, 4000, 12, 1}};
  plan.notes = {"a \"quoted\" note"};
  return plan;
}

void expectError(const std::string& text, ErrorCode code, const std::string& message) {
  EXPECT_ERROR(planFromJson(text), code, message);
}

TEST(PlanJson, KeepsOptionsAsGivenAndLeavesOutThoseThatWereNot) {
  Plan plan = examplePlan();
  EXPECT_EQ(planToJson(plan).find("freeze"), std::string::npos);
  plan.given.train = {"^head"};
  plan.given.freeze = {".", "bias$"};
  plan.boundaries = {"add_1"};
  const Plan parsed = planFromJson(planToJson(plan));
  EXPECT_EQ(parsed.given.train, plan.given.train);
  EXPECT_EQ(parsed.given.freeze, plan.given.freeze);
  EXPECT_EQ(parsed.boundaries, plan.boundaries);
}

TEST(PlanJson, RoundTripsByteForByte) {
  const std::string json = planToJson(examplePlan());
  EXPECT_EQ(planToJson(planFromJson(json)), json);
  EXPECT_EQ(printPlan(planFromJson(json)), printPlan(examplePlan()));
  const Plan parsed = planFromJson(json);
  EXPECT_EQ(parsed.dimensions, examplePlan().dimensions);
  EXPECT_EQ(parsed.stages[StageId(0)].forward_flops, 3000001000);
  EXPECT_EQ(parsed.notes, examplePlan().notes);
}

TEST(PlanJson, KeepsWhatASearchHasFound) {
  Plan plan = examplePlan();
  EXPECT_EQ(planToJson(plan).find("search"), std::string::npos);
  const SearchedStage first{0,  1, 0,   1, 2, {2, 1}, {ShardingKind::kZero2}, Recomputation::kAlways,
                            70, 8, 4096};
  SearchRecord& search = plan.search.emplace();
  search.complete = false;
  search.objective = "time";
  search.alternatives = {{1200, 4096, 4, {"gpipe"}, {first}}, {1300, 4000, 8, {"1f1b"}, {first, first}}};
  search.chosen = 1;
  search.reasons = {{"cut 0", "behind layer 1", "behind layer 0", 1250, ""},
                    {"mesh 0", "2x1", "1x2", 0, "too large"}};
  search.stage_costs = {first};
  const std::string json = planToJson(plan);
  EXPECT_EQ(planToJson(planFromJson(json)), json);
  EXPECT_THAT(json, HasSubstr("\n  \"search\": {\"complete\":false,\"objective\":\"time\",\"chosen\":1},\n"));
  EXPECT_THAT(json,
              HasSubstr("\n    {\"about\":\"mesh "
                        "0\",\"chosen\":\"2x1\",\"instead\":\"1x2\",\"step_ns\":0,\"why\":\"too large\"}\n"));
  EXPECT_EQ(planFromJson(json).search->alternatives[1].stages.size(), 2u);
  expectError(replaced(json, "\"chosen\":1}", "\"chosen\":2}"), ErrorCode::kConfiguration,
              "plan.json.search.chosen: found 2; expected an integer from 0 to 1");
  expectError(replaced(json, "\"submesh\":[1,2]", "\"submesh\":[2]"), ErrorCode::kConfiguration,
              "plan.json.alternatives[0].stages[0].submesh: found [2]; expected two integers");
}

TEST(PlanJson, KeepsLengthsOfSequencesAndRefusesThoseThatCannotBe) {
  Plan plan = examplePlan();
  plan.length_dimension = "sequence";
  plan.shorter_lengths = {8, 4};
  const std::string json = planToJson(plan);
  const Plan parsed = planFromJson(json);
  EXPECT_EQ(parsed.length_dimension, "sequence");
  EXPECT_EQ(parsed.shorter_lengths, plan.shorter_lengths);
  EXPECT_EQ(planToJson(parsed), json);
  EXPECT_THAT(printPlan(parsed),
              HasSubstr("sequence = 16, 8, 4 (planned for the longest; programs for each)"));
  const auto refuses = [&](const std::string& lengths, const std::string& message) {
    expectError(replaced(json, "\"shorter\":[8,4]", "\"shorter\":" + lengths), ErrorCode::kConfiguration,
                message);
  };
  refuses("[4,8]", "plan.json.lengths.shorter: expected lengths that descend, one at least");
  refuses("[8,8]", "plan.json.lengths.shorter");
  refuses("[]", "plan.json.lengths.shorter");
  refuses("[16]", "plan.json.lengths.shorter[0]: found 16");
  expectError(replaced(json, "{\"dimension\":\"sequence\"", "{\"dimension\":\"time\""),
              ErrorCode::kConfiguration,
              "plan.json.lengths.dimension: found 'time'; expected one of `dimensions`");
}

TEST(PlanJson, HasOneLinePerLayerAndStage) {
  const std::string json = planToJson(examplePlan());
  EXPECT_THAT(
      json,
      HasSubstr(
          "\n    "
          "{\"first_node\":\"norm\",\"last_node\":\"mlp\",\"first\":5,\"last\":5,\"flops\":3000000000},\n"));
  EXPECT_THAT(json, HasSubstr("\n  \"microbatches\": 4,\n"));
}

TEST(PlanJson, NamesTheFieldThatIsWrong) {
  const std::string json = planToJson(examplePlan());
  expectError(replaced(json, "\"1f1b\"", "1"), ErrorCode::kConfiguration,
              "plan.json.schedule: found 1; expected a string");
  expectError(replaced(json, "\"schedule\": \"1f1b\"", "\"schedule\": \"1f1b:v\""), ErrorCode::kConfiguration,
              "plan.json.schedule: --schedule 1f1b:v: found \"v\"; expected options as in 1f1b:key=2");
  expectError(replaced(json, "\"microbatches\": 4", "\"microbatches\": 0"), ErrorCode::kConfiguration,
              "plan.json.microbatches: found 0; expected an integer from 1");
  expectError(replaced(json, "\"microbatches\": 4", "\"microbatches\": \"4\""), ErrorCode::kConfiguration,
              "plan.json.microbatches: found \"4\"");
  expectError(replaced(json, "\"microbatches\"", "\"microbatch\""), ErrorCode::kConfiguration,
              "found an unknown key \"microbatch\"; the keys here are version, model");
  expectError(replaced(json, "\"loss\": \"loss\",", ""), ErrorCode::kConfiguration,
              "plan.json: key \"loss\" is missing");
  expectError(replaced(json, "\"devices\":[1]", "\"devices\":[2]"), ErrorCode::kConfiguration,
              "plan.json.stages[1].devices[0]: found 2; expected an integer from 0 to 1");
  expectError(replaced(json, "\"mesh_shape\":[1,1]", "\"mesh_shape\":[1,2]"), ErrorCode::kConfiguration,
              "plan.json.stages[0].mesh_shape: found [1,2]; expected [data, model] whose product is the "
              "number of devices of the stage, 1");
  expectError(replaced(json, "\"mesh_shape\":[1,1]", "\"mesh_shape\":[1]"), ErrorCode::kConfiguration,
              "plan.json.stages[0].mesh_shape: found [1]; expected [data, model]");
  expectError(replaced(json, "\"devices\":[0]", "\"devices\":[]"), ErrorCode::kConfiguration,
              "plan.json.stages[0].devices: found []; expected at least one device");
  expectError(
      replaced(json, "\"devices\":[0]", "\"devices\":[0,0]"), ErrorCode::kConfiguration,
      "plan.json.stages[0].devices[1]: found 0; expected a device that the stage does not have already");
  expectError(replaced(json, "\"batch\":8", "\"batch\":8.5"), ErrorCode::kConfiguration,
              "plan.json.dimensions.batch: found 8.5");
  expectError(replaced(json, "\"version\": 2", "\"version\": 7"), ErrorCode::kVersionMismatch,
              "version 7 was found, this pipeshard reads version 2");
  expectError("[]", ErrorCode::kConfiguration, "key \"version\" is missing");
  expectError(replaced(json, "\"optimizer\": \"sgd", "\"optimizer\": \"sdg"), ErrorCode::kConfiguration,
              "plan.json.optimizer: unknown optimizer 'sdg'");
  expectError(replaced(json, "\"cut_batch\": false", "\"cut_batch\": 1"), ErrorCode::kConfiguration,
              "plan.json.cut_batch");
}

TEST(PlanJson, RefusesGapsAmongTheDevicesInUse) {
  Plan plan = examplePlan();
  plan.cluster = uniformCluster(1, 4);
  plan.stages[StageId(1)].devices = idsAt<RankId>({2});
  expectError(planToJson(plan), ErrorCode::kConfiguration,
              "plan.json.stages: found device 2 in use; expected 0 to 1 without gaps");
  plan.stages[StageId(0)].devices = idsAt<RankId>({3, 1});
  plan.stages[StageId(0)].mesh_shape = {2, 1};
  plan.stages[StageId(1)].devices = idsAt<RankId>({0, 2});
  plan.stages[StageId(1)].mesh_shape = {1, 2};
  EXPECT_EQ(planToJson(planFromJson(planToJson(plan))), planToJson(plan));
}

TEST(PlanJson, StagesOfOnePipelineRankListTheSameDevices) {
  Plan plan = examplePlan();
  plan.cluster = uniformCluster(1, 4);
  for (StagePlan& stage : plan.stages) {
    stage.devices = idsAt<RankId>({1, 0});
    stage.mesh_shape = {2, 1};
  }
  EXPECT_EQ(planToJson(planFromJson(planToJson(plan))), planToJson(plan));
  plan.stages[StageId(1)].devices = idsAt<RankId>({0, 1});
  expectError(planToJson(plan), ErrorCode::kConfiguration,
              "plan.json.stages[1].devices[0]: found 0; expected a device that no stage has, or all devices "
              "of stages[0], which has it, in its order");
  plan.stages[StageId(1)].devices = idsAt<RankId>({2, 1});
  expectError(planToJson(plan), ErrorCode::kConfiguration,
              "plan.json.stages[1].devices[1]: found 1; expected a device that no stage has");
}

// Stage 0 on a mesh of 2 x 2.
Plan shardedPlan() {
  Plan plan = examplePlan();
  plan.cluster = uniformCluster(1, 8);
  plan.stages[StageId(0)].devices = idsAt<RankId>({0, 1, 2, 3});
  plan.stages[StageId(0)].mesh_shape = {1, 4};
  plan.stages[StageId(1)].devices = idsAt<RankId>({4});
  plan.stages[StageId(0)].sharding = ShardingPlan{{ShardingKind::kAuto},
                                                  {2, 2},
                                                  {{"mul", "0:i"}, {"add_1", "0:k 1:j"}},
                                                  {{"w", "S0,R"}, {"h", "R,S1;P0"}},
                                                  1230000,
                                                  450000,
                                                  3000000,
                                                  1600000,
                                                  false};
  return plan;
}

// Every rule that is violated is named, and what follows from one fault alone is not another.
TEST(PlanJson, NamesAllFaultsTogether) {
  const std::string sound = planToJson(shardedPlan());
  EXPECT_TRUE(planFaults(sound).empty());
  std::string json = replaced(sound, "\"devices\":[4]", "\"devices\":[9]");
  json = replaced(json, "\"first\":5", "\"first\":6");
  json = replaced(json, "\"schedule\": \"1f1b\"", "\"shedule\": \"1f1b\"");
  json = replaced(json, "\"microbatches\": 4", "\"microbatches\": 0");
  json = replaced(json, "\"S0,R\"", "\"S2,R\"");
  json = replaced(json, "\"R,S1;P0\"", "\"Q\"");
  EXPECT_THAT(
      planFaults(json),
      ElementsAre(AllOf(HasSubstr("an unknown key \"shedule\""), HasSubstr("did you mean \"schedule\"?")),
                  HasSubstr("plan.json.microbatches: found 0"),
                  HasSubstr("plan.json.layers[1].first: found 6; expected 5"),
                  HasSubstr("plan.json.stages[1].devices[0]: found 9; expected an integer from 0 to 7"),
                  HasSubstr("plan.json.specs[0].spec: found \"Q\""),
                  HasSubstr("plan.json.specs[1].spec: found \"S2,R\"")));
  expectError(json, ErrorCode::kConfiguration, "plan.json: 6 faults:\n  plan.json: found an unknown key");
  expectError(json, ErrorCode::kConfiguration, "\n  plan.json.specs[1].spec: found \"S2,R\"");
}

TEST(PlanJson, AFaultIsNotSaidAgainOfWhatFollowsFromIt) {
  const std::string sound = planToJson(shardedPlan());
  const auto faultsOf = [&](const char* from, const char* to) {
    return planFaults(replaced(sound, from, to));
  };
  EXPECT_THAT(faultsOf("\"nodes\":1", "\"nodes\":0"),
              ElementsAre(HasSubstr("plan.json.cluster.nodes: found 0")));
  EXPECT_THAT(faultsOf("\"mesh\":[2,2]", "\"mesh\":[]"),
              ElementsAre(HasSubstr("plan.json.shardings[0].mesh: found []")));
  EXPECT_THAT(faultsOf("\"devices\":[0,1,2,3]", "\"devices\":[0,1,2,2]"),
              ElementsAre(HasSubstr("plan.json.stages[0].devices[3]: found 2")));
  EXPECT_THAT(faultsOf("\"last_layer\":2", "\"last_layer\":7"),
              ElementsAre(HasSubstr("plan.json.stages[1].last_layer: found 7")));
  EXPECT_THAT(faultsOf("\"last_layer\":1", "\"last_layer\":0"),
              ElementsAre(HasSubstr("plan.json.stages[1].first_layer: found 2; expected 1")));
  EXPECT_THAT(faultsOf("\"first_layer\":0", "\"layer\":0"),
              ElementsAre(HasSubstr("plan.json.stages[0]: found an unknown key \"layer\"")));
  EXPECT_THAT(planFaults("{"), ElementsAre(HasSubstr("this is not JSON")));
}

TEST(PlanJson, RefusesAPlanWithoutStages) {
  Plan plan = examplePlan();
  plan.stages.clear();
  expectError(planToJson(plan), ErrorCode::kConfiguration,
              "plan.json.stages: found []; expected at least one stage");
}

TEST(PlanJson, RefusesStagesAndLayersWithGaps) {
  const std::string json = planToJson(examplePlan());
  expectError(replaced(json, "\"first\":5", "\"first\":6"), ErrorCode::kConfiguration,
              "plan.json.layers[1].first: found 6; expected 5");
  expectError(replaced(json, "\"last_layer\":1", "\"last_layer\":0"), ErrorCode::kConfiguration,
              "plan.json.stages[1].first_layer: found 2; expected 1");
  expectError(replaced(json, "\"last_layer\":2", "\"last_layer\":3"), ErrorCode::kConfiguration,
              "plan.json.stages[1].last_layer: found 3; expected an integer from 2 to 2");
  Plan short_plan = examplePlan();
  short_plan.stages.pop_back();
  expectError(planToJson(short_plan), ErrorCode::kConfiguration,
              "stages that cover all 3 layers; the last stage ends before layer 2");
}

TEST(PlanJson, RoundTripsShardings) {
  const std::string json = planToJson(shardedPlan());
  const Plan parsed = planFromJson(json);
  EXPECT_EQ(planToJson(parsed), json);
  EXPECT_FALSE(parsed.stages[StageId(1)].sharding);
  const ShardingPlan& sharding = parsed.stages[StageId(0)].sharding.value();
  const ShardingPlan expected = *shardedPlan().stages[StageId(0)].sharding;
  EXPECT_EQ(sharding.method, expected.method);
  EXPECT_EQ(sharding.mesh, expected.mesh);
  EXPECT_EQ(sharding.strategies, expected.strategies);
  EXPECT_EQ(sharding.specs, expected.specs);
  EXPECT_EQ(sharding.compute_ns, 1230000);
  EXPECT_EQ(sharding.communication_ns, 450000);
  EXPECT_EQ(sharding.memory_bytes, 3000000);
  EXPECT_EQ(sharding.lower_bound_ns, 1600000);
  EXPECT_FALSE(sharding.optimal);
  EXPECT_EQ(planToJson(examplePlan()).find("shardings"), std::string::npos);
}

TEST(PlanJson, HasOneLinePerEntryOfASharding) {
  const std::string json = planToJson(shardedPlan());
  EXPECT_THAT(
      json,
      HasSubstr(
          "\n    {\"stage\":0,\"method\":\"auto\",\"mesh\":[2,2],\"predicted\":{\"compute_ns\":1230000,"));
  EXPECT_THAT(json, HasSubstr("\n    {\"stage\":0,\"node\":\"add_1\",\"uses\":\"0:k 1:j\"},\n"));
  EXPECT_THAT(json, HasSubstr("\n    {\"stage\":0,\"value\":\"h\",\"spec\":\"R,S1;P0\"},\n"));
}

TEST(PlanJson, NamesWhatIsWrongWithASharding) {
  const std::string json = planToJson(shardedPlan());
  const auto refuse = [&](const char* from, const char* to, const char* message) {
    expectError(replaced(json, from, to), ErrorCode::kConfiguration, message);
  };
  refuse("\"mesh\":[2,2]", "\"mesh\":[2,3]",
         "plan.json.shardings[0].mesh: found [2,3]; expected a mesh whose product is the number of devices "
         "of the stage, 4");
  refuse("\"mesh\":[2,2]", "\"mesh\":[2147483647,2147483647,2147483647,2147483647]",
         "plan.json.shardings[0].mesh");
  refuse("\"mesh\":[2,2]", "\"mesh\":[]", "plan.json.shardings[0].mesh: found []");
  refuse("\"stage\":0,\"method\"", "\"stage\":2,\"method\"",
         "plan.json.shardings[0].stage: found 2; expected an integer from 0 to 1");
  refuse("\"stage\":0,\"node\":\"mul\"", "\"stage\":1,\"node\":\"mul\"",
         "plan.json.strategies[1].stage: found 1; expected a stage that \"shardings\" is about");
  refuse("\"node\":\"mul\"", "\"node\":\"add_1\"",
         "plan.json.strategies[1].node: found \"add_1\"; expected a node that no earlier entry");
  refuse("\"value\":\"w\"", "\"value\":\"h\"",
         "plan.json.specs[1].value: found \"h\"; expected a value that no earlier entry");
  refuse("\"S0,R\"", "\"S2,R\"",
         "plan.json.specs[1].spec: found \"S2,R\"; expected a spec on the mesh of the stage, but");
  refuse("\"S0,R\"", "\"S0,S0\"", "plan.json.specs[1].spec: found \"S0,S0\"");
  refuse("\"S0,R\"", "\"Q\"", "plan.json.specs[1].spec: found \"Q\"; expected a sharding spec");
  refuse("\"method\":\"auto\"", "\"method\":\"megatron\"",
         "plan.json.shardings[0].method: there is no sharding method \"megatron\"; did you mean");
  refuse("\"lower_bound_ns\"", "\"bound\"", "plan.json.shardings[0].predicted");
  refuse("\"compute_ns\":1230000", "\"compute_ns\":9223372036854775807",
         "plan.json.shardings[0].predicted.compute_ns: found 9223372036854775807");
  refuse("\"optimal\":false", "\"optimal\":0",
         "plan.json.shardings[0].optimal: found 0; expected true or false");
}

TEST(PrintPlan, ShowsTheShardingOfAStageInOneLine) {
  Plan plan = shardedPlan();
  EXPECT_THAT(printPlan(plan), HasSubstr("\n  sharding of stage 0: auto on 2x2, 1.23 ms compute + 450.00 us "
                                         "communication (at least 1.60 ms), 2.86 MiB per device\n"));
  plan.stages[StageId(0)].sharding->optimal = true;
  EXPECT_THAT(printPlan(plan), HasSubstr("450.00 us communication (optimal), 2.86 MiB"));
  EXPECT_THAT(printPlan(examplePlan()), Not(HasSubstr("sharding")));
}

TEST(ParseCluster, ReadsNodesTimesDevices) {
  EXPECT_EQ(parseCluster("1x4").deviceCount(), 4);
  EXPECT_EQ(parseCluster("2x8").nodeCount(), 2);
  EXPECT_EQ(parseCluster("2x8").devicesPerNode(), 8);
}

TEST(ParseCluster, RefusesAnythingElseAndShowsTheForm) {
  for (const char* text : {"", "x", "4", "1x", "x4", "0x4", "1x0", "-1x4", "1x4x2", "1X4", " 1x4",
                           "99999999999x1", "1048576x2"}) {
    try {
      parseCluster(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
      EXPECT_THAT(error.message(), HasSubstr("1x4"));
    }
  }
}

TEST(PlanJson, HoldsTheWholeClusterUnlessItIsTwoNumbers) {
  Plan plan = examplePlan();
  EXPECT_THAT(planToJson(plan), HasSubstr("\"devices_per_node\""));
  for (const char* name : {"p3.16xlarge:2", "v100:4", "t4:2x4"}) {
    plan.cluster = parseCluster(name);
    const Plan read = planFromJson(planToJson(plan));
    EXPECT_EQ(read.cluster, plan.cluster) << name;
    EXPECT_EQ(planToJson(read), planToJson(plan)) << name;
    EXPECT_THAT(printPlan(read), HasSubstr(std::string("cluster       ") + name));
  }
  plan.cluster.nodes[1].devices = 3;
  plan.cluster.nodes[1].nic.measured = {{{0, 10'000}, {1 << 20, 300'000}}};
  EXPECT_EQ(planFromJson(planToJson(plan)).cluster, plan.cluster);
}

TEST(PrintPlan, ShowsStagesAndNotes) {
  const std::string text = printPlan(examplePlan());
  EXPECT_THAT(text, HasSubstr("1f1b, 4 microbatches"));
  EXPECT_THAT(text, HasSubstr("batch = 8 (cut into microbatches)"));
  EXPECT_THAT(text, HasSubstr("0..1"));
  EXPECT_THAT(text, HasSubstr("3.00 GFLOP"));
  EXPECT_THAT(text, HasSubstr("3.81 MiB"));
  EXPECT_THAT(text, HasSubstr("12 B"));
  EXPECT_THAT(text, HasSubstr("note: a \"quoted\" note"));
  EXPECT_THAT(text, Not(HasSubstr("  mesh")));
}

TEST(PrintPlan, ShowsTheDevicesAndTheMeshOfEachStage) {
  Plan plan = examplePlan();
  plan.cluster = uniformCluster(1, 8);
  plan.stages[StageId(0)].devices = idsAt<RankId>({0, 1});
  plan.stages[StageId(0)].mesh_shape = {2, 1};
  plan.stages[StageId(1)].devices = idsAt<RankId>({2, 3, 4, 6, 7, 5});
  plan.stages[StageId(1)].mesh_shape = {3, 2};
  const std::string text = printPlan(plan);
  EXPECT_THAT(text, HasSubstr("  stage    devices          mesh     layers"));
  EXPECT_THAT(text, HasSubstr("      0        0,1             2       0..1"));
  EXPECT_THAT(text, HasSubstr("      1  2..4,6,7,5  3 x 2 copies       2..2"));
}

// {1, n} of a chosen sharding says nothing of what its method cuts.
TEST(PrintPlan, ShowsTheMeshOfAChosenSharding) {
  Plan plan = examplePlan();
  plan.cluster = uniformCluster(1, 5);
  StagePlan& stage = plan.stages[StageId(0)];
  stage.devices = idsAt<RankId>({0, 1, 2, 3});
  stage.mesh_shape = {1, 4};
  EXPECT_EQ(meshText(stage), "4 copies");
  stage.sharding.emplace().method = {ShardingKind::kZero2};
  stage.sharding->mesh = {4};
  EXPECT_EQ(meshText(stage), "4");
  EXPECT_THAT(printPlan(plan), AllOf(HasSubstr("0..3             4       0..1"), HasSubstr("zero2 on 4, ")));
  stage.sharding->mesh = {2, 2};
  EXPECT_EQ(meshText(stage), "2x2");
}

}  // namespace
}  // namespace pipeshard
