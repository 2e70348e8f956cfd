// Sequences of several lengths, as a user has them: a plan for all of them, examples of any. PyTorch's losses
// are of every example by itself, unpadded, in float64 (tests/oracle/make_lengths.py).
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "ir/base/error.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kGolden = PIPESHARD_SOURCE_DIR "/tests/golden/lengths/";

class Lengths : public ::testing::Test {
 protected:
  std::string at(const std::string& name) const { return folder_.file(name); }

  static CommandResult succeed(const std::vector<std::string>& arguments) {
    CommandResult result = runPipeshard(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
    return result;
  }

  std::string plan(const std::string& model, const std::vector<std::string>& options,
                   const std::string& lengths = "4,8,16") {
    const std::string directory = at("plan" + std::to_string(++plans_));
    std::vector<std::string> line = {"plan",        kGolden + model + ".onnx",
                                     "--dim",       "batch=4",
                                     "--dim",       "time=" + lengths,
                                     "--precision", "float64",
                                     "--optimizer", "sgd:lr=0.1",
                                     "-o",          directory};
    line.insert(line.end(), options.begin(), options.end());
    planned_ = succeed(line).output;
    return directory;
  }

  std::vector<double> losses(const std::string& plan, const std::vector<std::string>& options) {
    std::vector<std::string> line = {"run", plan, "--threads", "1", "--json", at("losses.json")};
    line.insert(line.end(), options.begin(), options.end());
    ran_ = succeed(line).output;
    std::vector<double> found;
    const nlohmann::json document = nlohmann::json::parse(readFile(at("losses.json")));
    for (const nlohmann::json& step : document["steps"]) found.push_back(step["loss"].get<double>());
    return found;
  }

  static std::vector<double> golden(const std::string& model) {
    return nlohmann::json::parse(readFile(kGolden + model + ".json"))["losses"];
  }

  static void expectNear(const std::vector<double>& got, const std::vector<double>& want, double bound) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], bound * want[i]) << "step " << i + 1;
  }

  const TemporaryFolder folder_;
  std::string planned_, ran_;
  int plans_ = 0;
};

// 26 examples in batches of 4: six whole batches and a last one, twice.
TEST_F(Lengths, TrainAsPyTorchDoesWithoutPadding) {
  for (const std::string model : {"causal", "masked"}) {
    const std::string data = kGolden + model + ".jsonl";
    for (const std::vector<std::string>& options : std::vector<std::vector<std::string>>{
             {"--cluster", "1x1", "--microbatches", "1"},
             {"--cluster", "1x2", "--stages", "uniform:2", "--microbatches", "2", "--recompute", "always"},
             {"--cluster", "1x2", "--stages", "uniform:1", "--method", "megatron:1,2"}}) {
      SCOPED_TRACE(model + options.back());
      const std::vector<std::string> with_data = [&] {
        std::vector<std::string> all = options;
        all.insert(all.end(), {"--data", data});
        return all;
      }();
      expectNear(losses(plan(model, with_data), {"--data", data, "--epochs", "2"}), golden(model), 1e-9);
    }
    EXPECT_THAT(planned_, HasSubstr("time = 16, 8, 4 (planned for the longest; programs for each)"));
    EXPECT_THAT(ran_, AllOf(HasSubstr("26 examples, 7 steps an epoch"), HasSubstr("labels by -100")));
  }
}

TEST_F(Lengths, GoOnFromACheckpointOnAnotherPlanInTheSameOrder) {
  const std::string data = kGolden + "causal.jsonl";
  const std::string two = plan("causal", {"--cluster", "1x2", "--microbatches", "2", "--data", data});
  losses(two, {"--data", data, "--steps", "4", "--checkpoint", at("saved")});
  const std::string one = plan("causal", {"--cluster", "1x1", "--microbatches", "1", "--data", data});
  const std::vector<double> rest =
      losses(one, {"--data", data, "--steps", "14", "--checkpoint", at("saved")});
  std::vector<double> want = golden("causal");
  want.erase(want.begin(), want.begin() + 4);
  expectNear(rest, want, 1e-9);
  // shuffled examples, too, whatever the plan
  expectNear(losses(two, {"--data", data, "--epochs", "2", "--shuffle", "--seed", "5"}),
             losses(one, {"--data", data, "--epochs", "2", "--shuffle", "--seed", "5"}), 1e-12);
}

TEST_F(Lengths, HeldOutLossIsThatOfOneLength) {
  const auto evaluated = [&](const std::string& lengths, const std::string& held_out) {
    const std::string directory = plan("masked", {"--cluster", "1x2", "--microbatches", "2"}, lengths);
    const std::string log = at("log" + std::to_string(plans_));
    losses(directory, {"--steps", "1", "--eval", held_out, "--eval-at-start", "--log", log});
    EXPECT_THAT(ran_, HasSubstr("weighted by what their loss is divided by"));
    const std::string lines = readFile(log + "/evaluations.jsonl");
    return nlohmann::json::parse(lines.substr(0, lines.find('\n')))["loss"].get<double>();
  };
  // as one would pad by hand
  std::string padded;
  std::istringstream rows(readFile(kGolden + "masked.jsonl"));
  for (std::string line; std::getline(rows, line);) {
    nlohmann::json row = nlohmann::json::parse(line);
    for (nlohmann::json& list : row) {
      while (list.size() < 16) list.push_back(&list == &row["labels"] ? -100 : 0);
    }
    padded += row.dump() + "\n";
  }
  writeFile(at("padded.jsonl"), padded);
  const std::string ragged = kGolden + "masked.jsonl";
  const double want = evaluated("16", at("padded.jsonl"));
  EXPECT_NEAR(evaluated("4,8,16", ragged), want, 1e-8);
}

TEST_F(Lengths, AreValidatedEach) {
  const std::string directory = plan("causal", {"--cluster", "1x2", "--microbatches", "2"});
  EXPECT_THAT(succeed({"validate", directory}).output,
              AllOf(HasSubstr("steps by time: 1 of 16, 1 of 8, 1 of 4"), HasSubstr("PASS")));
  EXPECT_THAT(succeed({"validate", directory, "--steps", "1"}).output,
              HasSubstr("steps by time: 1 of 16; none of 8, 4"));
  EXPECT_THAT(succeed({"inspect", kGolden + "causal.onnx", "--dim", "time=8,4"}).output,
              HasSubstr("lengths time = 8, shown, and 4"));
  // an edited plan has its programs made again
  std::string text = readFile(directory + "/plan.json");
  const std::string found = "\"shorter\":[8,4]";
  ASSERT_NE(text.find(found), std::string::npos) << text;
  writeFile(directory + "/plan.json", text.replace(text.find(found), found.size(), "\"shorter\":[6]"));
  EXPECT_THAT(succeed({"validate", directory}).output, HasSubstr("steps by time: 1 of 16, 1 of 6"));
}

TEST_F(Lengths, WhatDoesNotGoTogetherIsRefused) {
  const auto refused = [](std::vector<std::string> line, ErrorCode code, const std::string& message) {
    const CommandResult result = runPipeshard(line);
    EXPECT_EQ(result.exit_code, static_cast<int>(code)) << result.output << result.errors;
    EXPECT_THAT(result.errors, HasSubstr(message));
  };
  const auto planning = [&](const std::vector<std::string>& options, const std::string& message,
                            ErrorCode code = ErrorCode::kUsage) {
    std::vector<std::string> line = {"plan",       kGolden + "causal.onnx", "--cluster", "1x1", "-o",
                                     at("refused")};
    line.insert(line.end(), options.begin(), options.end());
    refused(line, code, message);
  };
  planning({"--dim", "batch=4,8", "--dim", "time=8"}, "--dim batch: the batch has one size");
  planning({"--dim", "batch=4,8", "--dim", "time=4,8"}, "'batch' has several sizes already");
  planning({"--dim", "batch=4", "--dim", "time=4,4"}, "a size is given twice");
  planning({"--dim", "batch=4", "--dim", "time=4,"}, "or several for the length of sequences");
  planning({"--dim", "batch=4", "--dim", "time=4,8", "--schedule", "forward-only"}, "for a plan that trains");

  planning({"--dim", "batch=4", "--dim", "time=4,8", "--schedule", "pipedream", "--window", "2"},
           "which has sequences of one length", ErrorCode::kConfiguration);

  const std::string data = kGolden + "causal.jsonl";
  const std::string directory = plan("causal", {"--cluster", "1x2", "--data", data, "--truncate"}, "4,8");
  refused({"run", directory, "--data", data, "--epochs", "1"}, ErrorCode::kConfiguration,
          "line 4, input 'input_ids': the sequence has 15 elements, but the plan's longest sequences have 8; "
          "plan for longer ones, or cut it with --truncate");
  losses(directory, {"--data", data, "--epochs", "1", "--truncate"});
  EXPECT_THAT(ran_, HasSubstr("causal.jsonl, long rows cut; 26 examples"));
  refused({"run", directory, "--data-command", "cat " + data, "--steps", "1"}, ErrorCode::kUsage,
          "they have one length");
}

}  // namespace
}  // namespace pipeshard
