// Sequences of several lengths, as a user has them: a plan for all of them, examples of any. PyTorch's losses
// are of every example by itself, unpadded, in float64 (tests/oracle/make_lengths.py).
#include <algorithm>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "ir/base/error.h"
#include "runtime/data/length_order.h"
#include "runtime/files/tensor_file.h"
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

// 12 documents of 1 to 23 tokens, and the rows that they are in a table.
TEST_F(Lengths, DocumentsOfTokensTrainAsTheirRowsInATable) {
  std::vector<uint16_t> tokens;
  std::string rows;
  for (int64_t document = 0; document < 12; ++document) {
    const int64_t length = 1 + 2 * document;
    std::vector<int64_t> all;
    for (int64_t i = 0; i + 1 < length; ++i) all.push_back(1 + (document * 5 + i * i) % 19);
    all.push_back(0);
    tokens.insert(tokens.end(), all.begin(), all.end());
    for (int64_t at = 0; at < length; at += 16) {
      const std::vector<int64_t> row(all.begin() + at, all.begin() + std::min(at + 16, length));
      if (row.size() > 1) rows += nlohmann::json{{"input_ids", row}, {"labels", row}}.dump() + "\n";
    }
  }
  const std::string text(reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(tokens[0]));
  writeFile(at("text.u16"), text);
  writeFile(at("rows.jsonl"), rows);
  const std::vector<std::string> documents = {"--data", at("text.u16"), "--end-of-text", "0"};
  const auto with = [](std::vector<std::string> all, const std::vector<std::string>& more) {
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const std::string directory = plan("causal", with({"--cluster", "1x2", "--microbatches", "2"}, documents));
  const std::vector<double> got = losses(
      directory, with(documents, {"--epochs", "2", "--shuffle", "--seed", "4", "--eval", at("text.u16")}));
  EXPECT_THAT(ran_,
              HasSubstr("144 tokens (uint16) in 12 documents, which are 14 rows of at most 16; left out: "
                        "2 rows of one token; input_ids: the row"));
  EXPECT_THAT(ran_, HasSubstr("held-out data: " + at("text.u16") + ", documents end with 0: 144 tokens"));
  EXPECT_THAT(ran_, HasSubstr("14 examples in 4 batches"));
  expectNear(got,
             losses(directory, {"--data", at("rows.jsonl"), "--epochs", "2", "--shuffle", "--seed", "4"}),
             1e-12);
  // as does a plan of one length, whose rows are padded
  const std::string one = plan("causal", with({"--cluster", "1x1"}, documents), "16");
  EXPECT_EQ(losses(one, with(documents, {"--epochs", "1"})).size(), 4U);
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

// The six whole batches of an epoch as a loader sends them: each padded to its longest row.
class LoaderLengths : public Lengths {
 protected:
  LoaderLengths() {
    std::istringstream lines(readFile(kGolden + "causal.jsonl"));
    std::vector<uint8_t> lengths;
    for (std::string line; std::getline(lines, line);) {
      rows_.push_back(nlohmann::json::parse(line)["labels"]);
      lengths.push_back(rows_.back().size() > 8 ? 0 : rows_.back().size() > 4 ? 1 : 2);
    }
    const LengthOrder order(lengths, 3, 4, true, std::nullopt);
    for (int64_t step = 1; step <= 6; ++step) steps_.push_back(order.rowsOf(step));
  }

  std::string message(const std::vector<int64_t>& rows) const {
    size_t length = 0;
    for (const int64_t row : rows) length = std::max(length, rows_[row].size());
    std::vector<int64_t> ids, labels;
    for (const int64_t row : rows) {
      ids.insert(ids.end(), rows_[row].begin(), rows_[row].end());
      labels.insert(labels.end(), rows_[row].begin(), rows_[row].end());
      ids.resize(ids.size() + length - rows_[row].size(), 1);
      labels.resize(ids.size(), -100);
    }
    const Shape shape = {std::ssize(rows), static_cast<int64_t>(length)};
    const std::vector<TensorView> tensors = {{"input_ids", DataType::kInt64, shape, ids.data()},
                                             {"labels", DataType::kInt64, shape, labels.data()}};
    writeTensorFile(at("message"), tensors);
    const std::string content = readFile(at("message"));
    const uint64_t bytes = content.size();
    return std::string(reinterpret_cast<const char*>(&bytes), sizeof bytes) + content;
  }

  std::vector<std::vector<int64_t>> rows_, steps_;
};

TEST_F(LoaderLengths, AreThoseOfItsMessages) {
  std::string all;
  for (size_t step = 0; step < steps_.size(); ++step) all += message(steps_[step]);
  writeFile(at("stream"), all);
  const std::string directory = plan("causal", {"--cluster", "1x2", "--microbatches", "2"});
  std::vector<double> want = golden("causal");
  want.resize(6);
  const std::vector<std::string> data = {"--data-command", "cat " + at("stream"), "--steps"};
  const auto losses_of = [&](const std::string& steps) {
    return losses(directory, {data[0], data[1], data[2], steps, "--checkpoint", at("saved")});
  };
  std::vector<double> got = losses_of("2");
  EXPECT_THAT(ran_, HasSubstr("in sequences of 16, 8, 4; padded: input_ids by 0, labels by -100"));
  for (const double loss : losses_of("6")) got.push_back(loss);  // what was used is read again
  expectNear(got, want, 1e-9);

  const auto refused = [&](const std::string& sent, const std::string& message, ErrorCode code) {
    writeFile(at("bad"), sent);
    const CommandResult result =
        runPipeshard({"run", directory, "--data-command", "cat " + at("bad") + " # {step}", "--steps", "1"});
    EXPECT_EQ(result.exit_code, static_cast<int>(code)) << result.errors;
    EXPECT_THAT(result.errors, HasSubstr(message));
  };
  refused(message({0, 1, 2}),
          "message 1: found 3 rows; with sequences of several lengths a command that goes on by {step} sends "
          "messages of whole batches, of 4 rows each",
          ErrorCode::kConfiguration);
  rows_[0].resize(17, 1);
  refused(message({0, 1, 2, 3}), "message 1, tensor 'input_ids': the sequence has 17 elements",
          ErrorCode::kConfiguration);
}

// A message is a row, or some of one length, as they come: batches are those of a file, and the same after a
// pause.
TEST_F(LoaderLengths, RowsAreGroupedAsThoseOfAFile) {
  std::string all;
  for (int64_t row = 0; row < std::ssize(rows_);) {
    std::vector<int64_t> same = {row};
    while (++row < std::ssize(rows_) && rows_[row].size() == rows_[same[0]].size()) same.push_back(row);
    all += message(same);
  }
  writeFile(at("stream"), all);
  const std::string directory = plan("causal", {"--cluster", "1x2", "--microbatches", "2"});
  std::vector<double> want = golden("causal");
  want.resize(6);
  const auto losses_of = [&](const std::string& steps) {
    return losses(directory,
                  {"--data-command", "cat " + at("stream"), "--steps", steps, "--checkpoint", at("saved")});
  };
  std::vector<double> got;
  for (const char* const steps : {"1", "4", "6"}) {
    for (const double loss : losses_of(steps)) got.push_back(loss);
  }
  expectNear(got, want, 1e-9);
  // 26 rows: the last two fill no batch
  const CommandResult ended = runPipeshard({"run", directory, "--data-command", "cat " + at("stream"),
                                            "--steps", "7", "--checkpoint", at("saved")});
  EXPECT_EQ(ended.exit_code, static_cast<int>(ErrorCode::kMissingInput)) << ended.errors;
  EXPECT_THAT(ended.errors, HasSubstr("after 26 rows, which are 6 whole batches and 2 rows that fill none"));
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
  for (const char* const pad : {"input_ids", "input_ids=much", "=1"})
    refused({"run", directory, "--data", data, "--pad", pad}, ErrorCode::kUsage, "expected INPUT=NUMBER");
  losses(directory, {"--data", data, "--epochs", "1", "--truncate"});
  EXPECT_THAT(ran_, HasSubstr("causal.jsonl, long rows cut; 26 examples"));
}

}  // namespace
}  // namespace pipeshard
