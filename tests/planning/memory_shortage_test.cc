// What a device needs is a matter of the plan, not of the machine that makes it.
#include "planning/programs/memory_shortage.h"
#include "planning/pipeline.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace pipeshard
