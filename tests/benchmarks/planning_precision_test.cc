#include "benchmarks/planning_precision.h"

#include <gtest/gtest.h>

#include "sharding/stage/shard_stage.h"
#include "tests/sharding/stage_models.h"

namespace pipeshard {
namespace {

// As is usual on GPUs: weights and gradients of 2 bytes; master weights and Adam's moments of 4 each.
TEST(InMixedPrecision, KeepsMasterWeightsAndMomentsInFloat32) {
  const TrainingGraph training = inMixedPrecision(testing::perceptron(8, 16, 32, 4, "adam:lr=0.001"));
  const Graph& graph = training.graph;
  for (const Parameter& parameter : training.parameters) {
    const int64_t elements = elementCount(graph.shape(parameter.value));
    EXPECT_EQ(graph.bytes(parameter.value), 2 * elements);
    EXPECT_EQ(graph.bytes(parameter.gradient), 2 * elements);
    int64_t states = 0;
    for (const OptimizerState& state : parameter.states) states += graph.bytes(state.value);
    EXPECT_EQ(states, 12 * elements);
  }
}

TEST(InMixedPrecision, CanBeShardedAndMovesHalfTheBytes) {
  const TrainingGraph whole =
      testing::gpt({.layers = 2, .batch = 8, .sequence = 64, .hidden = 64, .heads = 4}, "sgd:lr=0.1");
  const TrainingGraph half = inMixedPrecision(whole);
  const LogicalMesh mesh{{2, 2}};
  CostModel model = CostModel::uniform(mesh, {.latency_ns = 0, .bytes_per_ns = 0.01});
  model.flops_per_ns = 1e9;
  model.bytes_per_ns = 1e9;
  const ShardingResult in_float32 = shardStage(whole, testing::allNodes(whole), mesh, model, {});
  const ShardingResult in_float16 = shardStage(half, testing::allNodes(half), mesh, model, {});
  EXPECT_NEAR(static_cast<double>(in_float16.communication_ns),
              static_cast<double>(in_float32.communication_ns) / 2,
              static_cast<double>(in_float32.communication_ns) / 100);
}

}  // namespace
}  // namespace pipeshard
