#include "runtime/trace/straggler_watch.h"

#include <gtest/gtest.h>

#include <vector>

namespace pipeshard {
namespace {

IdVector<RankId, double> seconds(const std::vector<double>& of_ranks) {
  IdVector<RankId, double> result(of_ranks.size());
  for (size_t i = 0; i < of_ranks.size(); ++i) result[RankId(i)] = of_ranks[i];
  return result;
}

IdVector<RankId, size_t> kinds(const std::vector<size_t>& of_ranks) {
  IdVector<RankId, size_t> result(of_ranks.size());
  for (size_t i = 0; i < of_ranks.size(); ++i) result[RankId(i)] = of_ranks[i];
  return result;
}

// The stragglers of so many steps.
std::vector<Straggler> steps(StragglerWatch& watch, int count, const std::vector<double>& of_ranks) {
  std::vector<Straggler> found;
  for (int i = 0; i < count; ++i) {
    if (const auto straggler = watch.take(seconds(of_ranks))) found.push_back(*straggler);
  }
  return found;
}

TEST(StragglerWatch, NamesWhoIsSlowerThanItsKind) {
  StragglerWatch watch(kinds({0, 0, 0, 1}));
  const std::vector<Straggler> found = steps(watch, 100, {0.5, 1.1, 0.5, 3});  // rank 3 has more to do
  ASSERT_EQ(found.size(), 1u);                                                 // said once
  EXPECT_EQ(found[0].rank, RankId(1));
  EXPECT_NEAR(found[0].times, 2.2, 1e-9);
  EXPECT_FALSE(found[0].than_before);
}

TEST(StragglerWatch, NamesWhoHasBecomeSlowerAlone) {
  StragglerWatch watch(kinds({0, 1, 2}));
  EXPECT_TRUE(steps(watch, 60, {0.5, 1, 2}).empty());
  const std::vector<Straggler> found = steps(watch, 60, {0.5, 2, 2});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].rank, RankId(1));
  EXPECT_TRUE(found[0].than_before);
}

// The commonest pipeline: two ranks that do different things, of which one has become slower.
TEST(StragglerWatch, NamesOneOfTwoThatDoDifferentThings) {
  for (const int slow : {0, 1}) {
    StragglerWatch watch(kinds({0, 1}));
    EXPECT_TRUE(steps(watch, 60, {0.5, 0.6}).empty());
    const std::vector<Straggler> found = steps(watch, 60, {slow == 0 ? 2.0 : 0.5, slow == 1 ? 2.4 : 0.6});
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].rank, RankId(slow));
    EXPECT_NEAR(found[0].times, 4, 0.01);
  }
  StragglerWatch both(kinds({0, 1}));
  EXPECT_TRUE(steps(both, 60, {0.5, 0.6}).empty());
  EXPECT_TRUE(steps(both, 100, {1, 1.2}).empty());  // longer sequences
}

TEST(StragglerWatch, SaysNothingOfWhatAllHaveInCommonOrIsOverSoon) {
  StragglerWatch all(kinds({0, 1, 2}));
  steps(all, 40, {0.5, 1, 2});
  EXPECT_TRUE(steps(all, 100, {1, 2, 4}).empty());  // longer sequences
  StragglerWatch soon(kinds({0, 0}));
  EXPECT_TRUE(steps(soon, 20, {0.5, 1}).empty());  // one span
  EXPECT_TRUE(steps(soon, 100, {0.5, 0.5}).empty());
}

}  // namespace
}  // namespace pipeshard
