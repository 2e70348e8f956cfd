// `--data-command` and `--data -`: batches that another program writes, and what is said when it does not.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <span>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ir/base/error.h"
#include "runtime/files/tensor_file.h"
#include "tests/temporary_folder.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kRows = 96, kBatch = 8, kWidth = 32;

std::string contentOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class LoaderCommand : public ::testing::Test {
 protected:
  LoaderCommand() {
    for (size_t i = 0; i < x_.size(); ++i) {
      x_[i] = static_cast<float>(i % 29) / 8 - 1;
      y_[i] = static_cast<float>(i % 31) / 16;
    }
    writeTensorFile(at("d.safetensors"), tensors(0, kRows));
    const CommandResult planned = runPipeshard(
        {"plan", "examples/mlp.onnx", "--cluster", "1x2", "--stages", "uniform:2", "-o", at("p")});
    EXPECT_EQ(planned.exit_code, 0) << planned.errors;
  }

  std::string at(const std::string& name) const { return folder_.file(name); }

  std::vector<TensorView> tensors(int64_t first, int64_t count) const {
    return {{"x", DataType::kFloat32, {count, kWidth}, x_.data() + first * kWidth},
            {"y", DataType::kFloat32, {count, kWidth}, y_.data() + first * kWidth}};
  }

  // As a loader sends it: the length, then safetensors.
  std::string message(const std::vector<TensorView>& sent) const {
    writeTensorFile(at("message"), sent);
    std::string bytes = contentOf(at("message"));
    const uint64_t length = bytes.size();
    bytes.insert(0, reinterpret_cast<const char*>(&length), sizeof length);
    return bytes;
  }

  // All rows in messages of these sizes, the last one as often as needed; again from the first row on.
  std::string stream(std::vector<int64_t> sizes) const {
    std::string bytes;
    for (int64_t first = 0; first < kRows;) {
      const int64_t count = std::min(sizes.front(), kRows - first);
      bytes += message(tensors(first, count));
      first += count;
      if (sizes.size() > 1) sizes.erase(sizes.begin());
    }
    return bytes;
  }

  CommandResult run(const std::vector<std::string>& options) const {
    std::vector<std::string> arguments = {"run", at("p"), "--json", at("losses.json")};
    arguments.insert(arguments.end(), options.begin(), options.end());
    return runPipeshard(arguments);
  }

  std::vector<double> losses(const std::vector<std::string>& options) const {
    const CommandResult result = run(options);
    EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
    std::vector<double> found;
    if (result.exit_code != 0) return found;
    const nlohmann::json document = nlohmann::json::parse(contentOf(at("losses.json")));
    for (const nlohmann::json& step : document["steps"]) found.push_back(step["loss"].get<double>());
    return found;
  }

  void expectRefused(const std::vector<std::string>& options, ErrorCode code, const std::string& text) const {
    const CommandResult result = run(options);
    EXPECT_EQ(result.exit_code, static_cast<int>(code)) << result.output << result.errors;
    EXPECT_THAT(result.errors, HasSubstr(text));
  }

  TemporaryFolder folder_;
  std::vector<float> x_ = std::vector<float>(kRows * kWidth), y_ = std::vector<float>(kRows * kWidth);
};

TEST_F(LoaderCommand, TrainsOnWhatAFileOfTheSameRowsGives) {
  const std::vector<double> want = losses({"--data", at("d.safetensors"), "--steps", "12"});
  ASSERT_EQ(want.size(), 12u);
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{kBatch}, {1, 2, 3, 40, 7}, {kRows}}) {
    folder_.write("stream", stream(sizes));
    EXPECT_EQ(losses({"--data-command", "cat " + at("stream"), "--steps", "12"}), want);
  }
}

TEST_F(LoaderCommand, SaysWhatNoInputTakes) {
  std::vector<TensorView> sent = tensors(0, kRows);
  sent.push_back({"weights_of_rows", DataType::kFloat32, {kRows, kWidth}, x_.data()});
  folder_.write("stream", message(sent));
  const CommandResult result =
      run({"--data-command", "cat " + at("stream"), "--steps", std::to_string(kRows / kBatch)});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  const std::string said = "no input takes weights_of_rows; the model's inputs are x, y";
  EXPECT_THAT(result.output + result.errors, HasSubstr(said));
}

TEST_F(LoaderCommand, ARunThatGoesOnGetsTheRowsBehind) {
  const std::vector<double> want = losses({"--data", at("d.safetensors"), "--steps", "12"});
  const std::vector<double> rest(want.begin() + 5, want.end());
  const std::string bytes = stream({kBatch});
  folder_.write("stream", bytes);
  const size_t each = bytes.size() / (kRows / kBatch);
  const std::string all = "cat " + at("stream");
  const std::string behind = fmt::format("tail -c +$((1 + {{step}} * {})) {}", each, at("stream"));
  for (const auto& [folder, command] : {std::pair("all", all), std::pair("behind", behind)}) {
    losses({"--data-command", command, "--steps", "5", "--checkpoint", at(folder)});
    EXPECT_EQ(losses({"--data-command", command, "--steps", "12", "--checkpoint", at(folder)}), rest)
        << folder;
  }
}

// Who pipes only the rows behind would lose as many again.
TEST_F(LoaderCommand, ARunThatGoesOnSaysWhichRowsItLeavesOut) {
  const std::string bytes = stream({kBatch});
  folder_.write("stream", bytes);
  const std::string said = "rows of the first 2 steps are read and left out";
  const auto goesOn = [&](const std::string& steps, const std::string& command) {
    const CommandResult result =
        run({"--data-command", command, "--steps", steps, "--checkpoint", at("saved")});
    EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
    return result.output + result.errors;
  };
  EXPECT_THAT(goesOn("2", "cat " + at("stream")), Not(HasSubstr(said)));
  EXPECT_THAT(goesOn("4", "cat " + at("stream")), HasSubstr(said));
  const size_t each = bytes.size() / (kRows / kBatch);
  const std::string behind = fmt::format("tail -c +$((1 + {{step}} * {})) {}", each, at("stream"));
  EXPECT_THAT(goesOn("6", behind), Not(HasSubstr("are read and left out")));

  const auto pipe = [&] { dup2(open(at("stream").c_str(), O_RDONLY), STDIN_FILENO); };
  const pid_t pid =
      startPipeshard({"run", at("p"), "--data", "-", "--steps", "8", "--checkpoint", at("saved")}, at("out"),
                     at("err"), pipe);
  const CommandResult result = finishPipeshard(pid, at("out"), at("err"), std::chrono::seconds(60));
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(result.output + result.errors,
              HasSubstr("standard input: rows of the first 6 steps are read and left out"));
}

// The coordinator reads; the daemons' workers get the batches from it, also those of a run that goes on.
TEST_F(LoaderCommand, NodesGetTheBatchesFromTheCoordinator) {
  const std::vector<double> want = losses({"--data", at("d.safetensors"), "--steps", "12"});
  folder_.write("stream", stream({5, 40, 7}));
  EXPECT_EQ(
      runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "2x1", "--stages", "uniform:2", "-o", at("p")})
          .exit_code,
      0);
  std::vector<double> got;
  for (const std::string steps : {"7", "12"}) {
    std::vector<pid_t> nodes;
    for (const std::string index : {"0", "1"}) {
      nodes.push_back(startPipeshard({"node", "--key-file", at("job.key"), "--wait", "20", "--index", index},
                                     at("node.out" + index), at("node.err" + index)));
    }
    const std::vector<double> losses_of_run = losses(
        {"--data-command", "cat " + at("stream"), "--steps", steps, "--checkpoint", at("saved"), "--listen",
         "tcp://127.0.0.1:*", "--key-file", at("job.key"), "--node-timeout", "20", "--threads", "1"});
    got.insert(got.end(), losses_of_run.begin(), losses_of_run.end());
    for (int i = 0; i < 2; ++i) {
      const std::string index = std::to_string(i);
      EXPECT_EQ(
          finishPipeshard(nodes[i], at("node.out" + index), at("node.err" + index), std::chrono::seconds(20))
              .exit_code,
          0);
    }
  }
  EXPECT_EQ(got, want);
}

TEST_F(LoaderCommand, ALoaderThatFailsIsOneSentence) {
  folder_.write("stream", stream({40, 56}));
  const std::string all = "cat " + at("stream");
  expectRefused({"--data-command", all, "--steps", "13"}, ErrorCode::kMissingInput,
                "ended with exit code 0 after 96 rows, which are 12 whole batches; 13 steps were asked for");
  expectRefused({"--data-command", all + "; exit 3", "--steps", "13"}, ErrorCode::kPeerUnavailable,
                "ended with exit code 3 after 96 rows");
  expectRefused({"--data-command", "kill -9 $$", "--steps", "2"}, ErrorCode::kPeerUnavailable,
                "was killed by signal 9 (Killed) after 0 rows");
  expectRefused({"--data-command", "sleep 50", "--steps", "2", "--data-timeout", "1"}, ErrorCode::kHang,
                "the loader `sleep 50` has not sent the rows of step 1 within 1 s");
  expectRefused({"--data-command", "head -c 5000 " + at("stream"), "--steps", "2"}, ErrorCode::kBadModel,
                "message 1 is cut off: the stream ended inside the content");
  expectRefused({"--data-command", "echo this is no batch", "--steps", "2"}, ErrorCode::kBadModel,
                "message 1 claims 2338328219631577204 bytes; expected 8 bytes with the length");
  expectRefused({"--data", "-", "--steps", "2"}, ErrorCode::kMissingInput,
                "standard input ended after 0 rows, which are 0 whole batches; 2 steps");
}

// Nobody moves while a loader takes its time: that is no stall of the workers.
TEST_F(LoaderCommand, ASlowLoaderIsWaitedFor) {
  folder_.write("stream", stream({kBatch}));
  const std::string slowly = fmt::format("head -c 5000 {0}; sleep 4; tail -c +5001 {0}", at("stream"));
  EXPECT_EQ(
      losses({"--data-command", slowly, "--steps", "3", "--transfer-timeout", "2", "--progress-timeout", "2"})
          .size(),
      3u);
}

TEST_F(LoaderCommand, AMessageThatDoesNotFitIsOneSentence) {
  const auto refused = [&](const std::vector<TensorView>& sent, ErrorCode code, const std::string& text) {
    folder_.write("stream", message(tensors(0, 8)) + message(sent));
    expectRefused({"--data-command", "cat " + at("stream"), "--steps", "12"}, code, text);
  };
  std::vector<TensorView> sent = tensors(0, 8);
  sent[0].shape = {4, 64};
  refused(sent, ErrorCode::kConfiguration,
          "message 2, tensor 'x': found float32[4,64], expected float32[8,32], or any other number of rows");
  sent = tensors(0, 8);
  sent[1].data_type = DataType::kInt32;
  refused(sent, ErrorCode::kConfiguration, "message 2, tensor 'y': found int32[8,32]");
  sent = tensors(0, 8);
  sent[1].shape = {4, kWidth};
  refused(sent, ErrorCode::kConfiguration, "message 2: tensor 'y' has 4 rows but those before it have 8");
  sent = tensors(0, 8);
  sent[1].name = "z";
  refused(sent, ErrorCode::kMissingInput, "message 2 holds no tensor 'y'; it holds: x, z");
  std::string damaged = message(tensors(0, 8));
  damaged[20] = '\x01';
  folder_.write("stream", damaged);
  expectRefused({"--data-command", "cat " + at("stream"), "--steps", "2"}, ErrorCode::kBadModel,
                "message 1 is not a valid safetensors file");
}

TEST_F(LoaderCommand, WhatDoesNotGoWithAPipeIsRefused) {
  const auto usage = [&](const std::vector<std::string>& options, const std::string& text) {
    expectRefused(options, ErrorCode::kUsage, text);
  };
  usage({"--data-command", "cat", "--shuffle"}, "--shuffle goes with --data of a file or folder");
  usage({"--data-command", "cat", "--epochs", "2"}, "where a loader's data end is not known; give --steps");
  usage({"--data-command", "cat", "--data", at("d.safetensors")}, "--data");
  usage({"--data", "-", "--restarts", "2", "--checkpoint", at("c")}, "standard input cannot be read again");
  const CommandResult planned =
      runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "1x2", "--data", "-", "-o", at("q")});
  EXPECT_EQ(planned.exit_code, static_cast<int>(ErrorCode::kUsage));
  EXPECT_THAT(planned.errors, HasSubstr("what comes through a pipe has no length that is known"));
}

TEST_F(LoaderCommand, ValidateReadsALoaderTwice) {
  folder_.write("stream", stream({24}));
  const CommandResult result =
      runPipeshard({"validate", "examples/mlp.onnx", "--cluster", "1x2", "--stages", "uniform:2",
                    "--data-command", "cat " + at("stream"), "--steps", "2"});
  EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
}

}  // namespace
}  // namespace pipeshard
