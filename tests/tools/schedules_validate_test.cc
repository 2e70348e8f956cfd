// Every synchronous schedule, executed: worker processes compute bit by bit what one device computes, and so
// what any other schedule does. Recomputation changes nothing.
#include <algorithm>
#include <fstream>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "partition/families/make_schedule.h"
#include "tests/partition/schedules/schedule_from_text.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using ::testing::HasSubstr;

// What `validate` says of two steps: by kind of tensor how many, and the largest error.
struct Verdict {
  std::map<std::string, int> counts;
  double error = 0;
};

Verdict validate(const std::string& model, int devices, const std::vector<std::string>& options) {
  const TemporaryFolder folder;
  std::vector<std::string> line = {"validate",    "examples/" + model + ".onnx",
                                   "--dim",       "batch=8",
                                   "--cluster",   fmt::format("1x{}", devices),
                                   "--optimizer", "sgd:lr=0.1,momentum=0.9",
                                   "--steps",     "2",
                                   "--json",      folder.file("result.json")};
  line.insert(line.end(), options.begin(), options.end());
  const CommandResult result = runPipeshard(line);
  EXPECT_EQ(result.exit_code, 0) << fmt::format("{}", fmt::join(line, " ")) << "\n"
                                 << result.output << result.errors;
  Verdict verdict;
  if (result.exit_code != 0) return verdict;
  EXPECT_THAT(result.output, HasSubstr(fmt::format("on {} worker", devices)));
  const auto json = nlohmann::json::parse(readFile(folder.file("result.json")));
  for (const auto& tensor : json.at("tensors")) {
    ++verdict.counts[tensor.at("kind").get<std::string>()];
    verdict.error = std::max(verdict.error, tensor.at("error").get<double>());
  }
  return verdict;
}

// One device per pipeline rank: no sum is taken in another order, so not one bit may differ.
void expectEqualBits(const std::string& model, int devices, const std::vector<std::string>& options) {
  const Verdict verdict = validate(model, devices, options);
  EXPECT_EQ(verdict.error, 0) << model << " " << fmt::format("{}", fmt::join(options, " "));
  EXPECT_EQ(verdict.counts.at("loss"), 2);
  EXPECT_GE(verdict.counts.at("gradient"), 16);
  EXPECT_EQ(verdict.counts.count("forward state") > 0, model == "resnet");
}

std::vector<std::string> trainingSchedules() {
  std::vector<std::string> names;
  for (const ScheduleFamily& family : scheduleFamilies()) {
    if (!family.asynchronous && !makeSchedule(family.name, 4, 8).forward_only) names.push_back(family.name);
  }
  return names;
}

class EverySchedule : public ::testing::TestWithParam<std::string> {};

TEST_P(EverySchedule, EqualsOneDeviceBitByBit) {
  expectEqualBits("mlp", 4, {"--schedule", GetParam(), "--microbatches", "8"});
  expectEqualBits("gpt2", 4, {"--schedule", GetParam(), "--microbatches", "8", "--recompute", "except-last"});
}

TEST_P(EverySchedule, EqualsOneDeviceWithUnevenMicrobatchesAndALastBatch) {
  if (GetParam() == "dual-pipe-v") {
    expectEqualBits("mlp", 2, {"--schedule", GetParam(), "--microbatches", "5", "--last-batch", "3"});
  } else {
    expectEqualBits("mlp", 3, {"--schedule", GetParam(), "--microbatches", "3", "--last-batch", "2"});
  }
}

std::string nameOf(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Schedules, EverySchedule, ::testing::ValuesIn(trainingSchedules()), nameOf);

TEST(Schedules, OfSeveralStagesPerRankAndWithHalvedBackwardPassesTrainAllExamples) {
  for (const std::string model : {"gpt2", "llama", "resnet"}) {
    for (const std::string schedule : {"interleaved", "interleaved-zb", "dual-pipe-v"})
      expectEqualBits(model, 4, {"--schedule", schedule, "--microbatches", "8"});
  }
  expectEqualBits("gpt2", 2, {"--schedule", "interleaved:v=4", "--microbatches", "4"});
}

// In resnet the running statistics are results, and compared: were they updated twice, they would differ.
TEST(Schedules, RecomputationChangesNotOneBit) {
  for (const std::string model : {"llama", "resnet"}) {
    expectEqualBits(model, 4, {"--recompute", "always", "--microbatches", "4"});
    expectEqualBits(
        model, 2,
        {"--recompute", "0:always,3:except-last", "--schedule", "interleaved-zb", "--microbatches", "4"});
  }
}

TEST(Schedules, RecomputationLayerByLayerChangesNotOneBit) {
  for (const std::string schedule : {"1f1b", "gpipe", "interleaved", "zb-h1"}) {
    for (const std::string model : {"gpt2", "resnet"}) {
      for (const std::string how : {"layers", "selective"}) {
        expectEqualBits(
            model, 2, {"--recompute", how, "--layers", "12", "--schedule", schedule, "--microbatches", "4"});
      }
    }
  }
}

// Evaluation: the losses of training's first step, at its bits and in less memory; nothing is compared but
// loss and parameters.
// In training mode, as the first step has it: else normalisations and dropouts are those of an evaluation.
TEST(Schedules, ForwardOnlyGivesTheLossOfTrainingsFirstStep) {
  for (const std::string model : {"mlp", "gpt2", "llama", "resnet"}) {
    std::map<std::string, nlohmann::json> results;
    for (const std::string schedule : {"1f1b", "forward-only", "forward-only:v=2"}) {
      const TemporaryFolder folder;
      const CommandResult result =
          runPipeshard({"validate", "examples/" + model + ".onnx", "--cluster", "1x4", "--microbatches", "8",
                        "--schedule", schedule, "--mode", "training", "--json", folder.file("result.json")});
      ASSERT_EQ(result.exit_code, 0) << model << " " << schedule << result.errors;
      results[schedule] = nlohmann::json::parse(readFile(folder.file("result.json")));
    }
    const nlohmann::json& trained = results["1f1b"];
    for (const std::string schedule : {"forward-only", "forward-only:v=2"}) {
      const nlohmann::json& evaluated = results[schedule];
      EXPECT_EQ(evaluated.at("steps"), trained.at("steps")) << model;
      for (const auto& tensor : evaluated.at("tensors")) {
        EXPECT_TRUE(tensor.at("kind") == "loss" || tensor.at("kind") == "parameter") << tensor;
        EXPECT_EQ(tensor.at("error"), 0) << tensor;
      }
    }
    for (size_t rank = 0; rank < 4; ++rank) {
      EXPECT_LT(results["forward-only"].at("memory").at(rank).at("allocated_bytes"),
                trained.at("memory").at(rank).at("allocated_bytes"))
          << model << " rank " << rank;
    }
  }
}

TEST(Schedules, ForwardOnlyIsForEvaluationAlone) {
  const TemporaryFolder folder;
  const CommandResult none =
      runPipeshard({"plan", "examples/mlp.onnx", "--optimizer", "none", "-o", folder.file("plan")});
  EXPECT_EQ(none.exit_code, 64);
  EXPECT_THAT(none.errors, HasSubstr("goes with --schedule forward-only"));
  std::ofstream(folder.file("forward.csv")) << "0F0,0F1\n1F0,1F1\n";
  const CommandResult file =
      runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "1x2", "--microbatches", "2", "--schedule",
                    folder.file("forward.csv"), "-o", folder.file("plan")});
  EXPECT_EQ(file.exit_code, 78);
  EXPECT_THAT(file.errors, HasSubstr("for evaluation take --schedule forward-only"));
}

TEST(Schedules, PipelineRanksMayHaveSeveralDevices) {
  const std::vector<std::string> stages = {"--stages", "uniform:4", "--microbatches", "4", "--schedule"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), stages.begin(), stages.end());
    return more;
  };
  EXPECT_LE(validate("resnet", 4, with({"interleaved", "--recompute", "always"})).error, 1e-5);
  EXPECT_LE(validate("gpt2", 4, with({"dual-pipe-v", "--method", "auto", "--recompute", "always"})).error,
            1e-5);
  EXPECT_LE(validate("resnet", 4, with({"1f1b", "--layers", "12", "--recompute", "layers"})).error, 1e-5);
  EXPECT_LE(validate("gpt2", 4,
                     with({"interleaved", "--method", "auto", "--layers", "12", "--recompute", "layers"}))
                .error,
            1e-5);
  EXPECT_LE(validate("mlp", 4, with({"interleaved-zb", "--method", "zero3"})).error, 1e-5);
}

TEST(Schedules, AFileOfOrdersIsExecutedAndAPlanReplaysWithoutIt) {
  const TemporaryFolder folder;
  const std::string file = folder.file("mine.csv");
  writeFile(file, "0F0,0F1,0B0,0B1\n1F0,1I0,1F1,1W0,1B1\n");
  const std::vector<std::string> line = {
      "plan", "examples/mlp.onnx", "--dim", "batch=8", "--cluster",
      "1x2",  "--schedule",        file,    "-o",      folder.file("plan")};
  const CommandResult planned = runPipeshard(line);
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  std::filesystem::remove(file);
  const CommandResult result = runPipeshard({"validate", folder.file("plan")});
  EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
  EXPECT_THAT(readFile(folder.path() / "plan/plan.json"), HasSubstr("1F0,1I0,1F1,1W0,1B1"));
}

TEST(Schedules, WhatCannotBeIsRefusedWithTheNumbersThatWouldDo) {
  const auto expect = [](const std::vector<std::string>& options, int code, const std::string& message) {
    std::vector<std::string> line = {"validate", "examples/mlp.onnx", "--dim", "batch=8", "--cluster", "1x4"};
    line.insert(line.end(), options.begin(), options.end());
    const CommandResult result = runPipeshard(line);
    EXPECT_EQ(result.exit_code, code) << result.errors;
    EXPECT_THAT(result.errors, HasSubstr(message));
  };
  expect({"--schedule", "1f2b"}, 64,
         "there is no schedule \"1f2b\"; the schedules are sequential, gpipe, 1f1b");
  expect({"--schedule", "interleaved", "--stages", "uniform:3"}, 78, "expected a multiple of 2");
  expect({"--schedule", "interleaved:v=30"}, 78, "30 stages");
  expect({"--schedule", "dual-pipe-v", "--microbatches", "4"}, 78, "dual-pipe-v");
  expect({"--schedule", "nowhere/orders.csv"}, 66, "there is no file of this name");
  expect({"--recompute", "sometimes"}, 64, "expected never, selective, layers, always or except-last");
}

}  // namespace
}  // namespace pipeshard
