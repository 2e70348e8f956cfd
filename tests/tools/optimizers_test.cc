// Every optimizer, learning rates that change, and groups of parameters, under plans of all kinds: as on one
// device, and over a pause.
#include <algorithm>

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
  const int each = optimizer.starts_with("rmsprop") ? 2 : optimizer.starts_with("sgd") ? 0 : 1;
  EXPECT_EQ(states, 5 * 8 * each);
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
                                         "lion:lr=1e-3,weight_decay=0.1,schedule=one-cycle,steps=5"),
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
  const auto update = [&] { return readFile(plan + "/ranks/0000/update.onnx"); };
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
  refuses({"--optimizer", "lamb:lr=1"}, "reads whole tensors");
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

}  // namespace
}  // namespace pipeshard
