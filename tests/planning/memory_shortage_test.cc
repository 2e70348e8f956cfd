// What a device needs is a matter of the plan, not of the machine that makes it.
#include "planning/programs/memory_shortage.h"
#include "planning/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "runtime/execute/worker_threads.h"

namespace pipeshard {
namespace {

TEST(PlannedMemory, IsThatOfTheThreadsThatTheClusterGivesAWorker) {
  PlanRequest request;  // convolutions take workspace by threads
  request.model_path = std::string(PIPESHARD_SOURCE_DIR) + "/examples/resnet.onnx";
  request.partition.cluster = parseCluster("1x2");
  request.dimensions = {{"batch", 32}};
  request.microbatches = 4;
  request.partition.stages = uniformStages(2);
  const PlannedTraining planned = planTraining(request, [](const std::string&) {});
  const auto needed = [&](int processors, int cores) {
    const WorkerThreads threads(processors);
    Cluster cluster = planned.plan.cluster;
    cluster.nodes[0].cores = cores;
    int64_t bytes = 0;
    PlannedMemory memory(planned.whole.ranks, cluster);
    for (const RankId rank : idsBelow<RankId>(planned.whole.ranks.size())) bytes += memory.of(rank);
    return bytes;
  };
  EXPECT_EQ(needed(1, 0), needed(8, 0));
  EXPECT_EQ(needed(1, 16), needed(8, 16));
  EXPECT_LT(needed(1, 0), needed(1, 16)) << "eight threads take more than one, or this test sees nothing";
}

// Of a last batch with fewer microbatches than a whole one has, which are larger. What fits without it does
// not fit with it.
TEST(PlannedMemory, IsThatOfTheLargestStep) {
  PlanRequest request;
  request.model_path = std::string(PIPESHARD_SOURCE_DIR) + "/examples/gpt2.onnx";
  request.partition.cluster = parseCluster("1x4");
  request.dimensions = {{"batch", 16}};
  request.microbatches = 4;
  request.last_batch = 13;
  request.partition.stages = uniformStages(1);
  request.partition.sharding.method = parseShardingMethod("zero2");
  const auto plan = [&] { return planTraining(request, [](const std::string&) {}); };
  PlannedTraining planned = plan();
  ASSERT_LT(planned.plan.last_microbatches, planned.plan.microbatches) << "or this test sees nothing";
  const int64_t all = MemoryOfSteps(planned).largest();
  PlannedTraining whole = planned;
  whole.last.reset();
  const int64_t of_whole = MemoryOfSteps(whole).largest();
  ASSERT_LT(of_whole, all) << "or this test sees nothing";
  request.partition.sharding.memory_bytes = (of_whole + all) / 2;
  try {
    PlannedTraining fitting = plan();  // sharded otherwise
    EXPECT_LE(MemoryOfSteps(fitting).largest(), request.partition.sharding.memory_bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_THAT(error.message(),
                ::testing::HasSubstr("the last one of 13 examples as 3 microbatches does not"));
  }
  request.partition.sharding.memory_bytes = all;
  EXPECT_NO_THROW(plan());
  request.partition.sharding.memory_bytes = of_whole;
  request.last_batch = 0;
  EXPECT_NO_THROW(plan());
}

}  // namespace
}  // namespace pipeshard
