// Jobs with --device cuda, as a user starts them: worker processes on the stand-in of NVIDIA's libraries
// (tests/standin), which reports what a GPU would forgive.
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "ir/cluster/profile.h"
#include "planning/request/profile_store.h"
#include "tests/standin/clean_workers.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using std::chrono::seconds;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class CudaCommand : public ::testing::Test {
 protected:
  CudaCommand() { ::setenv("STANDIN_LOG", log_.c_str(), 1); }
  ~CudaCommand() override {
    ::unsetenv("STANDIN_LOG");
    ::unsetenv("STANDIN_DEVICES");
    ::unsetenv("STANDIN_MODE");
  }

  TemporaryFolder folder_;
  std::string log_ = folder_.file("standin.log");
};

TEST_F(CudaCommand, ValidatePassesOnFourWorkersThatShareAGpu) {
  const std::string plan = folder_.file("job.plan");
  const CommandResult result = runPipeshard({"validate", "examples/mlp.onnx", "--cluster", "1x4", "--device",
                                             "cuda", "--share-devices", "--steps", "2", "-o", plan});
  ASSERT_EQ(result.exit_code, 0) << result.output << result.errors;
  EXPECT_THAT(result.output, HasSubstr("PASS: mlp.onnx on 4 workers equals one device"));
  EXPECT_THAT(result.output, HasSubstr("rank 3 computes on cuda:0 (stand-in)"));
  EXPECT_THAT(readFile(plan + "/report.html"), HasSubstr(">GPU, measured<"));
  expectCleanWorkers(log_, 4);
}

TEST_F(CudaCommand, ValidatePassesOnAPipelineOfGpt2) {
  ::setenv("STANDIN_DEVICES", "4", 1);
  const CommandResult result =
      runPipeshard({"validate", "examples/gpt2.onnx", "--cluster", "1x4", "--stages", "uniform:4",
                    "--schedule", "1f1b", "--microbatches", "4", "--device", "cuda"},
                   seconds(200));
  ASSERT_EQ(result.exit_code, 0) << result.output << result.errors;
  EXPECT_THAT(result.output, HasSubstr("PASS: gpt2.onnx on 4 workers equals one device"));
  EXPECT_THAT(result.output, HasSubstr("rank 3 computes on cuda:3 (stand-in)"));
  expectCleanWorkers(log_, 4);
}

// Each pass and each collective has the device's time, and the parts of a rank's time are as on a CPU.
TEST_F(CudaCommand, TracesHaveTheTimesOfTheDevice) {
  const std::string trace = folder_.file("trace.json");
  const CommandResult result = runPipeshard(
      {"validate", "examples/mlp.onnx", "--cluster", "1x4", "--stages", "uniform:2", "--schedule", "1f1b",
       "--microbatches", "2", "--device", "cuda", "--share-devices", "--steps", "2", "--trace", trace});
  ASSERT_EQ(result.exit_code, 0) << result.output << result.errors;
  EXPECT_THAT(result.output, HasSubstr("compute  waiting  transfer    idle"));
  std::map<int, std::vector<std::pair<double, double>>> passes;  // by rank
  const auto file = nlohmann::json::parse(readFile(trace));
  for (const auto& event : file.at("traceEvents")) {
    if (event.value("ph", "") != "X" || !event.contains("args") || !event.at("args").contains("work"))
      continue;
    const double begin = event.at("ts"), duration = event.at("dur");
    passes[event.at("pid")].emplace_back(begin, begin + duration);
  }
  ASSERT_EQ(passes.size(), 4u);
  for (auto& [rank, slices] : passes) {
    std::ranges::sort(slices);
    for (size_t i = 1; i < slices.size(); ++i)  // to the microsecond that the anchor of a step may be off
      EXPECT_GE(slices[i].first, slices[i - 1].second - 1) << "rank " << rank << ", slice " << i;
  }
  expectCleanWorkers(log_, 4);
}

TEST_F(CudaCommand, ValidatePassesOnAPipelineOfResnet) {
  ::setenv("STANDIN_MODE", "eager", 1);
  const CommandResult result = runPipeshard({"validate", "examples/resnet.onnx", "--cluster", "1x2",
                                             "--microbatches", "2", "--device", "cuda", "--share-devices"},
                                            seconds(200));
  ASSERT_EQ(result.exit_code, 0) << result.output << result.errors;
  EXPECT_THAT(result.output, HasSubstr("PASS: resnet.onnx on 2 workers equals one device"));
  expectCleanWorkers(log_, 2);
}

TEST_F(CudaCommand, ValidatePassesOnShardsOfLlama) {
  const CommandResult result =
      runPipeshard({"validate", "examples/llama.onnx", "--cluster", "1x2", "--stages", "uniform:1",
                    "--method", "zero3", "--device", "cuda", "--share-devices"},
                   seconds(200));
  ASSERT_EQ(result.exit_code, 0) << result.output << result.errors;
  EXPECT_THAT(result.output, HasSubstr("PASS: llama.onnx on 2 workers equals one device"));
  expectCleanWorkers(log_, 2);
}

// The device's bfloat16 rounds as the CPU's.
TEST_F(CudaCommand, ValidatePassesInBfloat16) {
  ::setenv("STANDIN_DEVICES", "4", 1);
  const CommandResult result =
      runPipeshard({"validate", "examples/gpt2.onnx", "--cluster", "1x4", "--stages", "uniform:4",
                    "--microbatches", "2", "--precision", "bfloat16", "--device", "cuda"},
                   seconds(200));
  ASSERT_EQ(result.exit_code, 0) << result.output << result.errors;
  EXPECT_THAT(result.output, HasSubstr("PASS: gpt2.onnx on 4 workers equals one device"));
  EXPECT_THAT(result.output, HasSubstr("in bfloat16"));
  expectCleanWorkers(log_, 4);
}

// Old state and gradient cancel somewhere, and devices fuse other products with their sum: the last bit of a
// term is more than the bound of what is left.
TEST_F(CudaCommand, ValidatePassesWithOptimizersThatHaveAMomentum) {
  for (const std::string optimizer : {"sgd:momentum=0.9", "lion", "rmsprop:momentum=0.9"}) {
    const CommandResult result = runPipeshard({"validate", "examples/mlp.onnx", "--cluster", "1x1",
                                               "--device", "cuda", "--steps", "3", "--optimizer", optimizer},
                                              seconds(60));
    EXPECT_EQ(result.exit_code, 0) << optimizer << ": " << result.output << result.errors;
    EXPECT_THAT(result.output, HasSubstr("PASS: mlp.onnx on 1 worker equals one device")) << optimizer;
    EXPECT_THAT(result.output, HasSubstr("updated state")) << optimizer;
  }
  expectCleanWorkers(log_, 3);
}

// Each node counts its ranks from its own first GPU on.
TEST_F(CudaCommand, RanksOfNodesHaveTheGpusOfTheirNode) {
  ::setenv("STANDIN_DEVICES", "2", 1);
  const std::string key = folder_.file("job.key"), json = folder_.file("run.json");
  const auto start = [&](const std::string& name, const std::vector<std::string>& arguments) {
    return startPipeshard(arguments, folder_.file(name + ".out"), folder_.file(name + ".err"));
  };
  const auto finish = [&](pid_t pid, const std::string& name) {
    return finishPipeshard(pid, folder_.file(name + ".out"), folder_.file(name + ".err"), seconds(60));
  };
  const std::string plan = folder_.file("job.plan");
  const CommandResult planned = runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "2x2", "-o", plan});
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  const pid_t run = start("run", {"run", plan, "--steps", "3", "--device", "cuda", "--json", json, "--listen",
                                  "tcp://127.0.0.1:*", "--key-file", key, "--node-timeout", "30"});
  const pid_t first = start("first", {"node", "--key-file", key, "--wait", "30", "--index", "0"});
  const pid_t second = start("second", {"node", "--key-file", key, "--wait", "30", "--index", "1"});
  const CommandResult result = finish(run, "run");
  ASSERT_EQ(result.exit_code, 0) << result.output << result.errors;
  EXPECT_THAT(result.errors, HasSubstr("rank 2 computes on cuda:0 (stand-in)"));
  const auto ranks = nlohmann::json::parse(readFile(json)).at("ranks");
  for (int rank = 0; rank < 4; ++rank) {
    const auto& of = ranks.at(rank);
    EXPECT_EQ(of.at("device"), fmt::format("cuda:{} (stand-in)", rank % 2));
    const auto planned = of.at("arena_bytes").get<double>() + of.at("constant_bytes").get<double>();
    EXPECT_NEAR(of.at("peak_device_bytes").get<double>(), planned, 0.02 * planned) << "rank " << rank;
  }
  EXPECT_EQ(finish(first, "first").exit_code, 0);
  EXPECT_EQ(finish(second, "second").exit_code, 0);
  expectCleanWorkers(log_, 4);
}

// Copies of what both compute would differ in their last bits.
TEST_F(CudaCommand, RanksWithAndWithoutCudnnAreRefusedBeforeTheFirstStep) {
  const std::string plan = folder_.file("job.plan"), key = folder_.file("job.key");
  const CommandResult planned =
      runPipeshard({"plan", "examples/resnet.onnx", "--cluster", "2x1", "--stages", "uniform:2", "-o", plan});
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  const auto start_node = [&](const std::string& name, const std::function<void()>& in_process) {
    return startPipeshard({"node", "--key-file", key, "--wait", "30"}, folder_.file(name + ".out"),
                          folder_.file(name + ".err"), in_process);
  };
  const pid_t run = startPipeshard({"run", plan, "--steps", "3", "--device", "cuda", "--listen",
                                    "tcp://127.0.0.1:*", "--key-file", key, "--node-timeout", "30"},
                                   folder_.file("run.out"), folder_.file("run.err"));
  const pid_t first = start_node("first", {});
  const pid_t second = start_node("second", [] { ::setenv("PIPESHARD_CUDNN", "off", 1); });
  const auto finish = [&](pid_t pid, const std::string& name) {
    return finishPipeshard(pid, folder_.file(name + ".out"), folder_.file(name + ".err"), seconds(60));
  };
  const CommandResult result = finish(run, "run");
  EXPECT_EQ(result.exit_code, 76) << result.output << result.errors;
  EXPECT_THAT(result.errors, ContainsRegex("worker of rank [01] \\(host .*, pid [0-9]+\\) computes on cuda:0 "
                                           "\\(stand-in\\), .*cuDNN.*, worker of rank [01] \\(host"));
  EXPECT_THAT(result.errors, HasSubstr("no cuDNN (PIPESHARD_CUDNN=off)"));
  EXPECT_THAT(result.errors, HasSubstr("give all hosts the same cuDNN, or set PIPESHARD_CUDNN=off on all"));
  EXPECT_THAT(result.output, ::testing::Not(HasSubstr("step 1/")));
  EXPECT_EQ(finish(first, "first").exit_code, 76);
  EXPECT_EQ(finish(second, "second").exit_code, 76);
}

// What a time is means nothing here: the stand-in takes as long as it likes.
TEST_F(CudaCommand, AProfileIsOfTheGpuAndPlansReadIt) {
  const std::string file = folder_.file("p.json");
  const CommandResult made =
      runPipeshard({"profile", "--device", "cuda", "--quick", "--model", "examples/mlp.onnx", "--cluster",
                    "1x2", "--microbatches", "2", "-o", file},
                   seconds(200));
  ASSERT_EQ(made.exit_code, 0) << made.output << made.errors;
  EXPECT_THAT(made.output, HasSubstr("stand-in, cuda, 1 processor"));
  EXPECT_THAT(made.output, HasSubstr("message inside a node"));
  const Profile profile = profileFromJson(readFile(file), file);
  EXPECT_EQ(profile.device, profiledGpu("cuda:0 (stand-in)"));
  std::set<std::string> operators;
  for (const ProfilePoint& point : profile.points) {
    EXPECT_GT(point.ns, 0) << point.work.op;
    EXPECT_EQ(point.busy_ns, 0) << point.work.op;
    operators.insert(point.work.op);
  }
  for (const char* op : {"Gemm", "pipeshard::ReluGrad", "pipeshard::SGD"})
    EXPECT_TRUE(operators.contains(op)) << op;
  EXPECT_FALSE(profile.rates.empty());
  EXPECT_EQ(profile.memory.points.size(), 5U);
  const std::string plan = folder_.file("job.plan");
  const CommandResult planned =
      runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "1x2", "--profile", file, "-o", plan});
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  const std::string text = readFile(plan + "/plan.json");
  EXPECT_THAT(text, HasSubstr("profile " + profileDigest(profile) + ": stand-in, cuda"));
  EXPECT_EQ(runPipeshard({"profile", "--device", "cuda", "--threads", "2", "-o", file}).exit_code, 64);
}

TEST_F(CudaCommand, AProfileOfTwoGpusHasTheLinksBetweenThem) {
  const std::string file = folder_.file("p.json");
  const auto measure = [&](const char* gpus) {
    ::setenv("STANDIN_DEVICES", gpus, 1);
    std::filesystem::remove(file);
    const CommandResult made =
        runPipeshard({"profile", "--device", "cuda", "--quick", "--model", "examples/mlp.onnx", "--cluster",
                      "1x2", "--microbatches", "2", "-o", file},
                     seconds(200));
    EXPECT_EQ(made.exit_code, 0) << made.output << made.errors;
    return made.output;
  };
  EXPECT_THAT(measure("1"),
              HasSubstr("links inside a node are the host's: --device cuda: there is no GPU number 1"));
  EXPECT_THAT(measure("2"), ContainsRegex("links inside a node are NCCL 2\\.[0-9]+\\."));
  const Profile profile = profileFromJson(readFile(file), file);
  EXPECT_EQ(profile.inside.points.size(), 5U);
  ASSERT_EQ(profile.collectives.size(), 4U);
  for (const CollectiveCurve& curve : profile.collectives)
    EXPECT_EQ(curve.ns.points.size(), 5U) << curve.kind;
  const CommandResult planned = runPipeshard(
      {"plan", "examples/mlp.onnx", "--cluster", "1x2", "--profile", file, "-o", folder_.file("job.plan")});
  EXPECT_EQ(planned.exit_code, 0) << planned.errors;
}

TEST_F(CudaCommand, MoreRanksThanGpusAreRefusedWithTheList) {
  ::setenv("STANDIN_DEVICES", "2", 1);
  const CommandResult result =
      runPipeshard({"validate", "examples/mlp.onnx", "--cluster", "1x4", "--device", "cuda"});
  EXPECT_EQ(result.exit_code, 78);
  EXPECT_THAT(result.errors, HasSubstr("there is no GPU number "));
  EXPECT_THAT(result.errors, HasSubstr("2 found (0: stand-in, 1: stand-in; CUDA runtime"));
  EXPECT_THAT(result.errors, HasSubstr("--share-devices lets several ranks have one"));
}

TEST_F(CudaCommand, NoGpuIsAConfigurationError) {
  ::setenv("STANDIN_DEVICES", "0", 1);
  const CommandResult result =
      runPipeshard({"validate", "examples/mlp.onnx", "--cluster", "1x1", "--device", "cuda"});
  EXPECT_EQ(result.exit_code, 78);
  EXPECT_THAT(result.errors, HasSubstr("no GPU can be used: no CUDA-capable device is detected"));
}

// As a GPU with an uncorrectable ECC error does: the rank and the driver's text, not who noticed it.
TEST_F(CudaCommand, AGpuThatFailsEndsTheJobWithTheDriversText) {
  const std::string plan = folder_.file("job.plan");
  const CommandResult planned = runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "1x4", "-o", plan});
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  ::setenv("STANDIN_DEVICES", "4", 1);
  ::setenv("STANDIN_CUDA_ERROR", "2:90:214", 1);
  const CommandResult result =
      runPipeshard({"run", plan, "--steps", "10000000", "--device", "cuda", "--transport", "staged"});
  ::unsetenv("STANDIN_CUDA_ERROR");
  EXPECT_EQ(result.exit_code, 69) << result.errors;
  EXPECT_THAT(result.output, HasSubstr("step 1"));
  EXPECT_THAT(result.errors, HasSubstr("rank 2 "));
  EXPECT_THAT(
      result.errors,
      HasSubstr("uncorrectable ECC error encountered (cudaErrorECCUncorrectable); the GPU or its link "
                "has failed, not the program"));
  EXPECT_TRUE(eventually([&] { return processesMentioning(plan).empty(); }, seconds(5)));
}

TEST_F(CudaCommand, AKilledRankEndsTheJob) {
  const std::string plan = folder_.file("job.plan");
  const CommandResult planned = runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "1x4", "-o", plan});
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  const pid_t run =
      startPipeshard({"run", plan, "--steps", "10000000", "--device", "cuda", "--share-devices"},
                     folder_.file("out"), folder_.file("err"));
  const auto is_stepping = [&] { return readFile(folder_.file("out")).find("step") != std::string::npos; };
  ASSERT_TRUE(eventually(is_stepping, seconds(60))) << readFile(folder_.file("err"));
  const std::vector<pid_t> rank = workersOf(plan, 2);
  ASSERT_EQ(rank.size(), 1u);
  ASSERT_EQ(::kill(rank[0], SIGKILL), 0);
  const CommandResult result = finishPipeshard(run, folder_.file("out"), folder_.file("err"), seconds(10));
  EXPECT_EQ(result.exit_code, 69) << result.errors;
  EXPECT_THAT(result.errors, HasSubstr("rank 2"));
  EXPECT_TRUE(eventually([&] { return processesMentioning(plan).empty(); }, seconds(5)));
}

}  // namespace
}  // namespace pipeshard
