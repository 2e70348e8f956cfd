#include <algorithm>

#include <gtest/gtest.h>

#include "sharding/specs/resharding.h"
#include "sharding/stage/explain.h"
#include "sharding/stage/shard_stage.h"
#include "tests/sharding/stage_models.h"

namespace pipeshard {
namespace {

TEST(ExplainSharding, DecisionsAddUpAndSecondsAreNoCheaper) {
  const TrainingGraph training = testing::perceptron(64, 256, 512, 128);
  const LogicalMesh mesh = parseMesh("4");
  const CostModel model = CostModel::uniform(mesh);
  const ShardingResult result = shardStage(training, testing::allNodes(training), mesh, model, {});
  const std::vector<Decision> decisions =
      explainSharding(training, testing::allNodes(training), model, {}, result, 5);
  int64_t compute = 0;
  int64_t communication = 0;
  int seconds = 0;
  for (const Decision& decision : decisions) {
    compute += decision.compute_ns;
    communication += decision.communication_ns;
    if (!decision.second) continue;
    ++seconds;
    EXPECT_GE(decision.second->cost_ns, result.total_ns());
    EXPECT_NE(decision.second->text, decision.chosen);
  }
  EXPECT_EQ(compute, result.compute_ns);
  EXPECT_EQ(communication, result.communication_ns);
  EXPECT_EQ(seconds, 5);
}

// A plan that was edited by hand may keep an output that nothing reads otherwise than its node makes it: that
// is the node's resharding.
TEST(ExplainSharding, AnOutputThatNothingReadsIsReshardedByItsNode) {
  TrainingGraph training = testing::perceptron(64, 256, 512, 128);
  GraphBuilder builder(training.graph);
  const ValueId unread = builder.addValue("unread", DataType::kFloat32, {64, 256});
  const NodeId negation = builder.addNode("", "Neg", {training.inputs[0].value}, {unread});
  training.graph.node(negation).name = "negation";
  training.node_phase.push_back(Phase::kForward);
  const LogicalMesh mesh = parseMesh("4");
  const CostModel costs = CostModel::uniform(mesh);
  ShardingResult result = shardStage(training, testing::allNodes(training), mesh, costs, {});
  const ShardingSpec made = result.sharding.strategies[negation.index()].outputs[0];
  const ShardingSpec kept = parseSpec(made == parseSpec("R,S0") ? "S0,R" : "R,S0");
  result.sharding.kept[unread.index()] = kept;

  const std::vector<Decision> decisions =
      explainSharding(training, testing::allNodes(training), costs, {}, result, 0);
  const auto decision = std::find_if(decisions.begin(), decisions.end(),
                                     [&](const Decision& each) { return each.name == "negation"; });
  ASSERT_NE(decision, decisions.end());
  EXPECT_EQ(decision->communication_ns,
            planResharding({64, 256}, DataType::kFloat32, made, kept, mesh, costs).cost_ns);
}

}  // namespace
}  // namespace pipeshard
