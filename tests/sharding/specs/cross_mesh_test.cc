// planCrossMesh: worked examples, what every plan must be, and against all pairs of specs that may lie
// between.
#include "sharding/specs/cross_mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string_view>

#include "ir/base/ids_format.h"
#include "tests/expect_error.h"
#include "tests/sharding/specs/spec_lists.h"

namespace pipeshard {
namespace {

using namespace pipeshard::testing;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

CrossMeshSide side(const char* mesh, const char* spec, LinkCost link = {}) {
  return {parseMesh(mesh), parseSpec(spec), CostModel::uniform(parseMesh(mesh), link)};
}

std::string describe(const CrossMeshPiece& piece) {
  return fmt::format("{}->{} {}+{}", piece.sender, piece.receiver, shapeToString(piece.box.start),
                     shapeToString(piece.box.size));
}

std::vector<std::string> describe(const CrossMeshTransfer& transfer) {
  std::vector<std::string> pieces;
  for (const CrossMeshPiece& piece : transfer.pieces) pieces.push_back(describe(piece));
  return pieces;
}

constexpr LinkCost kFast{100, 50};
constexpr LinkCost kSlow{1000, 1};

TEST(CrossMesh, SendsReplicatedTensorsInPartsWhereTheLinkBetweenIsSlow) {
  const CrossMeshPlan plan =
      planCrossMesh({8, 16}, DataType::kFloat32, side("2", "R,R", kFast), side("2", "R,R", kFast), kSlow);
  EXPECT_EQ(printSpec(plan.sent), "R,R");  // each sender cuts out what it is to send
  EXPECT_EQ(printSpec(plan.received), "S0,R");
  EXPECT_THAT(describe(plan.transfer), ElementsAre("0->0 [0,0]+[4,16]", "1->1 [4,0]+[4,16]"));
  EXPECT_THAT(plan.before.steps, IsEmpty());
  EXPECT_EQ(plan.transfer.cost_ns, 1000 + 256);
  EXPECT_EQ(plan.after.cost_ns, 105);
  EXPECT_EQ(plan.cost_ns, 1000 + 256 + 105);
  EXPECT_EQ(plan.transfer.bytes, 512);
}

TEST(CrossMesh, SendsToEveryReplicaWhereGatheringIsDearer) {
  const CrossMeshPlan plan =
      planCrossMesh({8, 16}, DataType::kFloat32, side("2", "R,R", kSlow), side("2", "R,R", kSlow), kFast);
  EXPECT_EQ(printSpec(plan.received), "R,R");
  EXPECT_THAT(plan.after.steps, IsEmpty());
  EXPECT_THAT(describe(plan.transfer), ElementsAre("0->0 [0,0]+[8,16]", "1->1 [0,0]+[8,16]"));
}

TEST(CrossMesh, ResolvesPartialSumsWhereItIsCheapest) {
  const CrossMeshPlan scattered =
      planCrossMesh({64, 64}, DataType::kFloat32, side("2", "R,R;P0"), side("2", "S0,R"), kSlow);
  EXPECT_EQ(printSpec(scattered.sent), "S0,R");
  ASSERT_EQ(scattered.before.steps.size(), 1u);
  EXPECT_EQ(scattered.before.steps[0].kind, ReshardingStep::Kind::kReduceScatter);
  const CrossMeshPlan scalar =
      planCrossMesh({}, DataType::kFloat32, side("2", "-;P0"), side("3", "-;P0"), kSlow);
  EXPECT_EQ(scalar.before.steps.at(0).kind, ReshardingStep::Kind::kAllReduce);
  EXPECT_EQ(scalar.after.steps.at(0).kind, ReshardingStep::Kind::kKeepOne);
  EXPECT_EQ(scalar.transfer.bytes, 12);
}

TEST(CrossMesh, CutsTheTransferWhereBothSidesDo) {
  const CrossMeshTransfer transfer = planTransfer({8, 6}, DataType::kFloat32, parseMesh("2"),
                                                  parseSpec("S0,R"), parseMesh("3"), parseSpec("R,S0"), {});
  EXPECT_THAT(describe(transfer), ElementsAre("0->0 [0,0]+[4,2]", "1->0 [4,0]+[4,2]", "0->1 [0,2]+[4,2]",
                                              "1->1 [4,2]+[4,2]", "0->2 [0,4]+[4,2]", "1->2 [4,4]+[4,2]"));
  EXPECT_THAT(transfer.assemblies[DeviceId(1)].sizes, ElementsAre(ElementsAre(4, 4), ElementsAre(2)));
  EXPECT_THAT(transfer.assemblies[DeviceId(1)].pieces, ElementsAre(2, 3));
}

TEST(CrossMesh, TheLeastLoadedHolderSends) {
  // Rows cut unevenly for three receivers, all of them on both senders: 3 rows by one, 2 + 2 by the other.
  const CrossMeshTransfer transfer = planTransfer({7, 100}, DataType::kFloat32, parseMesh("2"),
                                                  parseSpec("R,R"), parseMesh("3"), parseSpec("S0,R"), kSlow);
  EXPECT_THAT(describe(transfer),
              ElementsAre("1->0 [0,0]+[2,100]", "1->1 [2,0]+[2,100]", "0->2 [4,0]+[3,100]"));
  EXPECT_EQ(transfer.cost_ns, 2 * 1800);
}

TEST(CrossMesh, CutsAndJoinsAlongOneAxisAtATime) {
  const Shard held{{4, 0, 0}, {4, 8, 2}};
  EXPECT_THAT(cutOut(held, held), IsEmpty());
  EXPECT_THAT(cutOut(held, {{5, 2, 0}, {1, 6, 2}}), ElementsAre(AxisRange{0, 1, 1}, AxisRange{1, 2, 6}));
  EXPECT_ERROR(cutOut(held, {{3, 0, 0}, {1, 8, 2}}), ErrorCode::kInternal, "not within");

  EXPECT_THAT(putTogether({{{4}, {2}}, {0}}), IsEmpty());
  const std::vector<Concatenation> steps = putTogether({{{4, 3}, {2}, {1, 5}}, {7, 8, 9, 10}});
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[0].axis, 2);
  EXPECT_THAT(steps[0].operands, ElementsAre(0, 1));
  EXPECT_EQ(steps[0].shape, (Shape{4, 2, 6}));
  EXPECT_THAT(steps[1].operands, ElementsAre(2, 3));
  EXPECT_EQ(steps[1].shape, (Shape{3, 2, 6}));
  EXPECT_EQ(steps[2].axis, 0);
  EXPECT_THAT(steps[2].operands, ElementsAre(4, 5));
  EXPECT_EQ(steps[2].shape, (Shape{7, 2, 6}));
}

TEST(CrossMesh, RefusesToSendPartialSums) {
  EXPECT_ERROR(planTransfer({4}, DataType::kFloat32, parseMesh("2"), parseSpec("R;P0"), parseMesh("2"),
                            parseSpec("R"), {}),
               ErrorCode::kInternal, "R;P0 is a partial sum");
}

std::vector<ShardingSpec> resolvedSpecs(const Shape& shape, const LogicalMesh& mesh) {
  std::vector<ShardingSpec> specs = specsOf(shape, mesh);
  std::erase_if(specs, [](const ShardingSpec& spec) { return !spec.partial.empty(); });
  return specs;
}

// Senders hold what they send; the time is that of the busiest device.
void checkTransfer(const CrossMeshTransfer& transfer, const Shape& shape, const LogicalMesh& from_mesh,
                   const ShardingSpec& from, const LinkCost& between) {
  std::map<std::pair<bool, DeviceId>, int64_t> time;
  int64_t bytes = 0;
  for (const CrossMeshPiece& piece : transfer.pieces) {
    const int64_t size = 4 * elementCount(piece.box.size);
    EXPECT_NO_THROW(cutOut(shardOf(from, shape, from_mesh, piece.sender), piece.box));
    for (const auto& device : {std::pair(true, piece.sender), std::pair(false, piece.receiver)}) {
      time[device] += between.latency_ns +
                      static_cast<int64_t>(std::ceil(static_cast<double>(size) / between.bytes_per_ns));
    }
    bytes += size;
  }
  int64_t longest = 0;
  for (const auto& [device, busy] : time) longest = std::max(longest, busy);
  EXPECT_EQ(transfer.cost_ns, longest);
  EXPECT_EQ(transfer.bytes, bytes);
}

// By device: whether what `part` has of it lies within what `whole` has.
bool isWithin(const ShardingSpec& part, const ShardingSpec& whole) {
  const Shape shape = {64, 64};
  const LogicalMesh mesh = parseMesh("2x2");
  for (const DeviceId device : mesh.devices()) {
    const Shard inner = shardOf(part, shape, mesh, device), outer = shardOf(whole, shape, mesh, device);
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      if (inner.start[axis] < outer.start[axis] ||
          inner.start[axis] + inner.size[axis] > outer.start[axis] + outer.size[axis])
        return false;
    }
  }
  return true;
}

TEST(CrossMesh, IsTheCheapestOverAllSpecsBetweenOrNearly) {
  size_t plans = 0, gathered = 0, dearer = 0;
  for (const LinkCost& between : {LinkCost{0, 0.3}, LinkCost{2000, 3}, LinkCost{500, 1000}}) {
    for (const auto& [from_mesh, to_mesh] :
         {std::pair("2x2", "1x3"), std::pair("3", "2x2"), std::pair("2x2", "2"), std::pair("2x2", "2x2"),
          std::pair("2x2", "4x2")}) {
      // The last pair cuts into equal parts: their cost is counted, not made.
      const Shape shape = std::string_view(to_mesh) == "4x2" ? Shape{8, 4} : Shape{5, 7};
      const CrossMeshSide from = side(from_mesh, "R,R", {700, 2}), to = side(to_mesh, "R,R", {300, 5});
      for (const ShardingSpec& have : specsOf(shape, from.mesh)) {
        for (const ShardingSpec& want : specsOf(shape, to.mesh)) {
          const CrossMeshPlan plan = planCrossMesh(shape, DataType::kFloat32, {from.mesh, have, from.model},
                                                   {to.mesh, want, to.model}, between);
          SCOPED_TRACE(fmt::format("{} {} to {} {}", from_mesh, printSpec(have), to_mesh, printSpec(want)));
          int64_t best = INT64_MAX, aligned = INT64_MAX;
          for (const ShardingSpec& sent : resolvedSpecs(shape, from.mesh)) {
            const int64_t before =
                planResharding(shape, DataType::kFloat32, have, sent, from.mesh, from.model).cost_ns;
            for (const ShardingSpec& received : resolvedSpecs(shape, to.mesh)) {
              const int64_t cost =
                  before +
                  planTransfer(shape, DataType::kFloat32, from.mesh, sent, to.mesh, received, between)
                      .cost_ns +
                  planResharding(shape, DataType::kFloat32, received, want, to.mesh, to.model).cost_ns;
              best = std::min(best, cost);
              if (from.mesh == to.mesh && isWithin(received, sent)) aligned = std::min(aligned, cost);
            }
          }
          ASSERT_EQ(plan.cost_ns, aligned <= best + best / kAlignedIsWorth ? aligned : best);
          dearer += plan.cost_ns > best ? 1 : 0;
          ASSERT_EQ(plan.cost_ns, plan.before.cost_ns + plan.transfer.cost_ns + plan.after.cost_ns);
          checkTransfer(plan.transfer, shape, from.mesh, plan.sent, between);
          gathered += plan.after.cost_ns > 0 ? 1 : 0;
          if (++plans % 7 != 0) continue;
          const CrossMeshPlan again = planCrossMesh(shape, DataType::kFloat32, {from.mesh, have, from.model},
                                                    {to.mesh, want, to.model}, between);
          ASSERT_EQ(again.transfer.pieces, plan.transfer.pieces);
        }
      }
    }
  }
  EXPECT_GT(plans, 1000u);
  EXPECT_GT(gathered, 100u);
  EXPECT_GT(dearer, 10u);
}

// A weight in columns on 2 replicas of 2 devices, wanted there in rows: a piece for each would cross
// replicas.
TEST(CrossMesh, CounterpartsAreAmongThemselvesWhereItCostsLittle) {
  const CrossMeshPlan plan = planCrossMesh({64, 64}, DataType::kFloat32, side("2x2", "R,S1", kFast),
                                           side("2x2", "S1,R", kFast), kSlow);
  for (const CrossMeshPiece& piece : plan.transfer.pieces) EXPECT_EQ(piece.sender, piece.receiver);
}

}  // namespace
}  // namespace pipeshard
