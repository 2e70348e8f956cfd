#include "sharding/stage/stage_sharding.h"

#include <gtest/gtest.h>

#include "tests/expect_error.h"

namespace pipeshard {
namespace {

// y = x w, loss = sum(y), dw = x^T dy (in two parts), w by SGD with momentum; a prologue value that is
// summed.
class StageShardingTest : public ::testing::Test {
 protected:
  StageShardingTest() {
    Graph& graph = training.graph;
    graph.opset_imports = {{"", 18}, {"pipeshard", 1}};
    for (const char* name : {"x", "gradient", "velocity", "total"})
      value(name, name[0] == 'x' ? Shape{8, 6} : name[0] == 't' ? Shape{} : Shape{6, 4});
    graph.inputs = {id("x"), id("gradient"), id("velocity"), id("total")};
    value("w", {6, 4});
    graph.initializers[id("w")] = WeightReference{};
    GraphBuilder builder(graph);
    const ValueId dy = builder.addConstant("dy", makeConstant<float>({8, 4}, std::vector<float>(32, 1)));
    const ValueId rate = builder.addConstant("rate", makeScalar(DataType::kFloat32, 0.1));
    node(Phase::kPrologue, "", "ReduceSum", {id("x")}, {{"part", {}}}, {{"keepdims", int64_t{0}}});
    node(Phase::kForward, "", "MatMul", {id("x"), id("w")}, {{"y", {8, 4}}});
    node(Phase::kForward, "", "ReduceSum", {id("y")}, {{"loss", {}}}, {{"keepdims", int64_t{0}}});
    node(Phase::kBackwardWeight, "", "Gemm", {id("x"), dy}, {{"dw", {6, 4}}}, {{"transA", int64_t{1}}});
    node(Phase::kBackwardWeight, "", "Neg", {id("dw")}, {{"dw2", {6, 4}}});
    node(Phase::kUpdate, "pipeshard", "SGDMomentum",
         {id("w"), id("gradient"), id("velocity"), rate, rate, rate},
         {{"new_w", {6, 4}}, {"new_velocity", {6, 4}}});
    training.parameters = {{id("w"),
                            {id("dw"), id("dw2")},
                            id("gradient"),
                            {{"momentum", id("velocity"), id("new_velocity")}},
                            id("new_w")}};
    training.totals = {{id("part"), id("total")}};
    training.loss = id("loss");
    sharding.mesh = parseMesh("2x2");
    for (const Value& v : graph.values) sharding.kept.push_back(replicated(v.shape->size()));
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      nodes.push_back(NodeId(n));
      sharding.strategies.push_back(strategies(graph, graph.nodes[n], sharding.mesh)[0]);
    }
  }

  ValueId id(const std::string& name) const { return findValue(training.graph, name); }
  ValueId value(const std::string& name, const Shape& shape) {
    return GraphBuilder(training.graph).addValue(name, DataType::kFloat32, shape);
  }
  void node(Phase phase, const std::string& domain, const std::string& op_type, std::vector<ValueId> inputs,
            const std::vector<std::pair<std::string, Shape>>& outputs,
            std::map<std::string, Attribute> attributes = {}) {
    std::vector<ValueId> given;
    for (const auto& [name, shape] : outputs) given.push_back(value(name, shape));
    GraphBuilder(training.graph).addNode(domain, op_type, std::move(inputs), given, std::move(attributes));
    training.node_phase.push_back(phase);
  }
  void keep(const std::string& name, const std::string& spec) {
    sharding.kept[id(name).index()] = parseSpec(spec);
  }
  void verify() const { verifyStageSharding(training, nodes, sharding); }
  void expectFault(const std::string& text) { EXPECT_ERROR(verify(), ErrorCode::kInternal, text); }

  TrainingGraph training;
  std::vector<NodeId> nodes;
  StageSharding sharding;
};

TEST_F(StageShardingTest, ReplicationAndZeroPass) {
  verify();
  for (const char* name : {"velocity", "new_velocity", "gradient"}) keep(name, "S01,R");
  keep("dw", "R,R;P01");
  keep("dw2", "R,R;P01");
  keep("loss", "-;P0");
  verify();
  keep("w", "S0,S1");
  keep("new_w", "S0,S1");
  verify();
}

TEST_F(StageShardingTest, AStrategyThatTheNodeDoesNotHave) {
  sharding.strategies[1].inputs[0] = parseSpec("S0,R");
  expectFault("MatMul");
  expectFault("has no such strategy on mesh 2x2");
}

TEST_F(StageShardingTest, SpecsThatTensorsCannotHave) {
  keep("y", "R,S0,R");
  expectFault("'y' is kept as R,S0,R on mesh 2x2, which it cannot: it has 3 axes");
}

TEST_F(StageShardingTest, RolesThatAreNoPartialSums) {
  keep("gradient", "R,R;P0");
  expectFault("'gradient' is kept as R,R;P0 on mesh 2x2: an input is no partial sum");
  keep("gradient", "R,R");
  keep("w", "R,R;P1");
  keep("new_w", "R,R;P1");
  expectFault("'w' is kept as R,R;P1 on mesh 2x2: a parameter is no partial sum");
}

TEST_F(StageShardingTest, RolesThatAreKeptAlike) {
  keep("new_w", "S0,R");
  expectFault("a parameter and its next value are kept alike");
  keep("w", "S0,R");
  keep("velocity", "S1,R");
  expectFault("a state and its next value are kept alike");
  keep("new_velocity", "S1,R");
  keep("dw", "R,R;P0");
  expectFault("the parts of a gradient are kept alike");
  keep("dw2", "R,R;P0");
  verify();
}

TEST_F(StageShardingTest, ThePrologueIsReplicated) {
  keep("part", "-;P0");
  expectFault("'part' is kept as -;P0 on mesh 2x2: a summand of a total is replicated");
}

TEST_F(StageShardingTest, ValuesOfOtherStagesDoNotCount) {
  nodes = {NodeId(1)};
  keep("velocity", "R,S0,R");
  sharding.strategies[5] = {};
  verify();
}

}  // namespace
}  // namespace pipeshard
