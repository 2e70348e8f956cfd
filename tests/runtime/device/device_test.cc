// What runs above a device touches tensors through the device alone, and waits for all that it needs: real
// programs on a device that does nothing before it must, on memory that the host cannot touch, against the
// CPU, byte by byte.
#include <algorithm>
#include <cstring>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "runtime/checkpoint/replica_hashes.h"
#include "runtime/execute/dump.h"
#include "runtime/execute/executor.h"
#include "runtime/execute/local_program.h"
#include "tests/expect_error.h"
#include "tests/runtime/device/lazy_device.h"
#include "tests/runtime/device/planned_ranks.h"
#include "tests/runtime/pipeline_program.h"
#include "tests/temporary_folder.h"

namespace pipeshard {
namespace {

using testing::Outcome;
using testing::Outcomes;
using testing::plan;
using testing::PlannedCase;
using testing::run;

std::string difference(const Outcomes& got, const Outcomes& want) {
  for (size_t step = 0; step < want.size(); ++step) {
    for (size_t rank = 0; rank < want[step].size(); ++rank) {
      for (const auto& [name, tensor] : want[step][rank]) {
        const auto found = got[step][rank].find(name);
        if (found == got[step][rank].end() || found->second != tensor)
          return fmt::format("step {}, rank {}: {}", step + 1, rank, name);
      }
    }
  }
  return "";
}

// Gradients are summed in the background while the backward pass goes on.
PlannedCase inBuckets() {
  return {"MlpBuckets", "mlp", "1x4", "uniform:1",
          "",           "",    1,     [](PlanRequest& request) { request.given.bucket_bytes = 1024; }};
}

std::vector<PlannedCase> cases() {
  const auto clipped = [](PlanRequest& request) { request.given.clip_norm = 0.5; };
  const auto posted = [](PlanRequest& request) { request.given.overlap_receives = OverlapReceives::kOn; };
  return {
      {"ResnetWithGuard", "resnet", "1x1", "uniform:1", "", "", 2, clipped},
      {"LlamaPosted", "llama", "1x4", "uniform:4", "1f1b", "", 4, posted},
      {"Gpt2Interleaved", "gpt2", "1x2", "uniform:4", "interleaved:v=2", "", 4},
      {"Gpt2Zero3", "gpt2", "1x4", "uniform:1", "", "zero3", 2},
      {"Gpt2Megatron", "gpt2", "1x4", "uniform:1", "", "megatron:2,2", 2},
      inBuckets(),
  };
}

class LazyDeviceTest : public ::testing::TestWithParam<PlannedCase> {};

TEST_P(LazyDeviceTest, LeavesTheCpusBytes) {
  const PlannedTraining planned = plan(GetParam());
  EXPECT_EQ(difference(run(planned, [] { return testing::makeLazyDevice(); }), run(planned, {})), "");
}

INSTANTIATE_TEST_SUITE_P(Examples, LazyDeviceTest, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

TEST(LazyDevice, KeepsTwoQueuesApartUntilAnEvent) {
  const auto device = testing::makeLazyDevice();
  const auto first = device->makeQueue(), second = device->makeQueue();
  const MemoryBlock memory = device->allocate(4);
  const MemoryBlock host = device->allocateHost(12);
  int32_t* numbers = reinterpret_cast<int32_t*>(host.bytes.data());
  numbers[0] = 7;
  first->upload(host.bytes.data(), memory.bytes.data(), 4);
  second->download(memory.bytes.data(), host.bytes.data() + 4, 4);
  second->synchronize();
  EXPECT_EQ(numbers[1], 0);
  const auto event = device->makeEvent();
  first->record(*event);
  second->wait(*event);
  second->download(memory.bytes.data(), host.bytes.data() + 8, 4);
  EXPECT_EQ(numbers[2], 0);
  second->synchronize();
  EXPECT_EQ(numbers[2], 7);
}

TEST(LazyDeviceDeathTest, TheHostCannotReachIntoItsMemory) {
  const auto device = testing::makeLazyDevice();
  const MemoryBlock memory = device->allocate(8);
  EXPECT_DEATH(std::memset(memory.bytes.data(), 1, 8), "");
}

RankImage pipeline() { return std::move(pipelineImages(1)[0]); }

// Everything that a job does with a rank's tensors between steps.
TEST(LazyDevice, GivesAndTakesWhatJobsKeep) {
  const auto device = testing::makeLazyDevice();
  LocalProgram cpu(pipeline(), {"", 5});
  ExecutorOptions options;
  options.device = device.get();
  LocalProgram lazy(pipeline(), {"", 5}, options);
  EXPECT_ERROR(lazy.executor().content(BufferId(0)), ErrorCode::kInternal,
               "the host cannot read the memory of lazy");
  for (int64_t step = 1; step <= 2; ++step) {
    cpu.runStep(step);
    lazy.runStep(step);
  }
  EXPECT_EQ(replicaHashes(cpu.executor(), 2), replicaHashes(lazy.executor(), 2));
  const TemporaryFolder ours, theirs;
  const DumpSelection all{true, true, true, true};
  writeStepDump(cpu.executor(), theirs.path().string(), 2, all);
  writeStepDump(lazy.executor(), ours.path().string(), 2, all);
  const StepDump dump = StepDump::open(ours.path().string(), 2, 1);
  const StepDump want = StepDump::open(theirs.path().string(), 2, 1);
  ASSERT_EQ(dump.names(), want.names());
  for (const std::string& name : want.names())
    EXPECT_EQ(dump.read(name).elements(), want.read(name).elements());
  LocalProgram other(pipeline(), {"", 5}, options);
  adoptStepDump(other.executor(), want);
  EXPECT_EQ(replicaHashes(other.executor(), 2), replicaHashes(lazy.executor(), 2));
  cpu.runStep(3);
  other.runStep(3);
  EXPECT_EQ(replicaHashes(cpu.executor(), 3), replicaHashes(other.executor(), 3));
}

// Integers that no table has a row for.
class WrongNumbers : public DataSource {
 public:
  explicit WrongNumbers(const Program& program) : DataSource(program.inputs) {}
  bool isLastBatch(int64_t) const override { return false; }

 protected:
  void write(size_t input, int64_t, const Shard&, std::span<std::byte> out) override {
    std::ranges::fill(out, std::byte{0});
    if (inputs_[input].data_type != DataType::kInt64) return;
    const int64_t wrong = 12345;
    std::memcpy(out.data() + out.size() - sizeof wrong, &wrong, sizeof wrong);
  }
};

std::string errorOf(const PlannedTraining& planned, Device* device) {
  const RankProgram program = planned.whole.ranks.of(RankId(0));
  ExecutorOptions options;
  options.device = device;
  Executor executor({program.program, program.subgraphs, ""}, options);
  const MemoryBlock arena = executor.device().allocate(executor.memory().total_bytes);
  WrongNumbers data(executor.program());
  executor.attach(arena.bytes, nullptr, &data);
  try {
    executor.runStep(1);
  } catch (const Error& error) {
    return fmt::format("{}: {}", static_cast<int>(error.code()), error.message());
  }
  return "";
}

TEST(LazyDevice, RecordedFaultsAreTheCpusErrors) {
  const PlannedTraining planned = plan({"Gpt2", "gpt2"});
  const auto device = testing::makeLazyDevice();
  const std::string error = errorOf(planned, nullptr);
  EXPECT_NE(error.find("12345"), std::string::npos) << error;
  EXPECT_EQ(errorOf(planned, device.get()), error);
}

}  // namespace
}  // namespace pipeshard
