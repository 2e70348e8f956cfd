// Layers' prices hold the latency of every collective of every microbatch: against the collectives of emitted
// programs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "partition/costs/sharded_stage_costs.h"
#include "partition/costs/stage_costs.h"
#include "planning/pipeline.h"

namespace pipeshard {
namespace {

PlannedTraining plan(const ShardingMethod& method, int64_t microbatches) {
  PlanRequest request;
  request.model_path = std::string(PIPESHARD_SOURCE_DIR) + "/examples/gpt2.onnx";
  request.partition.cluster = parseCluster("1x4");
  request.dimensions = {{"batch", 32}};
  request.microbatches = microbatches;
  request.partition.stages = uniformStages(1);
  request.partition.sharding.method = method;
  return planTraining(request, [](const std::string&) {});
}

int64_t collectivesOf(const Program& program) {
  int64_t count = 0;
  for (const Instruction& instruction : program.instructions) {
    if (instruction.kind == InstructionKind::kAllReduce) ++count;
    if (instruction.subgraph.valid())
      count += std::ssize(program.subgraphs[instruction.subgraph.index()].collectives);
  }
  return count;
}

// With links that take next to no time for bytes, what is priced is latencies alone. (Of methods that leave
// no choice: other ones would be sharded otherwise for such links.)
TEST(PricedCommunication, IsALatencyForEveryCollectiveOfEveryMicrobatch) {
  constexpr int64_t kLatency = 1'000'000;
  for (const ShardingKind kind : {ShardingKind::kZero3, ShardingKind::kZero2, ShardingKind::kDataParallel}) {
    const ShardingMethod method{kind};
    for (const int64_t microbatches : {1, 4, 8}) {
      const PlannedTraining planned = plan(method, microbatches);
      Cluster cluster = planned.plan.cluster;
      cluster.nodes[0].inside = {.latency_ns = kLatency, .bytes_per_ns = 1e6};
      Clustering clustering;
      for (const LayerPlan& layer : planned.plan.layers) {
        clustering.kinds.push_back(clustering.ends.size());
        clustering.ends.push_back(layer.last);
      }
      StageCostOptions options;
      options.methods = {method};
      const ShardedStageCosts costs(planned.training, clustering, cluster, options);
      const Submesh all{0, 1, 4};
      const StageOption* option =
          costs.optionFor(0, costs.layers() - 1, all, {{4}, method, Recomputation::kNever, 0});
      ASSERT_NE(option, nullptr);
      const StageCostParts parts = costs.parts(0, costs.layers() - 1, all, *option);
      const int64_t priced = (microbatches * parts.communication_ns + parts.synchronization_ns) / kLatency;
      const int64_t emitted = collectivesOf(planned.whole.ranks.of(RankId(0)).program);
      fmt::print("{} with {} microbatches: {} latencies priced, {} collectives emitted\n",
                 shardingMethodToString(method), microbatches, priced, emitted);
      EXPECT_GE(priced, emitted * 98 / 100);
      EXPECT_LE(priced, emitted + 2 * microbatches);  // losses are summed over devices once
    }
  }
}

}  // namespace
}  // namespace pipeshard
