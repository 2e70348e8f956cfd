#include "ir/base/ids.h"

#include <stdexcept>
#include <type_traits>
#include <vector>

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "ir/base/ids_format.h"

namespace pipeshard {
namespace {

TEST(Ids, HaveNeighboursInTheirOrder) {
  EXPECT_EQ(StageId(0).next(), StageId(1));
  EXPECT_EQ(StageId(1).previous(), StageId(0));
  EXPECT_FALSE(StageId(0).previous().valid());
}

TEST(Ids, ArePositionsOfAVector) {
  IdVector<StageId, int> widths = {4, 2};
  widths.push_back(1);
  std::vector<int> seen;
  for (const StageId stage : widths.ids()) seen.push_back(widths[stage]);
  EXPECT_EQ(seen, (std::vector<int>{4, 2, 1}));
  EXPECT_EQ(widths.nextId(), StageId(3));
  EXPECT_THROW(widths.at(StageId(3)), std::out_of_range);
}

TEST(Ids, AreMadeOfPositionsAndOfRanges) {
  EXPECT_EQ(idsAt<RankId>({0, 2}), (std::vector<RankId>{RankId(0), RankId(2)}));
  EXPECT_EQ(idsAt<RankId>(std::vector<int64_t>{3}), std::vector<RankId>{RankId(3)});
  EXPECT_EQ(positionsOf(idsAt<RankId>({4, 1})), (std::vector<size_t>{4, 1}));
  const std::vector<RankId> all = idsBelow<RankId>(2);
  EXPECT_EQ(all, idsAt<RankId>({0, 1}));
}

TEST(Ids, OfDifferentThingsAreNotExchanged) {
  EXPECT_FALSE((std::is_convertible_v<StageId, RankId>));
  EXPECT_FALSE((std::is_convertible_v<int, RankId>));
  EXPECT_FALSE((std::is_convertible_v<RankId, int>));
}

TEST(Ids, ArePrintedAsPositions) {
  EXPECT_EQ(fmt::format("{}", fmt::join(std::vector<RankId>{RankId(0), RankId(12)}, ",")), "0,12");
  EXPECT_EQ(fmt::format("{}", RankId()), "-");
  EXPECT_EQ(fmt::format("{:>3}|", RankId(7)), "  7|");
}

}  // namespace
}  // namespace pipeshard
