// What follows from the batch alone: what is cut, what is a sum over devices, what all have.
#include "sharding/stage/row_sharding.h"

#include <gtest/gtest.h>

#include "ir/plan/optimizer.h"
#include "tests/sharding/stage_models.h"

namespace pipeshard::testing {
namespace {

class RowShardingOf {
 public:
  RowShardingOf(const TrainingGraph& training, const LogicalMesh& mesh)
      : training_(training), sharding_(rowSharding(training, followBatch(training), mesh)) {
    verifyStageSharding(training, allNodes(training), sharding_);
  }

  std::string kept(const std::string& name) const { return kept(findValue(training_.graph, name)); }
  std::string kept(ValueId value) const { return printSpec(sharding_.kept.at(value.index())); }

 private:
  const TrainingGraph& training_;
  StageSharding sharding_;
};

TEST(RowSharding, CutsTheBatchAndLeavesWeightsAlone) {
  const TrainingGraph training = perceptron(4, 8, 16, 8, "sgd:lr=0.1,momentum=0.9");
  const RowShardingOf rows(training, {{3, 1}, 4});
  for (const BatchInput& input : training.inputs) EXPECT_EQ(rows.kept(input.value), "S0,R");
  EXPECT_EQ(rows.kept(training.loss), "-;P0");
  for (const Parameter& parameter : training.parameters) {
    const std::string whole = parameter.value == findValue(training.graph, "fc1.weight") ||
                                      parameter.value == findValue(training.graph, "fc2.weight")
                                  ? "R,R"
                                  : "R";
    EXPECT_EQ(rows.kept(parameter.value), whole);
    EXPECT_EQ(rows.kept(parameter.gradient), whole);
    EXPECT_EQ(rows.kept(parameter.updated), whole);
    for (ValueId part : parameter.gradient_parts) EXPECT_EQ(rows.kept(part), whole + ";P0");
    for (const OptimizerState& state : parameter.states) EXPECT_EQ(rows.kept(state.updated), whole);
  }
}

// [4,6,8] -> [24,8] -> [4,6,8]: cut at tokens 0, 6 and 12, which is between rows.
TEST(RowSharding, ReshapesKeepUnevenRowsWhereTheyAre) {
  StageModel model;
  ValueId x = model.input("x", {4, 6, 8});
  x = model.op("Reshape", {x, model.integers({24, 8})}, {24, 8});
  const ValueId tokens = x = model.op("MatMul", {x, model.parameter("w", {8, 8})}, {24, 8});
  x = model.op("Reshape", {x, model.integers({4, 6, 8})}, {4, 6, 8});
  const ValueId last = x = model.op("Mul", {x, x}, {4, 6, 8});
  const TrainingGraph training = model.finish(model.op("ReduceSum", {x}, {}, {{"keepdims", int64_t{0}}}));
  const RowShardingOf rows(training, {{3, 1}, 4});
  EXPECT_EQ(rows.kept(tokens), "S0,R");
  EXPECT_EQ(rows.kept(last), "S0,R,R");
  EXPECT_EQ(rows.kept(training.loss), "-;P0");
  const Shard shard = shardOf(parseSpec("S0,R"), {24, 8}, {{3, 1}, 4}, DeviceId(2));
  EXPECT_EQ(shard.start[0], 12);
  EXPECT_EQ(shard.size[0], 12);
}

TEST(RowSharding, SumsPassThroughWhatIsLinear) {
  StageModel model;
  const ValueId x = model.input("x", {4, 8});
  const ValueId w = model.parameter("w", {8});
  const ValueId product = model.op("Mul", {x, w}, {4, 8});
  const ValueId sum = model.op("ReduceSum", {product}, {}, {{"keepdims", int64_t{0}}});
  const ValueId penalty =
      model.op("ReduceSum", {model.op("Mul", {w, w}, {8})}, {}, {{"keepdims", int64_t{0}}});
  const ValueId negative = model.op("Neg", {sum}, {});
  const ValueId both = model.op("Add", {negative, penalty}, {});
  const ValueId curved = model.op("Exp", {sum}, {});
  const TrainingGraph training = model.finish(model.op("Add", {both, curved}, {}));
  const RowShardingOf rows(training, {{2, 1}, 4});
  EXPECT_EQ(rows.kept(product), "S0,R");
  EXPECT_EQ(rows.kept(negative), "-;P0");
  EXPECT_EQ(rows.kept(penalty), "-");  // all have it
  EXPECT_EQ(rows.kept(both), "-;P0");  // it counts once
  EXPECT_EQ(rows.kept(curved), "-");   // of the resolved sum
  EXPECT_EQ(rows.kept(training.loss), "-;P0");
}

TEST(RowSharding, DevicesAlongTheModelAxisDoTheSame) {
  const TrainingGraph training = perceptron(4, 8, 16, 8);
  const RowShardingOf same(training, {{1, 3}, 4});
  for (size_t v = 0; v < training.graph.values.size(); ++v)
    EXPECT_EQ(same.kept(ValueId(v)), printSpec(replicated(training.graph.shape(ValueId(v)).size())));
  const RowShardingOf both(training, {{2, 2}, 4});
  EXPECT_EQ(both.kept(training.loss), "-;P0");
}

}  // namespace
}  // namespace pipeshard::testing
