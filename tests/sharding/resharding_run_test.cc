// emitResharding: between all pairs of specs, run on devices in threads with the real kernels over a real communicator.
#include <gtest/gtest.h>

#include "sharding/resharding.h"
#include "tests/sharding/device_threads.h"
#include "tests/sharding/graph_runner.h"
#include "tests/sharding/spec_lists.h"

namespace pipeshard {
namespace {

using namespace pipeshard::testing;

constexpr DataType kTypes[] = {DataType::kFloat32, DataType::kInt64, DataType::kFloat64, DataType::kInt32};

struct Case {
  ShardingSpec from, to;
  Constant whole;
  Resharding plan;
  std::vector<Constant> results;  // by device
};

// `pairs`: all pairs of specs, each with a tensor of its own and one of four types.
std::vector<Case> casesOf(const Shape& shape, const LogicalMesh& mesh) {
  const std::vector<ShardingSpec> specs = specsOf(shape, mesh);
  std::vector<Case> cases;
  for (const ShardingSpec& from : specs) {
    for (const ShardingSpec& to : specs) {
      const DataType type = kTypes[cases.size() % std::size(kTypes)];
      cases.push_back({from, to, integerTensor(type, shape, cases.size()),
                       planResharding(shape, type, from, to, mesh, CostModel::uniform(mesh)),
                       std::vector<Constant>(static_cast<size_t>(mesh.deviceCount()))});
    }
  }
  return cases;
}

// The graph of one device, and its output's name.
std::pair<Graph, std::string> deviceGraph(const Case& one, const Shape& shape, const LogicalMesh& mesh, int device) {
  Graph graph;
  graph.opset_imports = {{"", 18}};
  GraphBuilder builder(graph);
  const ValueId x = builder.addValue("x", one.whole.data_type, shardOf(one.from, shape, mesh, device).size);
  graph.inputs = {x};
  const ValueId y = emitResharding(builder, x, shape, one.from, one.plan, mesh, device, meshGroups(mesh));
  graph.outputs = {y};
  verifyGraph(graph);
  return {graph, graph.value(y).name};
}

size_t runAllPairs(const Shape& shape, const LogicalMesh& mesh) {
  std::vector<Case> cases = casesOf(shape, mesh);
  runDevices(mesh, [&](int device, Collectives& collectives) {
    for (Case& one : cases) {
      const auto [graph, y] = deviceGraph(one, shape, mesh, device);
      const Tensors given{{"x", shardOfTensor(one.whole, one.from, mesh, device)}};
      one.results[static_cast<size_t>(device)] = runGraph(graph, given, {y}, &collectives).at(y);
    }
  });
  for (const Case& one : cases) {
    SCOPED_TRACE(printSpec(one.from) + " to " + printSpec(one.to));
    expectShards(one.results, one.whole, one.to, mesh);
    if (::testing::Test::HasFailure()) break;
  }
  return cases.size();
}

class ReshardingRun : public ::testing::TestWithParam<const char*> {};

TEST_P(ReshardingRun, BringsEveryShardToItsPlaceBitForBit) {
  size_t pairs = 0;
  for (const Shape& shape : {Shape{5, 7}, Shape{4, 6, 3}, Shape{9}, Shape{}}) {
    SCOPED_TRACE(shapeToString(shape));
    pairs += runAllPairs(shape, parseMesh(GetParam()));
  }
  EXPECT_GT(pairs, 800u);
}

INSTANTIATE_TEST_SUITE_P(Meshes, ReshardingRun, ::testing::Values("2x2", "1x4", "4x1", "1x3", "3x1"),
                         [](const auto& info) { return std::string(info.param); });

TEST(ReshardingRun, ThreeMeshAxes) {
  // The specs of a matrix over all three axes, from and to the replicated one and each other's neighbours: too many pairs for all.
  const LogicalMesh mesh = parseMesh("2x2x2");
  const Shape shape{9, 11};
  const std::vector<ShardingSpec> specs = specsOf(shape, mesh);
  std::vector<Case> cases;
  for (size_t i = 0; i < specs.size(); ++i) {
    for (size_t j : {size_t{0}, (i * 7 + 3) % specs.size()}) {
      cases.push_back({specs[i], specs[j], integerTensor(DataType::kFloat32, shape, i),
                       planResharding(shape, DataType::kFloat32, specs[i], specs[j], mesh, CostModel::uniform(mesh)),
                       std::vector<Constant>(8)});
    }
  }
  runDevices(mesh, [&](int device, Collectives& collectives) {
    for (Case& one : cases) {
      const auto [graph, y] = deviceGraph(one, shape, mesh, device);
      one.results[static_cast<size_t>(device)] =
          runGraph(graph, {{"x", shardOfTensor(one.whole, one.from, mesh, device)}}, {y}, &collectives).at(y);
    }
  });
  for (const Case& one : cases) expectShards(one.results, one.whole, one.to, mesh);
}

TEST(ReshardingRun, KeepingOneKeepsInfinitiesAndLetsNoNaNThrough) {
  const LogicalMesh mesh = parseMesh("2");
  const auto nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  const Constant x = makeConstant<float>({3}, {nan, infinity, 1});
  const Resharding plan = planResharding({3}, DataType::kFloat32, parseSpec("R"), parseSpec("R;P0"), mesh, CostModel::uniform(mesh));
  for (int device : {0, 1}) {
    const Case one{parseSpec("R"), parseSpec("R;P0"), x, plan, {}};
    const auto [graph, y] = deviceGraph(one, {3}, mesh, device);
    EXPECT_EQ(runGraph(graph, {{"x", x}}, {y}).at(y).bytes, (device == 0 ? x : makeConstant<float>({3}, {0, 0, 0})).bytes);
  }
}

}  // namespace
}  // namespace pipeshard
