// Every optimizer, learning rates that change, and groups of parameters, under plans of all kinds: as on one
// device, and over a pause.
#include <algorithm>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using ::testing::HasSubstr;
using Words = std::vector<std::string>;

const std::string kCosine = "adamw:lr=1e-2,schedule=cosine,warmup=2,start_factor=0.25,steps=6,final=1e-3";
const Words kGroups = {"--group", "bias|ln_:weight_decay=0", "--group",
                       "^(lm_head|transformer.wpe):lr_scale=0.5"};

struct Layout {
  std::string name;
  Words words;
};

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all = {
      {"two_by_two", {"--cluster", "2x2", "--stages", "uniform:2", "--microbatches", "2"}},
      {"zero2", {"--cluster", "1x2", "--stages", "uniform:1", "--method", "zero2"}},
      {"zero3", {"--cluster", "1x2", "--stages", "uniform:1", "--method", "zero3"}},
      {"pipeline",
       {"--cluster", "1x4", "--stages", "uniform:4", "--schedule", "1f1b", "--microbatches", "4"}},
      {"data_parallel", {"--cluster", "1x2", "--stages", "uniform:1", "--method", "data-parallel"}},
      {"tensor_parallel", {"--cluster", "1x2", "--stages", "uniform:1", "--method", "tensor-parallel"}},
      {"interleaved",
       {"--cluster", "1x2", "--stages", "uniform:4", "--schedule", "interleaved", "--microbatches", "4"}},
  };
  return all;
}

Words together(Words first, const Words& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

CommandResult validate(const std::string& model, const std::string& optimizer, const Words& more,
                       const std::string& json) {
  return runPipeshard(together(
      {"validate", "examples/" + model + ".onnx", "--optimizer", optimizer, "--json", json, "--steps", "5"},
      more));
}

class OptimizerCase : public ::testing::TestWithParam<std::tuple<std::string, Layout>> {};

// In float64, so that the bounds tell a wrong number of any kind from rounding.
TEST_P(OptimizerCase, EqualsOneDevice) {
  const TemporaryFolder folder;
  const auto& [optimizer, layout] = GetParam();
  const CommandResult result = validate("mlp", optimizer, together(layout.words, {"--precision", "float64"}),
                                        folder.file("result.json"));
  ASSERT_EQ(result.exit_code, 0) << result.output << result.errors;
  const auto json = nlohmann::json::parse(readFile(folder.file("result.json")));
  int states = 0;
  for (const auto& tensor : json.at("tensors")) {
    const std::string kind = tensor.at("kind");
    states += kind == "updated state" ? 1 : 0;
    if (!kind.starts_with("updated")) continue;
    EXPECT_LE(tensor.at("error").get<double>(), 1e-12) << tensor.dump();
  }
  // of the four matrices, and of the four biases
  const std::map<std::string, std::pair<int, int>> each = {
      {"sgd", {0, 0}},  {"rmsprop", {2, 2}},   {"adagrad", {1, 1}}, {"lion", {1, 1}},
      {"lamb", {2, 2}}, {"adafactor", {2, 1}}, {"muon", {1, 2}}};
  const auto [of_matrix, of_bias] = each.at(optimizer.substr(0, optimizer.find(':')));
  EXPECT_EQ(states, 5 * 4 * (of_matrix + of_bias));
}

std::string nameOfCase(const ::testing::TestParamInfo<std::tuple<std::string, Layout>>& info) {
  const std::string& optimizer = std::get<0>(info.param);
  return optimizer.substr(0, optimizer.find(':')) + "_" + std::get<1>(info.param).name;
}

INSTANTIATE_TEST_SUITE_P(
    Optimizers, OptimizerCase,
    ::testing::Combine(::testing::Values("sgd:lr=0.1,schedule=step,step_size=2,gamma=0.5",
                                         "rmsprop:lr=1e-2,momentum=0.9,weight_decay=0.1,warmup=3",
                                         "adagrad:lr=1e-2,lr_decay=0.1,schedule=linear,steps=4",
                                         "lion:lr=1e-3,weight_decay=0.1,schedule=one-cycle,steps=5",
                                         "lamb:lr=1e-2,weight_decay=0.1,schedule=cosine,warmup=2,steps=5",
                                         "adafactor:weight_decay=0.1", "muon:lr=1e-2"),
                       ::testing::ValuesIn(layouts())),
    nameOfCase);

class ScheduledGpt2 : public ::testing::TestWithParam<Layout> {};

TEST_P(ScheduledGpt2, EqualsOneDevice) {
  const TemporaryFolder folder;
  const CommandResult result =
      validate("gpt2", kCosine, together(GetParam().words, kGroups), folder.file("result.json"));
  ASSERT_EQ(result.exit_code, 0) << result.output << result.errors;
  EXPECT_THAT(result.output, HasSubstr("group 'bias|ln_': "));
}

class WholeTensorGpt2 : public ::testing::TestWithParam<std::tuple<std::string, Layout>> {};

// In float32: what optimizers of whole tensors gather and add up where parameters are cut.
TEST_P(WholeTensorGpt2, EqualsOneDevice) {
  const TemporaryFolder folder;
  const auto& [optimizer, layout] = GetParam();
  const CommandResult result = validate(
      "gpt2", optimizer, together(layout.words, {"--group", "bias|ln_:weight_decay=0", "--clip-norm", "1"}),
      folder.file("result.json"));
  ASSERT_EQ(result.exit_code, 0) << result.output << result.errors;
}

INSTANTIATE_TEST_SUITE_P(Optimizers, WholeTensorGpt2,
                         ::testing::Combine(::testing::Values("lamb:weight_decay=0.1", "adafactor", "muon"),
                                            ::testing::ValuesIn(layouts())),
                         nameOfCase);

INSTANTIATE_TEST_SUITE_P(Layouts, ScheduledGpt2, ::testing::ValuesIn(layouts()),
                         [](const auto& info) { return info.param.name; });

// An update counts as a step; replicas of a stage count the stage's.
TEST(ScheduledRate, EqualsOneDeviceUnderAsynchronousSchedules) {
  const TemporaryFolder folder;
  for (const Words& words :
       {Words{"--cluster", "1x4", "--stages", "uniform:4", "--schedule", "pipedream", "--window", "6"},
        Words{"--cluster", "1x4", "--stages", "uniform:2", "--stage-devices", "3,1", "--schedule",
              "pipedream", "--window", "6"},
        Words{"--cluster", "1x4", "--stages", "uniform:4", "--schedule", "pipedream-2bw", "--window", "3"}}) {
    const CommandResult result = validate(
        "llama", kCosine, together(words, {"--group", "norm:weight_decay=0"}), folder.file("result.json"));
    EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
  }
}

std::vector<double> lossesOf(const std::string& json) {
  std::vector<double> losses;
  const auto document = nlohmann::json::parse(readFile(json));
  for (const auto& step : document.at("steps")) losses.push_back(step.at("loss").get<double>());
  return losses;
}

TEST(ScheduledRate, GoesOnWhereARunWasPaused) {
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(layout.name);
    const TemporaryFolder folder;
    const std::string plan = folder.file("plan");
    const CommandResult planned = runPipeshard(together(
        {"plan", "examples/gpt2.onnx", "--optimizer", kCosine, "-o", plan}, together(layout.words, kGroups)));
    ASSERT_EQ(planned.exit_code, 0) << planned.errors;
    const auto losses = [&](int steps, const std::string& saved) {
      const CommandResult result =
          runPipeshard({"run", plan, "--steps", std::to_string(steps), "--checkpoint", folder.file(saved),
                        "--json", folder.file("run.json")});
      EXPECT_EQ(result.exit_code, 0) << result.errors;
      return lossesOf(folder.file("run.json"));
    };
    const std::vector<double> whole = losses(6, "whole");
    std::vector<double> parts = losses(3, "paused");
    const std::vector<double> rest = losses(6, "paused");
    parts.insert(parts.end(), rest.begin(), rest.end());
    EXPECT_EQ(whole.size(), 6u);
    EXPECT_EQ(parts, whole);
    const CommandResult compared =
        runPipeshard({"checkpoint", folder.file("whole"), "--compare", folder.file("paused")});
    EXPECT_EQ(compared.exit_code, 0) << compared.output;
  }
}

TEST(ScheduledRate, IsOfTheWholePlanDirectory) {
  const TemporaryFolder folder;
  const std::string plan = folder.file("plan");
  const CommandResult planned = runPipeshard(together(
      {"plan", "examples/gpt2.onnx", "--cluster", "1x2", "--optimizer", kCosine, "-o", plan}, kGroups));
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  const auto json = nlohmann::json::parse(readFile(plan + "/plan.json"));
  EXPECT_EQ(json.at("groups"), nlohmann::json({kGroups[1], kGroups[3]}));
  EXPECT_THAT(json.at("optimizer").get<std::string>(), HasSubstr("schedule=cosine,warmup=2"));
  EXPECT_THAT(json.at("notes").dump(),
              HasSubstr("group '^(lm_head|transformer.wpe)': 2 parameters, lr_scale=0.5"));
  // Edited, it is made again with the groups, and is another plan without them.
  const auto update = [&] { return readFile(plan + "/kinds/0000.json"); };  // which names its subgraphs
  const std::string before = update();
  std::string text = readFile(plan + "/plan.json");
  text.replace(text.find("lr_scale=0.5"), 12, "lr_scale=0.7");
  writeFile(plan + "/plan.json", text);
  EXPECT_EQ(runPipeshard({"validate", plan, "--steps", "2"}).exit_code, 0);
  EXPECT_NE(update(), before);
}

TEST(ParameterGroup, IsRefusedWhereItMeansNothing) {
  const auto refuses = [](const Words& words, const std::string& message) {
    const CommandResult result = runPipeshard(
        together({"validate", "examples/mlp.onnx", "--cluster", "1x2", "--stages", "uniform:2"}, words));
    EXPECT_EQ(result.exit_code, 64) << result.output;
    EXPECT_THAT(result.errors, HasSubstr(message));
  };
  refuses({"--group", "norm:weight_decay=0"}, "'norm' is found in the name of no trained parameter");
  refuses({"--group", "(:lr=1"}, "'(' is no regular expression");
  refuses({"--group", "bias"}, "REGEX:weight_decay=0");
  refuses({"--group", "bias:momentum=0"}, "no key 'momentum'");
  refuses({"--group", "bias:lr=0", "--schedule", "forward-only"}, "nothing is trained");
  refuses({"--optimizer", "shampoo:lr=1"}, "unknown optimizer 'shampoo'");
  refuses({"--group", "bias:muon=0"}, "muon=0 goes with --optimizer muon");
  refuses({"--group", "bias:muon=2", "--optimizer", "muon"}, "muon=0 leaves parameters to AdamW");
}

TEST(ParameterGroup, LeavesMatricesToAdamWUnderMuon) {
  const TemporaryFolder folder;
  const auto planned = [&](const Words& group) {
    const CommandResult result = runPipeshard(together(
        {"plan", "examples/gpt2.onnx", "--cluster", "1x1", "--optimizer", "muon", "-o", folder.file("plan")},
        group));
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    return result.output;
  };
  EXPECT_THAT(planned({}), HasSubstr("muon updates 18 parameters that are matrices"));
  EXPECT_THAT(planned({"--group", "wte|wpe|lm_head:muon=0"}),
              HasSubstr("muon updates 16 parameters that are matrices"));
}

TEST(ParameterGroup, HasItsOwnRate) {
  const TemporaryFolder folder;
  const auto losses = [&](const std::string& optimizer, const Words& group) {
    const CommandResult result =
        validate("mlp", optimizer, together({"--cluster", "1x2", "--stages", "uniform:2"}, group),
                 folder.file("result.json"));
    EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
    return lossesOf(folder.file("result.json"));
  };
  const std::vector<double> slow = losses("sgd:lr=0.05", {});
  EXPECT_EQ(losses("sgd:lr=0.1", {"--group", ".:lr=0.05"}), slow);
  EXPECT_EQ(losses("sgd:lr=0.1", {"--group", ".:lr_scale=0.5"}), slow);
  EXPECT_NE(losses("sgd:lr=0.1", {"--group", "bias:lr=0.05"}), slow);
}

class MovingAverageGpt2 : public ::testing::TestWithParam<Layout> {};

TEST_P(MovingAverageGpt2, EqualsOneDevice) {
  const TemporaryFolder folder;
  const CommandResult result =
      validate("gpt2", kCosine, together(GetParam().words, {"--ema", "0.9"}), folder.file("result.json"));
  ASSERT_EQ(result.exit_code, 0) << result.output << result.errors;
  int averages = 0;
  const auto json = nlohmann::json::parse(readFile(folder.file("result.json")));
  for (const auto& tensor : json.at("tensors"))
    averages += tensor.at("kind") == "updated state" && tensor.at("state") == "moving_average" ? 1 : 0;
  EXPECT_EQ(averages, 5 * 52);
}

INSTANTIATE_TEST_SUITE_P(Layouts, MovingAverageGpt2, ::testing::ValuesIn(layouts()),
                         [](const auto& info) { return info.param.name; });

// Of weights that are drawn, too: a decay near 1 keeps what they began with, one near 0 what they are now.
TEST(MovingAverage, BeginsAsTheParameterAndIsExported) {
  const TemporaryFolder folder;
  const auto exported = [&](const std::string& decay, int steps, const Words& words) {
    const std::string name = folder.file(decay + "_" + std::to_string(steps));
    EXPECT_EQ(runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "1x2", "--method", "zero2", "--stages",
                            "uniform:1", "--optimizer", "sgd:lr=0.1", "--ema", decay, "-o", name})
                  .exit_code,
              0);
    const CommandResult ran =
        runPipeshard({"run", name, "--steps", std::to_string(steps), "--checkpoint", name + ".saved"});
    EXPECT_EQ(ran.exit_code, 0) << ran.errors;
    const CommandResult written =
        runPipeshard(together({"export", name + ".saved", "--safetensors", name + ".safetensors"}, words));
    EXPECT_EQ(written.exit_code, 0) << written.errors;
    return readFile(name + ".safetensors");
  };
  const std::string now = exported("1e-30", 3, {});
  EXPECT_EQ(exported("1e-30", 3, {"--ema"}), now);
  const std::string kept = exported("0.99999999", 3, {"--ema"});  // 1 in float32
  EXPECT_NE(kept, now);
  EXPECT_EQ(exported("0.99999999", 6, {"--ema"}), kept);
  const std::string slow = exported("0.5", 3, {"--ema"});
  EXPECT_NE(slow, now);
  EXPECT_NE(slow, kept);
}

TEST(MovingAverage, IsRefusedWhereThereIsNone) {
  const TemporaryFolder folder;
  const std::string plan = folder.file("plan"), saved = folder.file("saved");
  const CommandResult refused =
      runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "1x1", "--ema", "1", "-o", plan});
  EXPECT_EQ(refused.exit_code, 64);
  EXPECT_THAT(refused.errors, HasSubstr("--ema 1: a decay is below 1"));
  ASSERT_EQ(runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "1x1", "-o", plan}).exit_code, 0);
  ASSERT_EQ(runPipeshard({"run", plan, "--steps", "1", "--checkpoint", saved}).exit_code, 0);
  const CommandResult none =
      runPipeshard({"export", saved, "--safetensors", folder.file("tensors"), "--ema"});
  EXPECT_EQ(none.exit_code, 78);
  EXPECT_THAT(none.errors, HasSubstr("has no moving averages of parameters"));
}

TEST(Accumulation, IsALargerBatchInMoreMicrobatches) {
  const TemporaryFolder folder;
  const auto planned = [&](const std::string& name, const Words& words) {
    const CommandResult result = runPipeshard(together(
        {"plan", "examples/gpt2.onnx", "--cluster", "1x2", "--schedule", "1f1b", "-o", folder.file(name)},
        words));
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    return readFile(folder.file(name) + "/kinds/0001.json");
  };
  const std::string large = planned("large", {"--dim", "batch=12", "--microbatches", "6"});
  EXPECT_EQ(planned("accumulated", {"--dim", "batch=4", "--microbatches", "2", "--accumulate", "3"}), large);
  EXPECT_NE(planned("once", {"--dim", "batch=4", "--microbatches", "2"}), large);
  const auto json = nlohmann::json::parse(readFile(folder.file("accumulated") + "/plan.json"));
  EXPECT_EQ(json.at("microbatches"), 6);
  EXPECT_THAT(json.at("notes").dump(), HasSubstr("an update takes 3 batches (--accumulate): batch = 12"));
}

// What ONNX's training information cannot say is no silent omission.
TEST(TrainingInformation, IsRefusedWhereItWouldLeaveSomethingOut) {
  const TemporaryFolder folder;
  for (const auto& [option, message] : std::vector<std::pair<Words, std::string>>{
           {{"--clip-norm", "1"}, "gradients were clipped"},
           {{"--optimizer", "muon"}, "cannot be described as training information"}}) {
    const std::string plan = folder.file("plan" + option[1]), saved = plan + ".saved";
    ASSERT_EQ(runPipeshard(together({"plan", "examples/mlp.onnx", "--cluster", "1x1", "-o", plan}, option))
                  .exit_code,
              0);
    ASSERT_EQ(runPipeshard({"run", plan, "--steps", "1", "--checkpoint", saved}).exit_code, 0);
    const CommandResult described =
        runPipeshard({"export", saved, "-o", folder.file("trained.onnx"), "--training-info"});
    EXPECT_EQ(described.exit_code, 78) << described.errors;
    EXPECT_THAT(described.errors, HasSubstr(message));
  }
}

}  // namespace
}  // namespace pipeshard
