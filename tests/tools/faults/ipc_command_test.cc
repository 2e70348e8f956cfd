// Jobs whose ranks share a GPU and reach each other by CUDA IPC, on its stand-in (tests/standin/sharing.h):
// whoever reads another rank's memory without an event between, or writes what another still reads, is
// reported.
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/standin/clean_workers.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

class IpcCommand : public ::testing::Test {
 protected:
  IpcCommand() { set("STANDIN_LOG", log_.c_str()); }
  ~IpcCommand() override {
    for (const std::string& name : set_) ::unsetenv(name.c_str());
  }

  void set(const char* name, const char* value) {
    ::setenv(name, value, 1);
    set_.emplace_back(name);
  }

  static CommandResult validate(const std::vector<std::string>& words) {
    std::vector<std::string> arguments = {"validate", "examples/mlp.onnx", "--cluster", "1x4", "--device",
                                          "cuda",     "--share-devices",   "--steps",   "2"};
    arguments.insert(arguments.end(), words.begin(), words.end());
    return runPipeshard(arguments, seconds(100));
  }
  void expectPasses(const std::vector<std::string>& words, const char* mode) {
    set("STANDIN_MODE", mode);
    const CommandResult result = validate(words);
    ASSERT_EQ(result.exit_code, 0) << result.output << result.errors;
    EXPECT_THAT(result.output, HasSubstr("PASS: mlp.onnx on 4 workers equals one device"));
    EXPECT_THAT(result.output, HasSubstr("GPUs give each other tensors by CUDA IPC, all 4 ranks: "
                                         "ranks 0 and 1 have one GPU"));
    expectCleanWorkers(log_, 4);
  }

  TemporaryFolder folder_;
  std::string log_ = folder_.file("standin.log");
  std::vector<std::string> set_;
};

TEST_F(IpcCommand, ValidatePassesUnderOneForwardOneBackward) {
  expectPasses({"--stages", "uniform:4", "--schedule", "1f1b", "--microbatches", "4"}, "lazy");
}
TEST_F(IpcCommand, ValidatePassesUnderGpipe) {
  expectPasses({"--stages", "uniform:4", "--schedule", "gpipe", "--microbatches", "4"}, "eager");
}
TEST_F(IpcCommand, ValidatePassesWithShardedWeights) {
  expectPasses({"--stages", "uniform:1", "--method", "zero3"}, "lazy");
}
TEST_F(IpcCommand, ValidatePassesWithShardedOperators) {
  expectPasses({"--stages", "uniform:1", "--method", "megatron:2,2"}, "eager");
}
TEST_F(IpcCommand, ValidatePassesWithGradientsInTheBackground) {
  expectPasses({"--stages", "uniform:2", "--microbatches", "2", "--bucket", "1KiB"}, "lazy");
}
TEST_F(IpcCommand, ValidatePassesInBfloat16) {
  expectPasses({"--stages", "uniform:1", "--method", "megatron:2,2", "--precision", "bfloat16"}, "lazy");
}

// Some have one of their own: it goes between the GPUs of a machine, too.
TEST_F(IpcCommand, ThreeGpusOfFourRanksAreReachedAlike) {
  set("STANDIN_DEVICES", "3");
  const CommandResult result = validate({"--stages", "uniform:1", "--method", "zero3"});
  ASSERT_EQ(result.exit_code, 0) << result.output << result.errors;
  EXPECT_THAT(result.output, HasSubstr("by CUDA IPC, all 4 ranks: ranks 0 and 3 have one GPU"));
  expectCleanWorkers(log_, 4);
}

TEST_F(IpcCommand, WhereItDoesNotWorkTensorsGoThroughTheHostsMemoryAndItIsSaid) {
  set("STANDIN_IPC", "off");
  const CommandResult staged = validate({});
  ASSERT_EQ(staged.exit_code, 0) << staged.output << staged.errors;
  EXPECT_THAT(staged.output,
              HasSubstr("GPUs give each other tensors through the host's memory: ranks 0 and 1 "
                        "have one GPU, and CUDA IPC does not work: rank 0: CUDA: a handle of "
                        "memory: "));
  expectCleanWorkers(log_, 4);
  const CommandResult refused = validate({"--transport", "ipc"});
  EXPECT_EQ(refused.exit_code, 78) << refused.output;
  EXPECT_THAT(refused.errors, HasSubstr("--transport ipc: rank 0: CUDA: a handle of memory: "));
  EXPECT_THAT(refused.errors, HasSubstr("--transport staged"));
}

// Sums are those of the host's memory, to the bit.
TEST_F(IpcCommand, LossesAreThoseOfTheHostsMemory) {
  const std::string plan = folder_.file("job.plan");
  const CommandResult planned = runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "1x4", "--stages",
                                              "uniform:2", "--microbatches", "2", "-o", plan});
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  const auto dump_of = [&](const std::string& transport) {
    const std::string dump = folder_.file("dump-" + transport);
    const CommandResult run = runPipeshard({"run", plan, "--steps", "3", "--device", "cuda",
                                            "--share-devices", "--transport", transport, "--dump", dump});
    EXPECT_EQ(run.exit_code, 0) << run.output << run.errors;
    std::map<std::string, std::string> files;
    for (const auto& file : std::filesystem::recursive_directory_iterator(dump)) {
      if (file.is_regular_file()) files[std::filesystem::relative(file.path(), dump)] = readFile(file.path());
    }
    return files;
  };
  const auto by_ipc = dump_of("ipc");
  EXPECT_FALSE(by_ipc.empty());
  EXPECT_EQ(by_ipc, dump_of("staged"));
}

TEST_F(IpcCommand, AKilledRankEndsTheJob) {
  const std::string plan = folder_.file("job.plan");
  const CommandResult planned =
      runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "1x4", "--stages", "uniform:1", "-o", plan});
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  const pid_t run =
      startPipeshard({"run", plan, "--steps", "10000000", "--device", "cuda", "--share-devices"},
                     folder_.file("out"), folder_.file("err"));
  const auto is_stepping = [&] { return readFile(folder_.file("out")).find("step") != std::string::npos; };
  ASSERT_TRUE(eventually(is_stepping, seconds(60))) << readFile(folder_.file("err"));
  EXPECT_THAT(readFile(folder_.file("err")), HasSubstr("by CUDA IPC"));
  const std::vector<pid_t> rank = workersOf(plan, 2);
  ASSERT_EQ(rank.size(), 1u);
  ASSERT_EQ(::kill(rank[0], SIGKILL), 0);
  const CommandResult result = finishPipeshard(run, folder_.file("out"), folder_.file("err"), seconds(20));
  EXPECT_EQ(result.exit_code, 69) << result.errors;
  EXPECT_THAT(result.errors, HasSubstr("rank 2"));
  EXPECT_TRUE(eventually([&] { return processesMentioning(plan).empty(); }, seconds(5)));
}

}  // namespace
}  // namespace pipeshard
