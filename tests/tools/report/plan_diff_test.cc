// What two plans decide differently, as data and by the command.

#include "tools/report/plan_diff.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Plan twoStages() {
  Plan plan;
  plan.model_path = "/models/gpt2.onnx";
  plan.dimensions = {{"batch", 8}};
  plan.batch_dimension = "batch";
  plan.loss = "loss";
  plan.given.optimizer = parseOptimizer("sgd:lr=0.1");
  plan.cluster = uniformCluster(1, 4);
  plan.microbatches = 4;
  plan.schedule = {"1f1b"};
  plan.layers = {{"embed", "add_1", 0, 4, 1000}, {"norm", "mlp", 5, 5, 3000}, {"head", "loss", 6, 9, 2000}};
  plan.stages = {{LayerId(0), LayerId(1), idsAt<RankId>({0, 1}), {1, 2}, 4000, 8000, 400, 2},
                 {LayerId(2), LayerId(2), idsAt<RankId>({2, 3}), {1, 2}, 2000, 4000, 12, 1}};
  plan.stages[StageId(0)].sharding =
      ShardingPlan{ShardingMethod(),
                   {2},
                   {{"mul", "0:i"}},
                   {{"h.0.w", "S0,R"}, {"h.1.w", "S0,R"}, {"h.2.w", "S0,R"}, {"b", "S0"}},
                   10,
                   20,
                   30,
                   25,
                   true};
  return plan;
}

PlanDifference difference(const std::string& part, const std::string& where, const std::string& left,
                          const std::string& right) {
  return {part, where, left, right, {}};
}

TEST(PlanDiff, EqualPlansHaveNoDifferences) { EXPECT_THAT(diffPlans(twoStages(), twoStages()), IsEmpty()); }

TEST(PlanDiff, NamesEveryFieldThatDiffersByPart) {
  Plan other = twoStages();
  other.stages[StageId(0)].last_layer = LayerId(0);
  other.stages[StageId(1)].first_layer = LayerId(1);
  other.stages[StageId(1)].devices = idsAt<RankId>({2});
  other.stages[StageId(1)].mesh_shape = {1, 1};
  other.stages[StageId(1)].recomputation = Recomputation::kAlways;
  other.microbatches = 8;
  other.schedule = {"gpipe"};
  other.stages[StageId(0)].peak_activations = 8;
  other.stages[StageId(0)].sharding->compute_ns = 11;
  other.layers[LayerId(1)].last = 6;
  other.layers[LayerId(2)].first = 7;
  other.dimensions["batch"] = 16;
  EXPECT_THAT(
      diffPlans(twoStages(), other),
      ElementsAre(difference("training", "dimensions.batch", "8", "16"),
                  difference("devices", "stage 1: devices", "[2,3]", "[2]"),
                  difference("meshes", "stage 1: mesh_shape", "[1,2]", "[1,1]"),
                  difference("layers", "layer 1", "5..5 (norm to mlp)", "5..6 (norm to mlp)"),
                  difference("layers", "layer 2", "6..9 (head to loss)", "7..9 (head to loss)"),
                  difference("stages", "stage 0: layers", "0..1", "0..0"),
                  difference("stages", "stage 1: layers", "2..2", "1..2"),
                  difference("microbatches", "microbatches", "4", "8"),
                  difference("schedule", "schedule", "1f1b", "gpipe"),
                  difference("recomputation", "stage 1: recomputation", "-", "always"),
                  difference("predictions", "stage 0: peak_activations", "2", "8"),
                  difference("predictions", "sharding of stage 0: predicted.compute_ns", "10", "11")));
}

TEST(PlanDiff, GroupsValuesByPatternAndChange) {
  Plan other = twoStages();
  other.stages[StageId(0)].sharding->specs = {
      {"h.0.w", "R,S0"}, {"h.1.w", "R,S0"}, {"h.2.w", "R"}, {"c", "S0"}};
  const std::vector<PlanDifference> found = diffPlans(twoStages(), other);
  EXPECT_THAT(
      found, ElementsAre(
                 PlanDifference{"shardings", "value b", "S0", "-", {"b"}},
                 PlanDifference{"shardings", "value c", "-", "S0", {"c"}},
                 PlanDifference{"shardings", "value h.2.w", "S0,R", "R", {"h.2.w"}},
                 PlanDifference{"shardings", "value h.*.w (2 of them)", "S0,R", "R,S0", {"h.0.w", "h.1.w"}}));
  // With all stages sharded, a value that is not listed is whole.
  Plan all = twoStages(), fewer = twoStages();
  for (Plan* plan : {&all, &fewer})
    plan->stages[StageId(1)].sharding = ShardingPlan{ShardingMethod(), {2}, {}, {}};
  fewer.stages[StageId(0)].sharding->specs.erase("b");
  EXPECT_THAT(diffPlans(all, fewer),
              ElementsAre(PlanDifference{"shardings", "value b", "S0", "whole", {"b"}}));
  const auto json = nlohmann::json::parse(differencesToJson(found));
  EXPECT_FALSE(json.at("equal"));
  EXPECT_EQ(json.at("differences")[3].at("values"), (std::vector<std::string>{"h.0.w", "h.1.w"}));
}

TEST(PlanDiff, StagesThatOnlyOnePlanHasAreShownAgainstNothing) {
  Plan one = twoStages();
  one.stages.pop_back();
  one.stages[StageId(0)].last_layer = LayerId(2);
  const std::vector<PlanDifference> found = diffPlans(one, twoStages());
  EXPECT_THAT(found, testing::Contains(difference("stages", "stages", "1", "2")));
  EXPECT_THAT(found, testing::Contains(difference("stages", "stage 1: layers", "-", "2..2")));
  EXPECT_THAT(found, testing::Contains(difference("devices", "stage 1: devices", "-", "[2,3]")));
}

// A list of each part, no longer than asked.
TEST(PlanDiff, PrintsEachPartAndSaysWhatItLeavesOut) {
  Plan other = twoStages();
  other.schedule = {"gpipe"};
  for (StagePlan& stage : other.stages) stage.forward_flops += 1;
  const std::string text = printDifferences(diffPlans(twoStages(), other), 1);
  EXPECT_THAT(text,
              AllOf(HasSubstr("  schedule"), HasSubstr("1f1b"), HasSubstr("gpipe"),
                    HasSubstr("stage 0: forward_flops"), HasSubstr("... and 1 more (--json lists all)")));
}

TEST(PlanDiffCommand, ComparesDirectoriesAndFiles) {
  const TemporaryFolder folder;
  const auto plan = [&](const std::string& name, const std::string& schedule) {
    return runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "1x2", "--microbatches", "4", "--schedule",
                         schedule, "-o", folder.file(name)});
  };
  ASSERT_EQ(plan("a.plan", "1f1b").exit_code, 0);
  ASSERT_EQ(plan("b.plan", "gpipe").exit_code, 0);
  const CommandResult equal =
      runPipeshard({"plan", "--diff", folder.file("a.plan"), folder.file("a.plan/plan.json")});
  EXPECT_EQ(equal.exit_code, 0) << equal.errors;
  EXPECT_THAT(equal.output, HasSubstr("equal plans"));
  const CommandResult different = runPipeshard(
      {"plan", "--diff", folder.file("a.plan"), folder.file("b.plan"), "--json", folder.file("d.json")});
  EXPECT_EQ(different.exit_code, 1) << different.errors;
  EXPECT_THAT(different.output, AllOf(HasSubstr("1f1b"), HasSubstr("gpipe"), HasSubstr("peak_activations")));
  EXPECT_FALSE(nlohmann::json::parse(readFile(folder.file("d.json"))).at("equal"));
  EXPECT_EQ(runPipeshard({"plan", "--diff", folder.file("a.plan"), folder.file("no.plan")}).exit_code, 66);
  const CommandResult both =
      runPipeshard({"plan", "--diff", folder.file("a.plan"), folder.file("b.plan"), "--layers", "3"});
  EXPECT_EQ(both.exit_code, 64);
  EXPECT_THAT(both.errors, HasSubstr("--layers goes with a MODEL"));
  EXPECT_EQ(runPipeshard({"plan", "--cluster", "1x2"}).exit_code, 64);
}

// Outputs that cannot be written say what is wrong with their path.
TEST(OutputFiles, SayWhatIsWrongWithTheirPath) {
  const TemporaryFolder folder;
  const auto validate = [&](const std::string& json) {
    return runPipeshard({"validate", "examples/mlp.onnx", "--json", json});
  };
  const CommandResult missing = validate(folder.file("no/such/out.json"));
  EXPECT_EQ(missing.exit_code, 66);
  EXPECT_THAT(missing.errors, HasSubstr("there is no folder " + folder.file("no/such")));
  const CommandResult taken = validate(folder.file(""));
  EXPECT_EQ(taken.exit_code, 78);
  EXPECT_THAT(taken.errors, HasSubstr("it is a folder"));
  const CommandResult no_plan = runPipeshard({"validate", folder.file("")});
  EXPECT_EQ(no_plan.exit_code, 66);
  EXPECT_THAT(no_plan.errors, HasSubstr("plan.json cannot be read"));
  EXPECT_EQ(runPipeshard({"validate", folder.file(""), "--layers", "2"}).exit_code, 66);
}

}  // namespace
}  // namespace pipeshard
