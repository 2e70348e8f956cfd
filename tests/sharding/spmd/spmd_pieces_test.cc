// Pieces of several operators, with reshardings between them; what they cost; and what the verifier finds
// wrong.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "ir/base/error.h"
#include "ir/graph/graph_print.h"
#include "runtime/kernels/base/cpu_kernels.h"
#include "sharding/spmd/local_nodes.h"
#include "sharding/spmd/spmd_verify.h"
#include "sharding/spmd/strategy_cost.h"
#include "sharding/spmd/work_count.h"
#include "tests/expect_error.h"
#include "tests/sharding/device_threads.h"
#include "tests/sharding/rules/rule_cases.h"
#include "tests/sharding/spmd/sharded_runner.h"

namespace pipeshard::testing {
namespace {

// The sum of what the solver is told.
StrategyCost toldCost(const Graph& graph, const PieceSharding& sharding) {
  StrategyCost cost;
  const auto reshard = [&](ValueId value, const ShardingSpec& from, const ShardingSpec& to) {
    return planResharding(graph.shape(value), graph.dataType(value), from, to, sharding.mesh, sharding.model)
        .cost_ns;
  };
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    const Strategy& strategy = sharding.strategies[n];
    const StrategyCost own = strategyCost(graph, node, sharding.mesh, strategy, sharding.model);
    cost.compute_ns += own.compute_ns;
    cost.communication_ns += own.communication_ns;
    std::set<std::pair<size_t, ShardingSpec>> seen;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId value = node.inputs[i];
      const bool moves =
          value.valid() && graph.constant(value) == nullptr && static_cast<int>(i) != sizesInput(node);
      if (moves && seen.emplace(value.index(), strategy.inputs[i]).second) {
        cost.communication_ns += reshard(value, sharding.kept[value.index()], strategy.inputs[i]);
      }
    }
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      const ValueId value = node.outputs[o];
      if (value.valid())
        cost.communication_ns += reshard(value, strategy.outputs[o], sharding.kept[value.index()]);
    }
  }
  return cost;
}

void checkCost(const Graph& graph, const PieceSharding& sharding,
               const IdVector<DeviceId, LocalPiece>& pieces) {
  const DeviceId last(sharding.mesh.deviceCount() - 1);
  const WorkCount count =
      countWork(pieces.back().graph, sharding.mesh, groupsOf(sharding.mesh, last), sharding.model);
  const StrategyCost told = toldCost(graph, sharding);
  EXPECT_EQ(count.compute_ns, told.compute_ns);
  EXPECT_EQ(count.communication_ns, told.communication_ns);
  for (DeviceId device(0); device < last; ++device) {
    const Graph& local = pieces[device].graph;
    const WorkCount other = countWork(local, sharding.mesh, groupsOf(sharding.mesh, device), sharding.model);
    EXPECT_LE(other.compute_ns, count.compute_ns);
    EXPECT_LE(other.communication_ns, count.communication_ns);
  }
}

Tensors runWhole(const Graph& graph, const Tensors& inputs) {
  std::vector<std::string> names;
  for (ValueId output : graph.outputs) names.push_back(graph.value(output).name);
  return runGraph(graph, inputs, names);
}

TEST(SpmdPieces, EveryOperatorBetweenReshardings) {
  std::mt19937_64 generator(5);
  for (const RuleCase& rule_case : ruleCases()) {
    if (!cpuKernels().has(rule_case.domain, rule_case.op_type)) continue;
    const std::vector<Constant> data = caseInputs(rule_case, generator);
    std::vector<Shape> shapes;
    for (const auto& [type, shape] : rule_case.outputs) shapes.push_back(shape);
    const Graph graph = caseGraph(rule_case, data, shapes);
    Tensors inputs;
    for (ValueId id : graph.inputs)
      inputs[graph.value(id).name] = data[std::stoul(graph.value(id).name.substr(5))];
    const Tensors outputs = runWhole(graph, inputs);
    for (const char* mesh : {"2x2", "3"}) {
      for (int trial = 0; trial < 3; ++trial) {
        const PieceSharding sharding = randomSharding(generator, graph, parseMesh(mesh));
        SCOPED_TRACE(rule_case.name + " on " + mesh + ": " +
                     printUses(graph, graph.nodes[0], sharding.strategies[0].uses));
        const IdVector<DeviceId, LocalPiece> pieces = rewriteAll(graph, sharding);
        checkCost(graph, sharding, pieces);
        checkPieces(graph, inputs, outputs, sharding, pieces, 1e-12);
        if (HasFailure()) return;
      }
    }
  }
}

// A small block: attention-like heads by reshape and transpose, a residual, a normalisation, two layers and a
// mean.
class Block {
 public:
  Block() {
    graph.opset_imports = {{"", 20}, {"pipeshard", 1}};
    const ValueId x = input("x", {6, 4, 8});
    const ValueId heads =
        op("Reshape", {op("MatMul", {x, input("wq", {8, 12})}, {6, 4, 12}), integers({6, 4, 3, 4})},
           {6, 4, 3, 4});
    const ValueId q = op("Transpose", {heads}, {6, 3, 4, 4}, {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
    const ValueId keys = op("Transpose", {heads}, {6, 3, 4, 4}, {{"perm", std::vector<int64_t>{0, 2, 3, 1}}});
    const ValueId scores = op("Softmax", {op("MatMul", {q, keys}, {6, 3, 4, 4})}, {6, 3, 4, 4});
    const ValueId mixed = op("Transpose", {op("MatMul", {scores, q}, {6, 3, 4, 4})}, {6, 4, 3, 4},
                             {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
    const ValueId joined = op("Reshape", {mixed, integers({0, 0, -1})}, {6, 4, 12});
    const ValueId residual =
        op("Add", {x, op("MatMul", {joined, input("wo", {12, 8})}, {6, 4, 8})}, {6, 4, 8});
    const ValueId normal =
        op("LayerNormalization", {residual, constant({8}, 1), constant({8}, 2)}, {6, 4, 8});
    const ValueId hidden =
        op("Gelu",
           {op("Add", {op("MatMul", {normal, input("w1", {8, 20})}, {6, 4, 20}), constant({20}, 3)},
               {6, 4, 20})},
           {6, 4, 20});
    const ValueId again = op("Add", {hidden, hidden}, {6, 4, 20});
    graph.outputs = {op("MatMul", {again, input("w2", {20, 8})}, {6, 4, 8}), scores};
    graph.outputs.push_back(op("ReduceMean", {graph.outputs[0]}, {}, {{"keepdims", int64_t{0}}}));
  }

  Graph graph;
  Tensors inputs;

 private:
  ValueId input(const std::string& name, const Shape& shape) {
    const ValueId id = GraphBuilder(graph).addValue(name, DataType::kFloat64, shape);
    graph.inputs.push_back(id);
    inputs[name] = randomReals(generator_, shape);
    return id;
  }
  ValueId constant(const Shape& shape, uint64_t seed) {
    std::mt19937_64 generator(seed);
    return GraphBuilder(graph).addConstant("constant", randomReals(generator, shape));
  }
  ValueId integers(const std::vector<int64_t>& elements) {
    return GraphBuilder(graph).addConstant("sizes", makeConstant<int64_t>({std::ssize(elements)}, elements));
  }
  ValueId op(const std::string& type, std::vector<ValueId> read, const Shape& shape,
             std::map<std::string, Attribute> attributes = {}) {
    GraphBuilder builder(graph);
    const ValueId output = builder.addValue(type, DataType::kFloat64, shape);
    builder.addNode("", type, std::move(read), {output}, std::move(attributes));
    return output;
  }
  std::mt19937_64 generator_{17};
};

TEST(SpmdPieces, ABlockUnderAnyStrategies) {
  const Block block;
  const Tensors outputs = runWhole(block.graph, block.inputs);
  std::mt19937_64 generator(23);
  for (const char* mesh : {"2", "3", "2x2", "2x3"}) {
    for (int trial = 0; trial < 40; ++trial) {
      const PieceSharding sharding = randomSharding(generator, block.graph, parseMesh(mesh));
      SCOPED_TRACE(std::string(mesh) + " trial " + std::to_string(trial));
      const IdVector<DeviceId, LocalPiece> pieces = rewriteAll(block.graph, sharding);
      checkCost(block.graph, sharding, pieces);
      checkPieces(block.graph, block.inputs, outputs, sharding, pieces, 1e-12);
      if (HasFailure()) return;
    }
  }
}

TEST(SpmdPieces, ABlockOverARealCommunicator) {
  const Block block;
  const Tensors outputs = runWhole(block.graph, block.inputs);
  const LogicalMesh mesh = parseMesh("2x2");
  const MeshGroups groups = meshGroups(mesh);
  std::mt19937_64 generator(29);
  std::vector<std::string> names;
  for (ValueId output : block.graph.outputs) names.push_back(block.graph.value(output).name);
  for (int trial = 0; trial < 8; ++trial) {
    const PieceSharding sharding = randomSharding(generator, block.graph, mesh);
    std::map<std::string, std::vector<Constant>> parts;
    for (ValueId input : block.graph.inputs) {
      const std::string& name = block.graph.value(input).name;
      parts[name] = distribute(block.inputs.at(name), sharding.kept[input.index()], mesh, generator);
    }
    std::vector<Tensors> results(4);
    runDevices(mesh, [&](DeviceId device, Collectives& collectives) {
      Tensors given;
      for (const auto& [name, shards] : parts) given[name] = shards[device.index()];
      const LocalPiece piece = rewriteForDevice(block.graph, sharding, device, groups);
      // All nodes, in order: each device must meet the others, also where it needs nothing from it.
      for (const Node& node : piece.graph.nodes) runNode(piece.graph, node, given, &collectives);
      for (const std::string& name : names) results[device.index()][name] = given.at(name);
    });
    for (ValueId output : block.graph.outputs) {
      const std::string& name = block.graph.value(output).name;
      std::vector<Constant> found;
      for (const Tensors& device : results) found.push_back(device.at(name));
      const Constant whole =
          collect(found, sharding.kept[output.index()], block.graph.shape(output), mesh, name);
      EXPECT_LE(distance(whole, outputs.at(name)), 1e-12) << name << " in trial " << trial;
    }
  }
}

TEST(SpmdPieces, NamesAreThePiecesAndConstantsAreShared) {
  const Block block;
  const LogicalMesh mesh = parseMesh("2");
  std::mt19937_64 generator(3);
  const PieceSharding sharding = randomSharding(generator, block.graph, mesh);
  const LocalPiece piece = rewriteForDevice(block.graph, sharding, DeviceId(1), groupsOf(mesh, DeviceId(1)));
  EXPECT_EQ(
      printGraph(piece.graph),
      printGraph(rewriteForDevice(block.graph, sharding, DeviceId(1), groupsOf(mesh, DeviceId(1))).graph));
  for (const Value& value : block.graph.values) {
    const ValueId whole = findValue(block.graph, value.name);
    if (block.graph.constant(whole) != nullptr) continue;
    const ValueId local = findValue(piece.graph, value.name);
    ASSERT_TRUE(local.valid()) << value.name;
    EXPECT_EQ(piece.graph.shape(local),
              shardOf(sharding.kept[whole.index()], *value.shape, mesh, DeviceId(1)).size);
  }
}

// MatMul over a cut k, then a Relu: rewritten well, then broken.
class Broken : public ::testing::Test {
 protected:
  Broken() {
    graph.opset_imports = {{"", 18}};
    GraphBuilder builder(graph);
    const ValueId x = builder.addValue("x", DataType::kFloat32, {4, 6});
    const ValueId w = builder.addConstant("w", makeConstant<float>({6, 5}, std::vector<float>(30, 2)));
    const ValueId y = builder.addValue("y", DataType::kFloat32, {4, 5});
    const ValueId z = builder.addValue("z", DataType::kFloat32, {4, 5});
    const ValueId mean = builder.addValue("mean", DataType::kFloat32, {1, 1});
    builder.addNode("", "MatMul", {x, w}, {y});
    builder.addNode("", "Neg", {y}, {z});
    builder.addNode("", "ReduceMean", {z}, {mean});
    graph.inputs = {x};
    graph.outputs = {mean};
    sharding.mesh = parseMesh("2x2");
    sharding.model = CostModel::uniform(sharding.mesh);
    use(0, "0:k");
    use(1, "1:a0");
    use(2, "0:a1");
    sharding.kept = {parseSpec("R,S0"), parseSpec("R,R"), parseSpec("R,S0"), parseSpec("S1,R"),
                     parseSpec("R,R")};
    pieces = rewriteAll(graph, sharding);
  }
  void use(size_t n, const std::string& uses) {
    sharding.strategies.resize(graph.nodes.size());
    sharding.strategies[n] = *makeStrategy(graph, graph.nodes[n], sharding.mesh,
                                           parseUses(graph, graph.nodes[n], sharding.mesh, uses));
  }
  Node& find(DeviceId device, const std::string& op_type) {
    for (Node& node : pieces[device].graph.nodes) {
      if (node.op_type == op_type) return node;
    }
    throw std::logic_error("no " + op_type);
  }
  void expectFault(const std::string& text) {
    EXPECT_ERROR(verifyLocalPieces(graph, sharding, pieces), ErrorCode::kInternal, text);
  }

  Graph graph;
  PieceSharding sharding;
  IdVector<DeviceId, LocalPiece> pieces;
};

TEST_F(Broken, AStrategyThatTheNodeDoesNotHave) {
  sharding.strategies[0].outputs[0].partial.clear();
  expectFault("has no such strategy on mesh 2x2");
}

TEST_F(Broken, APartialSumReadAsAValue) {
  use(1, "0:pass0");
  sharding.kept[2] = sharding.kept[3] = parseSpec("R,R;P0");
  pieces = rewriteAll(graph, sharding);
  use(1, "replicate");
  expectFault("input 0 is R,R;P0 of 'y', its strategy needs R,R of 'y'");
}

TEST_F(Broken, AnotherSpecThanIsKept) {
  sharding.kept[4] = parseSpec("R,R;P0");
  expectFault("'mean' ends as R,R, it is kept as R,R;P0");
}

TEST_F(Broken, GroupsThatDoNotMeet) {
  LocalPiece& piece = pieces[DeviceId(3)];
  find(DeviceId(3), "ReduceScatter").attributes["group"] = int64_t{77};
  expectFault("its list of groups is not that of its collectives");
  GroupId& listed =
      *std::find(piece.collectives.begin(), piece.collectives.end(), piece.groups.group_of_axis[0]);
  listed = GroupId(77);
  expectFault("its group is no line of the mesh");
  listed = piece.groups.group_of_axis[1];
  find(DeviceId(3), "ReduceScatter").attributes["group"] = static_cast<int64_t>(listed.index());
  expectFault("it meets along another mesh axis than device 0");
}

TEST_F(Broken, PartSizes) {
  find(DeviceId(2), "ReduceScatter").attributes["sizes"] = std::vector<int64_t>{3, 2};
  expectFault("its part sizes are wrong");
}

TEST_F(Broken, AConstantOfAnotherDevice) {
  for (const DeviceId device : {DeviceId(0), DeviceId(2)}) {
    const ValueId w = find(device, "MatMul").inputs[1];
    std::get<Constant>(pieces[device].graph.initializers.at(w)).bytes[0] = std::byte{1};
  }
  expectFault("constant input 1 is not this device's part");
}

TEST_F(Broken, AShareOfAMeanThatIsNotTheDevices) {
  const ValueId share = find(DeviceId(2), "Mul").inputs[1];
  pieces[DeviceId(2)].graph.initializers.at(share) = makeScalar(DataType::kFloat32, 0.5);
  expectFault("its share of the mean is 0.6");
}

TEST_F(Broken, DevicesWithOtherNodes) {
  find(DeviceId(1), "Neg").op_type = "Abs";
  expectFault("it is not the node that device 0 has here");
}

TEST_F(Broken, Shapes) {
  LocalPiece& piece = pieces[DeviceId(1)];
  piece.graph.value(find(DeviceId(1), "Neg").outputs[0]).shape = Shape{3, 5};
  expectFault("has shape [3,5], S1,R of 'z' [4,5] is [2,5]");
}

TEST_F(Broken, ASpecThatTheTensorCannotHave) {
  sharding.kept[4] = parseSpec("S0,R");
  EXPECT_ERROR(rewriteForDevice(graph, sharding, DeviceId(0), groupsOf(sharding.mesh, DeviceId(0))),
               ErrorCode::kInternal, "axis 0 has 1 elements for 2 devices");
}

}  // namespace
}  // namespace pipeshard::testing
