// emitResharding: between all pairs of specs, run on devices in threads with the real kernels over a real
// communicator.
#include <gtest/gtest.h>

#include "sharding/specs/resharding.h"
#include "sharding/specs/resharding_emit.h"
#include "tests/sharding/device_threads.h"
#include "tests/sharding/graph_runner.h"
#include "tests/sharding/specs/spec_lists.h"

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

// A tensor of its own for each pair of specs.
Case makeCase(const ShardingSpec& from, const ShardingSpec& to, const Shape& shape, const LogicalMesh& mesh,
              size_t number) {
  const DataType type = kTypes[number % std::size(kTypes)];
  return {from, to, integerTensor(type, shape, number),
          planResharding(shape, type, from, to, mesh, CostModel::uniform(mesh)),
          std::vector<Constant>(mesh.deviceCount())};
}

std::vector<Case> allPairs(const Shape& shape, const LogicalMesh& mesh) {
  const std::vector<ShardingSpec> specs = specsOf(shape, mesh);
  std::vector<Case> cases;
  for (const ShardingSpec& from : specs) {
    for (const ShardingSpec& to : specs) cases.push_back(makeCase(from, to, shape, mesh, cases.size()));
  }
  return cases;
}

// The graph of one device, and its output's name.
std::pair<Graph, std::string> deviceGraph(const Case& one, const Shape& shape, const LogicalMesh& mesh,
                                          DeviceId device) {
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

void runCases(std::vector<Case> cases, const Shape& shape, const LogicalMesh& mesh) {
  runDevices(mesh, [&](DeviceId device, Collectives& collectives) {
    for (Case& one : cases) {
      const auto [graph, y] = deviceGraph(one, shape, mesh, device);
      const Tensors given{{"x", shardOfTensor(one.whole, one.from, mesh, device)}};
      one.results[device.index()] = runGraph(graph, given, {y}, &collectives).at(y);
    }
  });
  for (const Case& one : cases) {
    SCOPED_TRACE(printSpec(one.from) + " to " + printSpec(one.to));
    expectShards(one.results, one.whole, one.to, mesh);
    if (::testing::Test::HasFailure()) break;
  }
}

class ReshardingRun : public ::testing::TestWithParam<const char*> {};

TEST_P(ReshardingRun, BringsEveryShardToItsPlaceBitForBit) {
  size_t pairs = 0;
  for (const Shape& shape : {Shape{5, 7}, Shape{4, 6, 3}, Shape{9}, Shape{}}) {
    SCOPED_TRACE(shapeToString(shape));
    const LogicalMesh mesh = parseMesh(GetParam());
    std::vector<Case> cases = allPairs(shape, mesh);
    pairs += cases.size();
    runCases(std::move(cases), shape, mesh);
  }
  EXPECT_GT(pairs, 800u);
}

INSTANTIATE_TEST_SUITE_P(Meshes, ReshardingRun, ::testing::Values("2x2", "1x4", "4x1", "1x3", "3x1"),
                         [](const auto& info) { return std::string(info.param); });

TEST(ReshardingRun, WorksOverThreeMeshAxes) {
  // From every spec of a matrix to two others: too many pairs for all.
  const LogicalMesh mesh = parseMesh("2x2x2");
  const Shape shape{9, 11};
  const std::vector<ShardingSpec> specs = specsOf(shape, mesh);
  std::vector<Case> cases;
  for (size_t i = 0; i < specs.size(); ++i) {
    for (size_t j : {size_t{0}, (i * 7 + 3) % specs.size()})
      cases.push_back(makeCase(specs[i], specs[j], shape, mesh, cases.size()));
  }
  runCases(std::move(cases), shape, mesh);
}

TEST(ReshardingRun, KeepingOneKeepsInfinitiesAndLetsNoNaNThrough) {
  const LogicalMesh mesh = parseMesh("2");
  const auto nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  const Constant x = makeConstant<float>({3}, {nan, infinity, 1});
  const Resharding plan = planResharding({3}, DataType::kFloat32, parseSpec("R"), parseSpec("R;P0"), mesh,
                                         CostModel::uniform(mesh));
  for (const DeviceId device : mesh.devices()) {
    const Case one{parseSpec("R"), parseSpec("R;P0"), x, plan, {}};
    const auto [graph, y] = deviceGraph(one, {3}, mesh, device);
    EXPECT_EQ(runGraph(graph, {{"x", x}}, {y}).at(y).bytes,
              (device == DeviceId(0) ? x : makeConstant<float>({3}, {0, 0, 0})).bytes);
  }
}

}  // namespace
}  // namespace pipeshard
