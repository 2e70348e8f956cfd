#include "runtime/recovery/node_choice.h"

#include <gtest/gtest.h>

namespace pipeshard {
namespace {

using Nodes = IdVector<RankId, int>;

const Nodes kTwoByTwo{0, 0, 1, 1};

TEST(NodeChoice, RanksStayWhereTheirNodeIs) {
  EXPECT_EQ(*chooseNodes(kTwoByTwo, {{0, 2}, {1, 2}}), kTwoByTwo);
  EXPECT_EQ(*chooseNodes(kTwoByTwo, {{0, 2}, {1, 2}, {2, 8}}), kTwoByTwo);
}

TEST(NodeChoice, ASpareTakesThePlaceOfALostNode) {
  EXPECT_EQ(*chooseNodes(kTwoByTwo, {{1, 2}, {2, 2}}), (Nodes{2, 2, 1, 1}));
  EXPECT_EQ(*chooseNodes(kTwoByTwo, {{2, 2}, {3, 2}}), (Nodes{2, 2, 3, 3}));
}

TEST(NodeChoice, TheSmallestSpareThatIsEnoughIsTaken) {
  EXPECT_EQ(*chooseNodes(kTwoByTwo, {{1, 2}, {2, 8}, {3, 2}}), (Nodes{3, 3, 1, 1}));
}

TEST(NodeChoice, ALargeNodeTakesTwoGroups) {
  EXPECT_EQ(*chooseNodes(kTwoByTwo, {{1, 4}}), (Nodes{1, 1, 1, 1}));
}

TEST(NodeChoice, AGroupIsTakenApartWhereNothingElseHelps) {
  EXPECT_EQ(*chooseNodes(Nodes{0, 0, 0, 0}, {{1, 3}, {2, 1}}), (Nodes{1, 1, 1, 2}));
}

TEST(NodeChoice, TooFewDevicesAreNone) {
  EXPECT_FALSE(chooseNodes(kTwoByTwo, {{0, 2}, {1, 1}}).has_value());
  EXPECT_FALSE(chooseNodes(kTwoByTwo, {}).has_value());
}

}  // namespace
}  // namespace pipeshard
