// Layers and stages as functions of numbers.
#include "partition/stages/stages.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/near_matches.h"
#include "partition/layers/layers.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(StageAssignment, MinimisesTheLargestStage) {
  EXPECT_THAT(positionsOf(assignStages({1, 1, 1, 1, 9}, {1, 9, 3, 4, 0}, 2)), ElementsAre(3, 4));
  EXPECT_THAT(positionsOf(assignStages({5, 1, 1, 1, 5}, {1, 1, 1, 1, 0}, 3)), ElementsAre(0, 3, 4));
}

TEST(StageAssignment, PrefersFewerCutBytesOnEqualTime) {
  EXPECT_THAT(positionsOf(assignStages({4, 1, 1, 4}, {9, 5, 2, 0}, 2)), ElementsAre(1, 3));
  EXPECT_THAT(positionsOf(assignStages({2, 0, 2}, {9, 2, 0}, 2)), ElementsAre(1, 2));
  EXPECT_THAT(positionsOf(assignStages({2, 0, 2}, {2, 9, 0}, 2)), ElementsAre(0, 2));
}

TEST(StageAssignment, PrefersEarlierCutsOnEqualTimeAndBytes) {
  EXPECT_THAT(positionsOf(assignStages({2, 0, 0, 2}, {3, 3, 3, 0}, 2)), ElementsAre(0, 3));
  EXPECT_THAT(positionsOf(assignStages({0, 0, 0, 0}, {1, 1, 1, 0}, 3)), ElementsAre(0, 1, 3));
}

TEST(StageAssignment, GivesOneLayerPerStageOrAllToOne) {
  EXPECT_THAT(positionsOf(assignStages({3, 1, 2}, {1, 1, 0}, 3)), ElementsAre(0, 1, 2));
  EXPECT_THAT(positionsOf(assignStages({3, 1, 2}, {1, 1, 0}, 1)), ElementsAre(2));
}

// The objective and the cuts, so that comparing them compares partitions.
using Amounts = IdVector<LayerId, int64_t>;
using Score = std::tuple<int64_t, int64_t, std::vector<LayerId>>;

Score score(const Amounts& cost, const Amounts& bytes, const std::vector<LayerId>& last) {
  int64_t largest = 0;
  int64_t cut = 0;
  LayerId first(0);
  for (const LayerId l : last) {
    largest = std::max(
        largest, std::accumulate(cost.begin() + first.index(), cost.begin() + l.index() + 1, int64_t{0}));
    if (cost.has(l.next())) cut += bytes[l];
    first = l.next();
  }
  return {largest, cut, last};
}

void enumerate(const Amounts& cost, const Amounts& bytes, int stages, std::vector<LayerId>& last,
               std::optional<Score>& best) {
  const LayerId first = last.empty() ? LayerId(0) : last.back().next();
  const LayerId latest(cost.size() - stages);
  if (stages == 1) {
    last.push_back(latest);
    const Score found = score(cost, bytes, last);
    if (!best || found < *best) best = found;
    last.pop_back();
    return;
  }
  for (LayerId l = first; l <= latest; ++l) {
    last.push_back(l);
    enumerate(cost, bytes, stages - 1, last, best);
    last.pop_back();
  }
}

TEST(StageAssignment, AgreesWithBruteForceOnRandomLayers) {
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    const size_t layers = 1 + random() % 9;
    Amounts cost(layers), bytes(layers);
    for (int64_t& c : cost) c = random() % 6;  // small numbers: many ties
    for (int64_t& b : bytes) b = random() % 4;
    const int stages = 1 + static_cast<int>(random() % layers);
    std::optional<Score> best;
    std::vector<LayerId> last;
    enumerate(cost, bytes, stages, last, best);
    EXPECT_EQ(score(cost, bytes, assignStages(cost, bytes, stages)), *best) << "round " << round;
  }
}

TEST(FormLayers, CutsAtEqualShares) {
  EXPECT_THAT(formLayers({1, 1, 1, 1}, {4, 9, 4, 0}, 2), ElementsAre(1, 3));
  EXPECT_THAT(formLayers({1, 1, 1, 1, 1, 1}, {7, 7, 7, 7, 7, 0}, 3), ElementsAre(1, 3, 5));
}

TEST(FormLayers, PrefersANarrowPlaceNearTheShare) {
  EXPECT_THAT(formLayers({1, 1, 1, 1, 1, 1, 1, 1}, {9, 9, 5, 9, 9, 9, 9, 0}, 2), ElementsAre(2, 7));
}

TEST(FormLayers, KeepsEveryLayerNonEmptyAroundAHugeNode) {
  EXPECT_THAT(formLayers({1, 1, 100, 1, 1}, {1, 1, 1, 1, 0}, 4), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(formLayers({100, 0, 0, 0}, {1, 1, 1, 0}, 4), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(formLayers({0, 0, 0, 100}, {1, 1, 1, 0}, 4), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(formLayers({0, 0, 0}, {1, 1, 0}, 2), ElementsAre(0, 2));
  // only where layers may end, if that leaves places enough
  const std::vector<bool> may_end = {false, false, true, false};
  EXPECT_THAT(formLayers({1, 1, 1, 1}, {1, 1, 1, 0}, 2, may_end), ElementsAre(2, 3));
  EXPECT_EQ(formLayers({1, 1, 1, 1}, {1, 1, 1, 0}, 3, may_end).size(), 3u);
}

TEST(FormLayers, AlwaysGivesTheNumberAskedFor) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    const size_t nodes = 1 + random() % 30;
    std::vector<int64_t> flops(nodes), bytes(nodes);
    for (int64_t& f : flops) f = random() % 3 ? random() % 10 : random() % 1000000;
    for (int64_t& b : bytes) b = random() % 100;
    const int layers = 1 + static_cast<int>(random() % nodes);
    const LayerEnds last = formLayers(flops, bytes, layers);
    ASSERT_EQ(static_cast<int>(last.size()), layers);
    EXPECT_TRUE(std::adjacent_find(last.begin(), last.end(), std::greater_equal<>()) == last.end());
    EXPECT_EQ(last.back(), static_cast<int64_t>(nodes) - 1);
    EXPECT_GE(last.front(), 0);
  }
}

TEST(NearMatches, FindsMisspeltAndPartialNames) {
  const std::vector<std::string> names = {"blocks.0.add", "blocks.1.add", "loss", "embedding"};
  EXPECT_THAT(nearMatches("blocks.1.ad", names), ElementsAre("blocks.1.add", "blocks.0.add"));
  EXPECT_THAT(nearMatches("embed", names), ElementsAre("embedding"));
  EXPECT_THAT(nearMatches("quite_different", names), IsEmpty());
}

}  // namespace
}  // namespace pipeshard
