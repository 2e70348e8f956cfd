#include "runtime/execute/executor.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <thread>

#include "runtime/execute/dump.h"
#include "runtime/execute/local_program.h"
#include "runtime/execute/rank_image.h"
#include "runtime/kernels/base/cpu_kernels.h"
#include "tests/expect_error.h"
#include "tests/runtime/pipeline_program.h"
#include "tests/temporary_folder.h"
#include "transport/shared/shared_memory.h"
#include "transport/shared/shared_segments.h"

namespace pipeshard {
namespace {

void expectNear(const std::vector<double>& got, const std::vector<double>& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(got[i], want[i], tolerance * std::max(1.0, std::fabs(want[i]))) << "element " << i;
}

void expectStep(const LocalProgram& local, const StepReport& report, const ExpectedStep& expected,
                double tolerance) {
  ASSERT_TRUE(report.loss.has_value());
  EXPECT_NEAR(*report.loss, expected.loss, tolerance * expected.loss);
  for (const int which : {0, 1}) {
    const std::string name = "w" + std::to_string(which);
    expectNear(local.elements(*local.findResult(Result::Kind::kGradient, name)), expected.gradients[which],
               tolerance);
    expectNear(local.elements(*local.findResult(Result::Kind::kParameter, name)), expected.weights[which],
               tolerance);
  }
}

TEST(Executor, RunsAStepAsComputedByHand) {
  for (const int64_t microbatches : {1, 2, 4}) {
    PipelineOptions options;
    options.microbatches = microbatches;
    LocalProgram local(std::move(pipelineImages(1, options)[0]), {"", 5});
    const std::vector<ExpectedStep> expected = expectedSteps(3, 5, options);
    for (int64_t step = 1; step <= 3; ++step)
      expectStep(local, local.runStep(step), expected[step - 1], 1e-12);
  }
}

// The CPU's kernels, which here cannot add to what is there.
class PlainKernel : public Kernel {
 public:
  explicit PlainKernel(std::unique_ptr<Kernel> kernel) : kernel_(std::move(kernel)) {}
  void run(const KernelArguments& arguments) override { kernel_->run(arguments); }
  size_t workspaceBytes() const override { return kernel_->workspaceBytes(); }
  bool mayRunInPlace(int input, int output) const override { return kernel_->mayRunInPlace(input, output); }

 private:
  std::unique_ptr<Kernel> kernel_;
};

TEST(Executor, AddsGradientsInTheirAccumulatorsToTheSameBits) {
  KernelRegistry plain;
  for (const std::string& name : cpuKernels().operators()) {
    const size_t colons = name.find("::");
    const std::string domain = name.substr(0, colons) == "onnx" ? "" : name.substr(0, colons);
    plain.add(domain, name.substr(colons + 2), [](const KernelSpec& spec) -> std::unique_ptr<Kernel> {
      return std::make_unique<PlainKernel>(cpuKernels().create(spec));
    });
  }
  PipelineOptions options;
  options.data_type = DataType::kFloat32;
  options.microbatches = 4;
  LocalProgram in_place(std::move(pipelineImages(1, options)[0]), {"", 5});
  LocalProgram separate(std::move(pipelineImages(1, options)[0]), {"", 5}, {true, &plain});
  EXPECT_LT(in_place.executor().memory().total_bytes, separate.executor().memory().total_bytes);
  for (const int64_t step : {1, 2}) {
    EXPECT_EQ(in_place.runStep(step).loss, separate.runStep(step).loss);
    for (const char* name : {"w0", "w1"}) {
      const auto gradient = [&](const LocalProgram& local) {
        return local.elements(*local.findResult(Result::Kind::kGradient, name));
      };
      EXPECT_TRUE(gradient(in_place) == gradient(separate)) << name;
    }
  }
}

TEST(Executor, RunsInFloat32FromFloat64Weights) {
  PipelineOptions options;
  options.data_type = DataType::kFloat32;
  LocalProgram local(std::move(pipelineImages(1, options)[0]), {"", 5});
  expectStep(local, local.runStep(1), expectedSteps(1, 5, options)[0], 1e-5);
}

TEST(Executor, ReusesActivationMemoryOverMicrobatches) {
  PipelineOptions few, many;
  few.microbatches = 2;
  many.microbatches = 8;
  many.batch = 32;
  few.batch = 8;
  const LocalProgram small(std::move(pipelineImages(1, few)[0]), {"", 5});
  const LocalProgram large(std::move(pipelineImages(1, many)[0]), {"", 5});
  EXPECT_EQ(small.executor().memory().total_bytes, large.executor().memory().total_bytes);
}

TEST(Executor, ReadsARankDirectoryAndWeightsFromFiles) {
  const TemporaryFolder folder;
  std::vector<RankImage> images = pipelineImages(1);
  {
    std::ofstream weights(folder.file("weights.bin"), std::ios::binary);
    weights << "0123456789abcdef";
    const auto& constant = std::get<Constant>(*images[0].program.buffers[0].source);
    weights.write(reinterpret_cast<const char*>(constant.bytes.data()),
                  static_cast<std::streamsize>(constant.bytes.size()));
    images[0].program.buffers[0].source =
        WeightReference{folder.file("weights.bin"), 16, constant.bytes.size()};
  }
  writePlanDirectory(folder.path(), images);
  {
    LocalProgram local(loadRank(folder.path(), RankId(0)), {"", 5});
    expectStep(local, local.runStep(1), expectedSteps(1, 5)[0], 1e-12);
  }
  std::filesystem::resize_file(folder.file("weights.bin"), 100);
  EXPECT_ERROR(LocalProgram(loadRank(folder.path(), RankId(0)), {"", 5}), ErrorCode::kMissingInput,
               "initial content of 'w0'");
  std::filesystem::remove(folder.file("subgraphs/0000_forward0.onnx"));
  EXPECT_ERROR(loadRank(folder.path(), RankId(0)), ErrorCode::kMissingInput, "forward0.onnx");
  std::ofstream(folder.file("kinds/0000.json")) << "{";
  EXPECT_ERROR(loadRank(folder.path(), RankId(0)), ErrorCode::kConfiguration, "kinds/0000.json");
}

TEST(Executor, NamesTheStepOfALossThatIsNotFinite) {
  PipelineOptions options;
  options.rate = 1e160;  // overflows after the first update
  LocalProgram local(std::move(pipelineImages(1, options)[0]), {"", 5});
  local.runStep(1);
  EXPECT_ERROR(local.runStep(2), ErrorCode::kNotANumber, "loss of step 2");
  ExecutorOptions tolerant;
  tolerant.check_finite = false;
  LocalProgram other(std::move(pipelineImages(1, options)[0]), {"", 5}, tolerant);
  other.runStep(1);
  EXPECT_FALSE(std::isfinite(*other.runStep(2).loss));
}

TEST(Executor, RefusesAMissingKernelWhenLoading) {
  RankImage image = std::move(pipelineImages(1)[0]);
  image.subgraphs[0].nodes[0].op_type = "Det";
  image.subgraphs[0].nodes[0].domain = "some.where";
  image.subgraphs[0].opset_imports["some.where"] = 1;
  EXPECT_ERROR(LocalProgram(std::move(image), {"", 5}), ErrorCode::kBadModel, "Det");
}

TEST(Executor, RefusesBuffersThatDoNotFitTheSubgraph) {
  RankImage image = std::move(pipelineImages(1)[0]);
  image.program.buffers[0].shape = {kHidden, kFeatures};
  EXPECT_ERROR(LocalProgram(std::move(image), {"", 5}), ErrorCode::kConfiguration,
               "buffer 'w0' is float64[5,3]");
  RankImage missing = std::move(pipelineImages(1)[0]);
  missing.subgraphs.pop_back();
  EXPECT_ERROR(LocalProgram(std::move(missing), {"", 5}), ErrorCode::kConfiguration, "graphs");
}

TEST(Executor, RefusesSeveralRanksInOneProcess) {
  EXPECT_ERROR(LocalProgram(std::move(pipelineImages(2)[0]), {"", 5}), ErrorCode::kConfiguration, "2 ranks");
}

TEST(Executor, SetsTheStepBuffer) {
  RankImage image = std::move(pipelineImages(1)[0]);
  image.program.buffers.push_back(
      {"step", BufferKind::kStep, DataType::kInt64, {}, "", std::nullopt, DataType::kUndefined});
  const BufferId step(image.program.buffers.size() - 1);
  LocalProgram local(std::move(image), {"", 5});
  local.runStep(41);
  int64_t content = 0;
  std::memcpy(&content, local.executor().content(step).data(), sizeof content);
  EXPECT_EQ(content, 41);
}

class ThrowingKernel : public Kernel {
  void run(const KernelArguments&) override { fail(ErrorCode::kBadModel, "index 9 is out of range"); }
};

TEST(Executor, SaysWhereAKernelFailed) {
  KernelRegistry registry;
  for (const char* op : {"MatMul", "Mul", "Sub", "ReduceSum", "Transpose"}) {
    registry.add("", op, [](const KernelSpec&) { return std::make_unique<ThrowingKernel>(); });
  }
  ExecutorOptions options;
  options.kernels = &registry;
  LocalProgram local(std::move(pipelineImages(1)[0]), {"", 5}, options);
  EXPECT_ERROR(local.runStep(3), ErrorCode::kBadModel, "step 3, rank 0, instruction 1: run");
  EXPECT_ERROR(local.runStep(3), ErrorCode::kBadModel, "MatMul");
  EXPECT_ERROR(local.runStep(3), ErrorCode::kBadModel, "index 9 is out of range");
}

class NamingKernel : public Kernel {
 public:
  explicit NamingKernel(std::string name) : name_(std::move(name)) {}
  void run(const KernelArguments&) override {
    fail(ErrorCode::kBadModel, "{}: index 9 is out of range", name_);
  }

 private:
  std::string name_;
};

TEST(Executor, NamesANodeOnceThatNamesItself) {
  KernelRegistry registry;
  for (const char* op : {"MatMul", "Mul", "Sub", "ReduceSum", "Transpose"}) {
    registry.add("", op, [](const KernelSpec& spec) {
      return std::make_unique<NamingKernel>(describeNode(*spec.node));
    });
  }
  ExecutorOptions options;
  options.kernels = &registry;
  LocalProgram local(std::move(pipelineImages(1)[0]), {"", 5}, options);
  try {
    local.runStep(1);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("onnx::MatMul"), std::string::npos) << error.message();
    EXPECT_EQ(error.message().find("onnx::MatMul"), error.message().rfind("onnx::MatMul")) << error.message();
  }
}

// A second set of descriptors for the same segments, as another process would inherit it.
SharedSegments duplicate(const SharedSegments& segments) {
  std::string text = fmt::format("control={},arenas=", ::dup(segments.controlDescriptor()));
  for (RankId rank : idsBelow<RankId>(segments.size()))
    text += fmt::format("{}{}", rank.index() == 0 ? "" : ":", ::dup(segments.arenaDescriptor(rank)));
  return SharedSegments::inherit(text);
}

TEST(Executor, TwoRanksComputeTheBitsOfOne) {
  const TemporaryFolder folder;
  constexpr int kSteps = 3;
  LocalProgram local(std::move(pipelineImages(1)[0]), {"", 5});
  std::vector<double> losses;
  for (int64_t step = 1; step <= kSteps; ++step) {
    losses.push_back(*local.runStep(step).loss);
    writeStepDump(local.executor(), folder.path(), step, {true, true, true});
  }
  const TemporaryFolder folder2;
  std::vector<double> pipeline_losses;
  const SharedSegments segments = SharedSegments::create(2);
  const auto run_rank = [&](int rank) {
    Executor executor(std::move(pipelineImages(2)[rank]), {});
    const auto data = makeDataSource({"", 5}, executor.program());
    const auto communicator =
        SharedMemoryCommunicator::open(duplicate(segments), RankId(rank), std::chrono::seconds(20));
    executor.attach(communicator->createArena(executor.memory().total_bytes), communicator.get(), data.get());
    for (int64_t step = 1; step <= kSteps; ++step) {
      const StepReport report = executor.runStep(step);
      if (report.loss) pipeline_losses.push_back(*report.loss);
      writeStepDump(executor, folder2.path(), step, {true, true, true});
    }
    communicator->barrier(idsAt<RankId>({0, 1}));
  };
  std::thread other([&] { run_rank(1); });
  run_rank(0);
  other.join();
  EXPECT_EQ(pipeline_losses, losses);
  for (int64_t step = 1; step <= kSteps; ++step) {
    const StepDump one = StepDump::open(folder.path(), step, 1);
    const StepDump two = StepDump::open(folder2.path(), step, 2);
    EXPECT_EQ(one.names(), (std::vector<std::string>{"gradient/w0", "gradient/w1", "loss", "parameter/w0",
                                                     "parameter/w1"}));
    EXPECT_EQ(two.names(), one.names());
    for (const std::string& name : one.names()) EXPECT_EQ(two.read(name).bytes, one.read(name).bytes) << name;
  }
  EXPECT_ERROR(StepDump::open(folder.path(), 9, 1), ErrorCode::kMissingInput, "step-000009.rank-0000");
  EXPECT_ERROR(StepDump::open(folder.path(), 1, 1).read("gradient/none"), ErrorCode::kMissingInput,
               "gradient/none");
}

}  // namespace
}  // namespace pipeshard
