// Jobs whose ranks have a GPU each and reach each other by NCCL, on its stand-in (tests/standin/nccl):
// nothing is buffered, a device has room for one kernel of it, and what does not match is reported.
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/standin/clean_workers.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;
using ::testing::HasSubstr;

class NcclCommand : public ::testing::Test {
 protected:
  NcclCommand() {
    set("STANDIN_LOG", log_.c_str());
    set("STANDIN_DEVICES", "4");
    set("STANDIN_NCCL_RESIDENT", "1");
    set("STANDIN_NCCL_SECONDS", "30");
  }
  ~NcclCommand() override {
    for (const std::string& name : set_) ::unsetenv(name.c_str());
    if (!path_.empty()) ::setenv("LD_LIBRARY_PATH", path_.c_str(), 1);
  }

  void set(const char* name, const char* value) {
    ::setenv(name, value, 1);
    set_.emplace_back(name);
  }

  CommandResult validate(const std::vector<std::string>& words) const {
    std::vector<std::string> arguments = {"validate", "examples/mlp.onnx", "--cluster", "1x4", "--device",
                                          "cuda",     "--steps",           "2"};
    arguments.insert(arguments.end(), words.begin(), words.end());
    return runPipeshard(arguments, seconds(100));
  }
  void expectPasses(const std::vector<std::string>& words, const char* mode) {
    set("STANDIN_MODE", mode);
    const CommandResult result = validate(words);
    ASSERT_EQ(result.exit_code, 0) << result.output << result.errors;
    EXPECT_THAT(result.output, HasSubstr("PASS: mlp.onnx on 4 workers equals one device"));
    EXPECT_THAT(result.output, HasSubstr("GPUs give each other tensors by NCCL "));
    EXPECT_THAT(result.output, HasSubstr("all 4 ranks"));
    expectCleanWorkers(log_, 4);
  }

  // A job of a plan with endless steps, which has begun.
  pid_t startRun(const std::string& plan) {
    const CommandResult planned =
        runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "1x4", "--stages", "uniform:1", "-o", plan});
    EXPECT_EQ(planned.exit_code, 0) << planned.errors;
    return startPipeshard({"run", plan, "--steps", "10000000", "--device", "cuda"}, folder_.file("out"),
                          folder_.file("err"));
  }

  TemporaryFolder folder_;
  std::string log_ = folder_.file("standin.log");
  std::vector<std::string> set_;
  std::string path_;
};

TEST_F(NcclCommand, ValidatePassesUnderOneForwardOneBackward) {
  expectPasses({"--stages", "uniform:4", "--schedule", "1f1b", "--microbatches", "4"}, "lazy");
}
TEST_F(NcclCommand, ValidatePassesUnderGpipe) {
  expectPasses({"--stages", "uniform:4", "--schedule", "gpipe", "--microbatches", "4"}, "eager");
}
TEST_F(NcclCommand, ValidatePassesWithShardedWeights) {
  expectPasses({"--stages", "uniform:1", "--method", "zero3"}, "lazy");
}
TEST_F(NcclCommand, ValidatePassesWithShardedOperators) {
  expectPasses({"--stages", "uniform:1", "--method", "megatron:2,2"}, "eager");
}
TEST_F(NcclCommand, ValidatePassesWithGradientsInTheBackground) {
  expectPasses({"--stages", "uniform:2", "--microbatches", "2", "--bucket", "1KiB"}, "lazy");
}

TEST_F(NcclCommand, AKilledRankEndsTheJobWithinFiveSeconds) {
  const std::string plan = folder_.file("job.plan");
  const pid_t run = startRun(plan);
  const auto is_stepping = [&] { return readFile(folder_.file("out")).find("step") != std::string::npos; };
  ASSERT_TRUE(eventually(is_stepping, seconds(60))) << readFile(folder_.file("err"));
  const std::vector<pid_t> rank = workersOf(plan, 2);
  ASSERT_EQ(rank.size(), 1u);
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(::kill(rank[0], SIGKILL), 0);
  const CommandResult result = finishPipeshard(run, folder_.file("out"), folder_.file("err"), seconds(20));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(5));
  EXPECT_EQ(result.exit_code, 69) << result.errors;
  EXPECT_THAT(result.errors, HasSubstr("rank 2"));
  EXPECT_TRUE(eventually([&] { return processesMentioning(plan).empty(); }, seconds(5)));
}

TEST_F(NcclCommand, AnErrorOfNcclEndsTheJobWithItsText) {
  set("STANDIN_NCCL_ERROR", "1:7:2");
  const std::string plan = folder_.file("job.plan");
  const pid_t run = startRun(plan);
  const CommandResult result = finishPipeshard(run, folder_.file("out"), folder_.file("err"), seconds(60));
  EXPECT_EQ(result.exit_code, 69) << result.errors;
  // Of the rank itself, whoever was faster of those that have seen it give up.
  EXPECT_THAT(result.errors, HasSubstr("NCCL: work under way: unhandled system error"));
  EXPECT_THAT(result.errors, HasSubstr("rank 1 "));
  EXPECT_TRUE(eventually([&] { return processesMentioning(plan).empty(); }, seconds(5)));
}

// They do it by CUDA IPC (ipc_command_test.cc).
TEST_F(NcclCommand, RanksThatShareAGpuAreRefused) {
  set("STANDIN_DEVICES", "3");
  const CommandResult refused = validate({"--share-devices", "--transport", "nccl"});
  EXPECT_EQ(refused.exit_code, 78);
  EXPECT_THAT(refused.errors, HasSubstr("--transport nccl: ranks 0 and 3 have one GPU"));
}

// The last stage of gpt2 has its sum of the tied weight's gradient sent before the last microbatch is added,
// and what the stage before it waits for behind the product that is computed in that sum's memory. The first
// stage takes the sum last.
void sendSumsEarly(const std::string& file) {
  auto kind = nlohmann::ordered_json::parse(readFile(file));
  auto& instructions = kind.at("instructions");
  const auto at = [&](const auto& is_meant) {
    return std::find_if(instructions.rbegin(), instructions.rend(), is_meant).base() - 1;
  };
  const auto sum = at([](const auto& i) { return i.value("kind", "") == "send" && i.at("peer") == 0; });
  const auto moved_sum = *sum;
  instructions.erase(sum);
  std::vector<nlohmann::ordered_json> sends;
  for (int i = 0; i < 2; ++i) {
    const auto send = at([](const auto& i) { return i.value("kind", "") == "send" && i.at("peer") == 1; });
    sends.insert(sends.begin(), *send);
    instructions.erase(send);
  }
  const auto product =
      at([](const auto& i) { return i.value("kind", "") == "run" && i.at("subgraph") == 3; });
  auto behind = instructions.insert(product, moved_sum) + 2;
  for (const auto& send : sends) behind = instructions.insert(behind, send) + 1;
  writeFile(file, kind.dump(1));
}

TEST_F(NcclCommand, APlanWhoseRanksWouldWaitInACircleIsRefusedWithIt) {
  const std::string plan = folder_.file("job.plan");
  const CommandResult planned =
      runPipeshard({"plan", "examples/gpt2.onnx", "--cluster", "1x3", "--stages", "uniform:3", "--schedule",
                    "1f1b", "--microbatches", "2", "-o", plan});
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  sendSumsEarly(plan + "/kinds/0002.json");
  for (const char* device : {"cuda", "cpu"}) {
    const CommandResult refused = runPipeshard({"run", plan, "--steps", "1", "--device", device});
    EXPECT_EQ(refused.exit_code, 78) << refused.output << refused.errors;
    EXPECT_THAT(refused.errors,
                HasSubstr(plan + ": the programs of its ranks do not fit each other: the step "
                                 "does not end, for waits form a circle: "));
    EXPECT_THAT(refused.errors, HasSubstr("rank 2, instruction "));
    EXPECT_THAT(refused.errors, HasSubstr("rank 0, instruction "));
    EXPECT_THAT(refused.errors, HasSubstr("plan again"));
    EXPECT_THAT(refused.output, ::testing::Not(HasSubstr("step 1")));
  }
}

TEST_F(NcclCommand, ValidatePassesInBfloat16) {
  expectPasses({"--stages", "uniform:1", "--method", "megatron:2,2", "--precision", "bfloat16"}, "lazy");
}
TEST_F(NcclCommand, ValidatePassesInFloat16) {
  expectPasses({"--stages", "uniform:1", "--method", "megatron:2,2", "--precision", "float16"}, "lazy");
}

TEST_F(NcclCommand, AMissingLibraryIsNamedAndNotNeededForTheHostsMemory) {
  const fs::path libraries = folder_.file("lib");
  fs::create_directory(libraries);
  for (const auto& file : fs::directory_iterator(PIPESHARD_STANDIN_DIR)) {
    const std::string name = file.path().filename().string();
    if (name.find(".so") != std::string::npos && name.find("nccl") == std::string::npos)
      fs::create_symlink(file.path(), libraries / name);
  }
  writeFile(libraries / "libnccl.so.2", "no library");  // found before one that the machine may have
  path_ = std::getenv("LD_LIBRARY_PATH");
  ::setenv("LD_LIBRARY_PATH", libraries.c_str(), 1);
  const CommandResult missing = validate({});
  EXPECT_EQ(missing.exit_code, 78);
  EXPECT_THAT(missing.errors, HasSubstr("libnccl.so.2, by which GPUs reach each other, cannot be loaded"));
  EXPECT_THAT(missing.errors, HasSubstr("--transport staged"));
  const CommandResult staged = validate({"--transport", "staged"});
  EXPECT_EQ(staged.exit_code, 0) << staged.errors;
  EXPECT_THAT(staged.output, HasSubstr("through the host's memory: as asked for"));
}

}  // namespace
}  // namespace pipeshard
