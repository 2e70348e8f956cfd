// Sharded stages by the command: plan, explain, limits, bad input. That every method equals one device:
// validate_test.cc.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> planLine(const std::string& model, const std::string& output,
                                  std::vector<std::string> more) {
  std::vector<std::string> line = {
      "plan", "examples/" + model + ".onnx", "--cluster", "1x4", "--stages", "uniform:1", "-o", output};
  line.insert(line.end(), more.begin(), more.end());
  return line;
}

TEST(ShardingCommand, ExplainNamesBlocksAndSecondBests) {
  const TemporaryFolder folder;
  const CommandResult planned =
      runPipeshard(planLine("gpt2", folder.file("plan"), {"--method", "megatron:1,4"}));
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  const CommandResult explained = runPipeshard(
      {"explain", folder.file("plan"), "--alternatives", "2", "--json", folder.file("why.json")});
  ASSERT_EQ(explained.exit_code, 0) << explained.errors;
  EXPECT_THAT(explained.output, HasSubstr("4 blocks of"));
  EXPECT_THAT(explained.output, HasSubstr("column-parallel then row-parallel"));
  EXPECT_THAT(explained.output, HasSubstr("second best"));
  const auto json = nlohmann::json::parse(readFile(folder.file("why.json")));
  const auto& stage = json.at("stages").at(0);
  EXPECT_GT(stage.at("decisions").size(), 100u);
  EXPECT_GE(stage.at("decisions")[0].at("second").at("total_ns").get<int64_t>(),
            stage.at("total_ns").get<int64_t>());
}

TEST(ShardingCommand, APlanReplaysItsSharding) {
  const TemporaryFolder folder;
  const std::vector<std::string> more = {"--method", "auto",        "--precision",
                                         "float64",  "--optimizer", "sgd:lr=0.1"};
  ASSERT_EQ(runPipeshard(planLine("gpt2", folder.file("plan"), more)).exit_code, 0);
  ASSERT_EQ(runPipeshard(planLine("gpt2", folder.file("again"), more)).exit_code, 0);
  EXPECT_EQ(readFile(folder.file("plan/plan.json")), readFile(folder.file("again/plan.json")));
  const CommandResult validated = runPipeshard({"validate", folder.file("plan"), "--steps", "2"});
  EXPECT_EQ(validated.exit_code, 0) << validated.errors;
}

// The gradient of a normalization's bias is asked for alone.
TEST(ShardingCommand, MegatronTrainsABiasBesideAFrozenScale) {
  for (const std::string method : {"megatron:1,4", "megatron:2,2", "megatron-zero2:2,2"}) {
    const CommandResult validated = runPipeshard(
        {"validate", "examples/gpt2.onnx", "--cluster", "1x4", "--stages", "uniform:1", "--dim", "batch=4",
         "--method", method, "--freeze", "weight", "--precision", "float64", "--steps", "2"});
    EXPECT_EQ(validated.exit_code, 0) << method << validated.output << validated.errors;
    EXPECT_THAT(validated.output, HasSubstr("PASS")) << method;
  }
}

TEST(ShardingCommand, ListsEveryCombinationOfInputShardings) {
  const TemporaryFolder folder;
  const CommandResult planned =
      runPipeshard(planLine("mlp", folder.file("plan"), {"--method", "exhaustive", "--freeze", "bias"}));
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  // x and y, four weights: 3^6.
  EXPECT_THAT(planned.output, HasSubstr("729 combinations of input shardings, best last"));
  EXPECT_EQ(runPipeshard({"validate", folder.file("plan")}).exit_code, 0);
}

int64_t mostAllocated(const nlohmann::json& report) {
  int64_t largest = 0;
  for (const auto& rank : report.at("memory"))
    largest = std::max(largest, rank.at("allocated_bytes").get<int64_t>());
  return largest;
}

TEST(ShardingCommand, MemoryThatReplicationExceedsIsKeptTo) {
  const TemporaryFolder folder;
  const auto line = [&](const std::string& method, const std::string& json, std::vector<std::string> more) {
    std::vector<std::string> all = {"validate",    "examples/gpt2.onnx", "--cluster",      "1x4",
                                    "--stages",    "uniform:1",          "--method",       method,
                                    "--optimizer", "adamw:lr=1e-3",      "--microbatches", "2",
                                    "--json",      folder.file(json)};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const CommandResult replicated = runPipeshard(line("data-parallel", "all.json", {}));
  ASSERT_EQ(replicated.exit_code, 0) << replicated.errors;
  const int64_t limit = 2'000'000;
  EXPECT_GT(mostAllocated(nlohmann::json::parse(readFile(folder.file("all.json")))), limit * 3 / 2);
  const CommandResult refused = runPipeshard(line("data-parallel", "refused.json", {"--memory", "2MB"}));
  EXPECT_EQ(refused.exit_code, 83) << refused.errors;
  const CommandResult found = runPipeshard(line("auto", "found.json", {"--memory", "2MB"}));
  ASSERT_EQ(found.exit_code, 0) << found.errors;
  EXPECT_LE(mostAllocated(nlohmann::json::parse(readFile(folder.file("found.json")))), limit);
}

// A stage whose sharding was chosen beside one whose devices all compute the same, or share rows: it keeps
// what travels whole, and every device gets what it needs.
TEST(ShardingCommand, ShardedStagesSendToDevicesThatAreNot) {
  const TemporaryFolder folder;
  for (const std::string unsharded :
       {R"("mesh": [1, 2], "sharding": {"method": "replicated"})", R"("mesh": [2, 1])"}) {
    writeFile(folder.file("stages.json"),
              R"({"version": 1, "layers": 6, "stages": [
      {"layers": "0..1", "devices": [0, 1], "sharding": {"method": "megatron:1,2"}}, {"layers": "2..3", "devices": [2, 3], )" +
                  unsharded +
                  R"(}, {"layers": "4..5", "devices": [4, 5], "sharding": {"method": "zero2"}}]})");
    const CommandResult validated =
        runPipeshard({"validate", "examples/mlp.onnx", "--cluster", "1x6", "--stages",
                      folder.file("stages.json"), "--precision", "float64", "--microbatches", "2"});
    EXPECT_EQ(validated.exit_code, 0) << unsharded << validated.errors;
  }
}

TEST(ShardingCommand, RefusesAMicrobatchThatIsTooSmallForWhatCrossesStages) {
  const TemporaryFolder folder;
  const CommandResult planned =
      runPipeshard({"plan", "examples/llama.onnx", "--dim", "batch=7", "--cluster", "1x3", "--stage-devices",
                    "1,2", "--method", "zero3", "--microbatches", "4", "-o", folder.file("plan")});
  EXPECT_EQ(planned.exit_code, 78) << planned.errors;
  EXPECT_THAT(planned.errors, HasSubstr("1 row"));
}

// Two microbatches of two rows cannot be shared by four devices, one of four can.
TEST(ShardingCommand, TheLastBatchHasFewerMicrobatchesWhereDevicesNeedRows) {
  const TemporaryFolder folder;
  std::vector<std::string> line = {
      "validate",    "examples/mlp.onnx", "--dim",          "batch=8", "--cluster",
      "1x4",         "--stages",          "uniform:1",      "--steps", "2",
      "--precision", "float64",           "--microbatches", "2",       "--method"};
  line.insert(line.end(), {"data-parallel", "--last-batch", "4"});
  const CommandResult validated = runPipeshard(line);
  EXPECT_EQ(validated.exit_code, 0) << validated.errors;
  line.back() = "3";
  const CommandResult refused = runPipeshard(line);
  EXPECT_EQ(refused.exit_code, 78) << refused.errors;
  EXPECT_THAT(refused.errors, HasSubstr("the last batch of 3 examples fits how the stages"));
  EXPECT_THAT(refused.errors, HasSubstr("--drop-last"));
  line.resize(line.size() - 3);
  line.insert(line.end(), {"tensor-parallel", "--last-batch", "3"});  // as the message says
  EXPECT_EQ(runPipeshard(line).exit_code, 0);
}

// Four rows and three, by two devices: the tokens of a row stay together.
TEST(ShardingCommand, MicrobatchesOfATransformerMayHaveUnequalRows) {
  for (const std::string method : {"data-parallel", "zero3"}) {
    const CommandResult validated =
        runPipeshard({"validate", "examples/gpt2.onnx", "--dim", "batch=7", "--cluster", "1x2",
                      "--microbatches", "2", "--precision", "float64", "--method", method});
    EXPECT_EQ(validated.exit_code, 0) << method << validated.errors;
  }
}

TEST(ShardingCommand, APlanThatWasEditedSaysWhichEntryIsWrong) {
  const TemporaryFolder folder;
  ASSERT_EQ(runPipeshard(planLine("mlp", folder.file("plan"), {"--method", "auto"})).exit_code, 0);
  const std::string original = readFile(folder.file("plan/plan.json"));
  auto edited = nlohmann::json::parse(original);
  ASSERT_FALSE(edited.at("strategies").empty());
  edited["strategies"][0]["uses"] = "0:zz";
  writeFile(folder.file("plan/plan.json"), edited.dump());
  const CommandResult explained = runPipeshard({"explain", folder.file("plan")});
  EXPECT_EQ(explained.exit_code, 78) << explained.errors;
  EXPECT_THAT(explained.errors, HasSubstr("stages[0].sharding: strategies." +
                                          edited["strategies"][0]["node"].get<std::string>()));
}

TEST(ShardingCommand, AMethodThatShardsNothingSaysSo) {
  const TemporaryFolder folder;
  const auto planned = [&](std::vector<std::string> more) {
    std::vector<std::string> all = {"plan", "examples/mlp.onnx", "--cluster", "1x4",
                                    "-o",   folder.file("plan")};
    all.insert(all.end(), more.begin(), more.end());
    return runPipeshard(all);
  };
  const CommandResult one_each = planned({"--method", "auto", "--stages", "per-device"});
  EXPECT_EQ(one_each.exit_code, 0) << one_each.errors;
  EXPECT_THAT(one_each.output, HasSubstr("--method auto shards nothing here"));
  EXPECT_EQ(planned({"--method", "magic"}).exit_code, 78);
  // Who names a method alone means all devices; who names a schedule of stages, too, has decided.
  for (const char* method : {"auto", "data-parallel", "zero3", "megatron:2,2"}) {
    const CommandResult all = planned({"--method", method});
    EXPECT_EQ(all.exit_code, 0) << all.errors;
    EXPECT_THAT(all.output, HasSubstr("sharding of stage 0: ")) << method;
    EXPECT_THAT(all.output, Not(HasSubstr("shards nothing here"))) << method;
    EXPECT_EQ(nlohmann::json::parse(readFile(folder.file("plan/plan.json"))).at("stages").size(), 1);
  }
  EXPECT_THAT(planned({"--method", "auto", "--schedule", "gpipe"}).output, HasSubstr("shards nothing here"));
  const CommandResult grid = planned({"--method", "megatron:1,2,2"});
  EXPECT_EQ(grid.exit_code, 0) << grid.errors;
  EXPECT_EQ(nlohmann::json::parse(readFile(folder.file("plan/plan.json"))).at("stages").size(), 2);
}

struct BadOption {
  std::vector<std::string> more;
  int exit_code;
  std::string message;
};

TEST(ShardingCommand, SaysWhatIsWrong) {
  const TemporaryFolder folder;
  const std::vector<BadOption> cases = {
      {{"--method", "magic"}, 78, "magic"},
      {{"--method", "megatron"}, 78, "did you mean megatron:DP,TP"},
      {{"--method", "megatron-zero2:4"}, 78, "expected megatron-zero2:DP,TP"},
      {{"--method", "megatron:3,2"}, 78, "3 x 2 devices are 6, but the stage has 4"},
      {{"--method", "auto", "--mesh", "2x3"}, 78, "it has 6 devices, the stage has 4"},
      {{"--method", "auto", "--mesh", "x"}, 64, "is no logical mesh"},
      {{"--method", "auto", "--shard", "dense1.weight"}, 64, "expected NAME=SPEC"},
      {{"--method", "auto", "--shard", "dense1.weight=Q"}, 78, "is no sharding spec"},
      {{"--method", "auto", "--shard", "dense1.weigth=R,S0"}, 78, "dense1.weight"},
      {{"--method", "auto", "--shard", "*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*b=R,S0"},
       78,
       "no value of the training graph has such a name"},
      {{"--method", "auto", "--memory", "many"}, 64, "expected a number of bytes"},
      {{"--mesh", "4"}, 64, "go with --method"},
      {{"--method", "manual"}, 78, "--shard"},
  };
  for (const BadOption& bad : cases) {
    const CommandResult result = runPipeshard(planLine("mlp", folder.file("plan"), bad.more));
    EXPECT_EQ(result.exit_code, bad.exit_code) << bad.message << result.errors;
    EXPECT_THAT(result.errors, HasSubstr(bad.message));
  }
}

}  // namespace
}  // namespace pipeshard
