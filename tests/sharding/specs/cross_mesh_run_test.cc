// Plans between meshes, carried out: ranks are threads, the senders first; steps inside the meshes with the
// real kernels, pieces through a real communicator, cut and joined along one axis at a time; compared bit for
// bit.
#include <gtest/gtest.h>

#include <numeric>

#include <fmt/format.h>

#include "sharding/specs/cross_mesh.h"
#include "tests/sharding/device_threads.h"
#include "tests/sharding/graph_runner.h"
#include "tests/sharding/specs/spec_lists.h"
#include "tests/transport/rank_threads.h"

namespace pipeshard {
namespace {

using namespace pipeshard::testing;

constexpr DataType kTypes[] = {DataType::kFloat32, DataType::kInt64, DataType::kFloat64, DataType::kInt32};

struct Case {
  CrossMeshSide from, to;
  Constant whole;
  CrossMeshPlan plan;
  std::vector<Constant> results;  // by receiver
};

Constant reshard(const Constant& local, const Shape& shape, const ShardingSpec& from, const Resharding& steps,
                 const LogicalMesh& mesh, DeviceId device, Collectives& collectives) {
  Graph graph;
  graph.opset_imports = {{"", 18}};
  GraphBuilder builder(graph);
  const ValueId x = builder.addValue("x", local.data_type, local.shape);
  graph.inputs = {x};
  const ValueId y = emitResharding(builder, x, shape, from, steps, mesh, device, meshGroups(mesh));
  const std::string name = graph.value(y).name;
  return runGraph(graph, {{"x", local}}, {name}, &collectives).at(name);
}

std::vector<int64_t> range(int64_t offset, int64_t size) {
  std::vector<int64_t> indices(size);
  std::iota(indices.begin(), indices.end(), offset);
  return indices;
}

void send(const Case& one, DeviceId device, Communicator& communicator, RankId first_receiver) {
  const auto collectives = meshCollectives(communicator, one.from.mesh, RankId(0));
  const Shape& shape = one.whole.shape;
  const Constant held = reshard(shardOfTensor(one.whole, one.from.spec, one.from.mesh, device), shape,
                                one.from.spec, one.plan.before, one.from.mesh, device, *collectives);
  std::vector<Constant> pieces;
  pieces.reserve(one.plan.transfer.pieces.size());
  std::vector<std::unique_ptr<SendHandle>> sends;
  for (const CrossMeshPiece& piece : one.plan.transfer.pieces) {
    if (piece.sender != device) continue;
    pieces.push_back(held);
    for (const AxisRange& cut : cutOut(shardOf(one.plan.sent, shape, one.from.mesh, device), piece.box)) {
      pieces.back() = selectAlong(pieces.back(), cut.axis, range(cut.offset, cut.size));
    }
    sends.push_back(
        communicator.send(RankId(first_receiver.index() + piece.receiver.index()), pieces.back().bytes));
  }
  for (const auto& sent : sends) sent->wait();
}

Constant receive(const Case& one, DeviceId device, Communicator& communicator, RankId first_receiver) {
  const CrossMeshAssembly& assembly = one.plan.transfer.assemblies[device];
  std::vector<Constant> parts;
  const auto addPart = [&](const Shape& shape) -> Constant& {
    const size_t bytes = byteCount(one.whole.data_type, shape);
    return parts.emplace_back(
        Constant{one.whole.data_type, shape, std::vector<std::byte>(bytes, std::byte{0x5a})});
  };
  for (int index : assembly.pieces) {
    const CrossMeshPiece& piece = one.plan.transfer.pieces[index];
    EXPECT_EQ(piece.receiver, device);
    communicator.receive(RankId(piece.sender.index()), addPart(piece.box.size).bytes);
  }
  for (const Concatenation& step : putTogether(assembly)) {
    Constant joined = addPart(step.shape);
    int64_t filled = 0;
    for (int operand : step.operands) {
      const Constant& part = parts[operand];
      const size_t axis = step.axis;
      placeAlong(joined, part, axis, range(filled, part.shape[axis]));
      filled += part.shape[axis];
    }
    EXPECT_EQ(filled, step.shape[step.axis]);
    parts.back() = joined;
  }
  const auto collectives = meshCollectives(communicator, one.to.mesh, first_receiver);
  return reshard(parts.back(), one.whole.shape, one.plan.received, one.plan.after, one.to.mesh, device,
                 *collectives);
}

// All pairs of specs, each with a tensor of its own, one of four types and one of three kinds of links
// between.
std::vector<Case> casesOf(const Shape& shape, const LogicalMesh& from, const LogicalMesh& to) {
  constexpr LinkCost kLinks[] = {{1000, 0.5}, {20, 100}, {3000, 5}};
  std::vector<Case> cases;
  for (const ShardingSpec& have : specsOf(shape, from)) {
    for (const ShardingSpec& want : specsOf(shape, to)) {
      const DataType type = kTypes[cases.size() % std::size(kTypes)];
      Case one{{from, have, CostModel::uniform(from, {100, 20})},
               {to, want, CostModel::uniform(to, {100, 20})},
               {},
               {},
               {}};
      one.whole = integerTensor(type, shape, cases.size());
      one.plan = planCrossMesh(shape, type, one.from, one.to, kLinks[cases.size() % std::size(kLinks)]);
      one.results.resize(to.deviceCount());
      cases.push_back(std::move(one));
    }
  }
  return cases;
}

size_t runAllPairs(const Shape& shape, const LogicalMesh& from, const LogicalMesh& to) {
  std::vector<Case> cases = casesOf(shape, from, to);
  const int senders = from.deviceCount();
  runRankThreads(senders + to.deviceCount(), [&](Communicator& communicator) {
    const int rank = communicator.rank().index();
    for (Case& one : cases) {
      if (rank < senders) {
        send(one, DeviceId(rank), communicator, RankId(senders));
      } else {
        one.results[rank - senders] = receive(one, DeviceId(rank - senders), communicator, RankId(senders));
      }
    }
  });
  for (const Case& one : cases) {
    SCOPED_TRACE(fmt::format("{} to {}, sent {}, received {}", printSpec(one.from.spec),
                             printSpec(one.to.spec), printSpec(one.plan.sent), printSpec(one.plan.received)));
    expectShards(one.results, one.whole, one.to.spec, to);
    if (::testing::Test::HasFailure()) break;
  }
  return cases.size();
}

class CrossMeshRun : public ::testing::TestWithParam<const char*> {};

TEST_P(CrossMeshRun, BringsEveryShardToItsPlaceOnEveryOtherMeshBitForBit) {
  const LogicalMesh from = parseMesh(GetParam());
  size_t pairs = 0;
  for (const char* to : {"2x2", "1x4", "4x1", "1x3", "3x1", "2", "1"}) {
    for (const Shape& shape : {Shape{5, 7}, Shape{4, 6, 3}, Shape{}}) {
      SCOPED_TRACE(to + shapeToString(shape));
      pairs += runAllPairs(shape, from, parseMesh(to));
    }
  }
  EXPECT_GT(pairs, 1000u);
}

INSTANTIATE_TEST_SUITE_P(Meshes, CrossMeshRun, ::testing::Values("2x2", "1x4", "4x1", "1x3", "3x1"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace pipeshard
