// Programs whose loops are loops in memory do what their lists in full do, bit by bit; and what an executor
// holds of a loop does not grow with its iterations.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/data/data.h"
#include "runtime/device/aligned_memory.h"
#include "runtime/execute/executor.h"
#include "tests/runtime/device/lazy_device.h"
#include "tests/runtime/device/planned_ranks.h"

namespace pipeshard {
namespace {

using testing::PlannedCase;

PlannedCase ofBatch(PlannedCase of, int64_t rows) {
  of.also = [rows, also = of.also](PlanRequest& request) {
    request.dimensions["batch"] = rows;
    if (also) also(request);
  };
  return of;
}

// A loop over the gradients of shared weights, which have several sizes.
void sharesWeights(PlanRequest& request) {
  request.model_path = PIPESHARD_SOURCE_DIR "/tests/golden/forms/joint_decay.onnx";
}

void receivesPosted(PlanRequest& request) { request.given.overlap_receives = OverlapReceives::kOn; }

std::vector<PlannedCase> cases() {
  return {
      ofBatch({"Alone", "gpt2", "1x1", "uniform:1", "", "", 32}, 32),
      ofBatch({"OneF1B", "gpt2", "1x4", "uniform:4", "1f1b", "", 32}, 32),
      ofBatch({"Gpipe", "mlp", "1x2", "uniform:2", "gpipe", "", 32}, 32),
      ofBatch({"ZeroBubble", "llama", "1x2", "uniform:2", "zb-h1", "", 32}, 32),
      ofBatch({"Interleaved", "gpt2", "1x2", "uniform:4", "interleaved", "", 32}, 32),
      ofBatch({"ReceivesPosted", "mlp", "1x2", "uniform:2", "1f1b", "", 32, receivesPosted}, 32),
      ofBatch({"Sharded", "gpt2", "1x4", "uniform:2", "1f1b", "zero3", 16}, 32),
      ofBatch({"SharedWeights", "mlp", "1x2", "uniform:2", "1f1b", "", 32, sharesWeights}, 32),
      ofBatch({"TwoVersions", "mlp", "1x2", "uniform:2", "pipedream-2bw", "", 32}, 64),
  };
}

bool hasLoops(const PlannedTraining& planned) {
  bool all = true;
  for (const ProgramKind& kind : planned.whole.ranks.set.kinds)
    all = all && !kind.program.instructions.loops().empty() && !kind.program.buffers.loops().empty();
  return all;
}

void unroll(Program& program) {
  program.buffers.unrolled();
  program.instructions.unrolled();
}

class ExecutorLoops : public ::testing::TestWithParam<PlannedCase> {};

TEST_P(ExecutorLoops, LeaveTheBitsOfTheListInFull) {
  const PlannedTraining planned = plan(GetParam());
  ASSERT_TRUE(hasLoops(planned));
  EXPECT_EQ(testing::run(planned, {}), testing::run(planned, {}, {}, unroll));
}

TEST_P(ExecutorLoops, LeaveTheCpusBytesOnAnotherDevice) {
  const PlannedTraining planned = plan(GetParam());
  EXPECT_EQ(testing::run(planned, [] { return testing::makeLazyDevice(); }),
            testing::run(planned, {}, {}, unroll));
}

INSTANTIATE_TEST_SUITE_P(Schedules, ExecutorLoops, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

size_t actionsOf(int64_t microbatches) {
  const PlannedTraining planned =
      plan(ofBatch({"", "gpt2", "1x1", "uniform:1", "", "", microbatches}, microbatches));
  Executor executor(testing::imageOf(planned, RankId(0)), {});
  AlignedMemory memory(executor.memory().total_bytes);
  const auto data = makeDataSource({"", 3}, executor.program());
  executor.attach(memory.bytes(), nullptr, data.get());
  EXPECT_GT(executor.program().instructions.size(), static_cast<size_t>(microbatches));
  return executor.actionCount();
}

// Each row has its own two inputs, and its logits, which are kept for the user.
TEST(ExecutorLoops, HaveAsManyActionsForMoreIterations) {
  const size_t few = actionsOf(128), many = actionsOf(256);
  EXPECT_EQ(many, few + 3 * (256 - 128));
}

}  // namespace
}  // namespace pipeshard
