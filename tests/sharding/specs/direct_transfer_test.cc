// What goes from whom to whom as it lies on both sides: rows, copies, summands.
#include "sharding/specs/direct_transfer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "ir/base/ids_format.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

CrossMeshSide side(const char* mesh, const char* spec) {
  return {parseMesh(mesh), parseSpec(spec), CostModel::uniform(parseMesh(mesh))};
}

std::vector<std::string> describe(const CrossMeshTransfer& transfer) {
  std::vector<std::string> pieces;
  for (const CrossMeshPiece& piece : transfer.pieces) {
    pieces.push_back(fmt::format("{}->{} {}+{}", piece.sender, piece.receiver, shapeToString(piece.box.start),
                                 shapeToString(piece.box.size)));
  }
  return pieces;
}

CrossMeshSide rowsSide(int data, int model, int64_t rows, const char* spec) {
  const LogicalMesh mesh{{data, model}, rows};
  return {mesh, parseSpec(spec), CostModel::uniform(mesh)};
}

std::vector<std::string> direct(const Shape& shape, const CrossMeshSide& from, const CrossMeshSide& to) {
  const CrossMeshPlan plan = planDirectTransfer(shape, DataType::kFloat32, from, to, LinkCost{});
  EXPECT_THAT(plan.before.steps, IsEmpty());
  EXPECT_THAT(plan.after.steps, IsEmpty());
  EXPECT_EQ(plan.transfer.adds, !from.spec.partial.empty() || !to.spec.partial.empty());
  EXPECT_EQ(std::ssize(plan.transfer.assemblies), to.mesh.deviceCount());
  return describe(plan.transfer);
}

TEST(DirectTransfer, EqualMeshesSendToTheirCounterparts) {
  for (const char* spec : {"S0,R", "R,R;P0", "R,R"}) {
    const bool cut = spec[0] == 'S';
    EXPECT_THAT(direct({4, 8}, rowsSide(2, 1, 4, spec), rowsSide(2, 1, 4, spec)),
                ElementsAre(cut ? "0->0 [0,0]+[2,8]" : "0->0 [0,0]+[4,8]",
                            cut ? "1->1 [2,0]+[2,8]" : "1->1 [0,0]+[4,8]"));
  }
}

TEST(DirectTransfer, RowsGoToWhoComputesThem) {
  const CrossMeshSide one = side("1", "R,R");
  EXPECT_THAT(direct({4, 8}, one, rowsSide(3, 1, 4, "S0,R")),
              ElementsAre("0->0 [0,0]+[1,8]", "0->1 [1,0]+[1,8]", "0->2 [2,0]+[2,8]"));
  EXPECT_THAT(direct({4, 8}, rowsSide(3, 1, 4, "S0,R"), one),
              ElementsAre("0->0 [0,0]+[1,8]", "1->0 [1,0]+[1,8]", "2->0 [2,0]+[2,8]"));
  EXPECT_THAT(direct({6, 8}, rowsSide(2, 1, 6, "S0,R"), rowsSide(3, 1, 6, "S0,R")),
              ElementsAre("0->0 [0,0]+[2,8]", "0->1 [2,0]+[1,8]", "1->1 [3,0]+[1,8]", "1->2 [4,0]+[2,8]"));
  // Tokens of 4 rows travel in whole rows; all places along the model axis get theirs.
  EXPECT_THAT(direct({40, 8}, rowsSide(1, 1, 4, "R,R"), rowsSide(3, 1, 4, "S0,R")),
              ElementsAre("0->0 [0,0]+[10,8]", "0->1 [10,0]+[10,8]", "0->2 [20,0]+[20,8]"));
  EXPECT_THAT(direct({4, 8}, rowsSide(1, 2, 4, "R,R"), rowsSide(2, 2, 4, "S0,R")),
              ElementsAre("0->0 [0,0]+[2,8]", "1->1 [0,0]+[2,8]", "0->2 [2,0]+[2,8]", "1->3 [2,0]+[2,8]"));
}

TEST(DirectTransfer, WhatAllHoldComesFromOneSender) {
  EXPECT_THAT(direct({8}, rowsSide(1, 1, 4, "R"), rowsSide(3, 1, 4, "R")),
              ElementsAre("0->0 [0]+[8]", "0->1 [0]+[8]", "0->2 [0]+[8]"));
  EXPECT_THAT(direct({8}, rowsSide(3, 1, 4, "R"), side("1", "R")), ElementsAre("0->0 [0]+[8]"));
}

TEST(DirectTransfer, SummandsAreSharedOut) {
  const CrossMeshSide one = side("1", "R");
  EXPECT_THAT(direct({8}, one, rowsSide(3, 1, 4, "R;P0")), ElementsAre("0->0 [0]+[8]"));
  EXPECT_THAT(direct({8}, rowsSide(3, 1, 4, "R;P0"), one),
              ElementsAre("0->0 [0]+[8]", "1->0 [0]+[8]", "2->0 [0]+[8]"));
  EXPECT_THAT(direct({8}, rowsSide(3, 1, 4, "R;P0"), rowsSide(2, 1, 4, "R;P0")),
              ElementsAre("0->0 [0]+[8]", "2->0 [0]+[8]", "1->1 [0]+[8]"));
  // What all of a mesh hold whole is wanted by each; devices along the model axis have the same summand.
  EXPECT_THAT(direct({8}, rowsSide(2, 2, 4, "R;P0"), side("2", "R")),
              ElementsAre("0->0 [0]+[8]", "2->0 [0]+[8]", "1->1 [0]+[8]", "3->1 [0]+[8]"));
}

TEST(DirectTransfer, OtherSumsAreResolved) {
  const CrossMeshPlan plan =
      planDirectTransfer({8}, DataType::kFloat32, side("2x2", "S1;P0"), side("2", "R"), LinkCost{});
  EXPECT_FALSE(plan.transfer.adds);
  EXPECT_THAT(plan.sent.partial, IsEmpty());
}

}  // namespace
}  // namespace pipeshard
