#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/checkpoint/replica_hashes.h"

namespace pipeshard {
namespace {

using ::testing::HasSubstr;

using Texts = std::vector<std::string>;

TEST(ReplicaCheck, EqualCopiesAndDifferentPartsAreWell) {
  ReplicaCheck check(2);
  EXPECT_FALSE(check.take(RankId(0), 5, {"aa w [0]+[2]", "bb w [2]+[2]"}, true));
  EXPECT_FALSE(check.take(RankId(1), 5, {"aa w [0]+[2]", "cc v [0]+[4]"}, true));
}

TEST(ReplicaCheck, KnowsWhereThereAreNoCopies) {
  ReplicaCheck check(2), copies(2);
  check.take(RankId(0), 5, {"aa w [0]+[2]"}, true);
  EXPECT_FALSE(check.hasNoCopies()) << "not known yet";
  check.take(RankId(1), 5, {"aa w [2]+[2]"}, true);
  EXPECT_TRUE(check.hasNoCopies());
  copies.take(RankId(0), 5, {"aa w [0]+[2]"}, true);
  copies.take(RankId(1), 5, {"aa w [0]+[2]"}, true);
  EXPECT_FALSE(copies.hasNoCopies());
}

TEST(ReplicaCheck, ADifferenceIsToldWhenAllHaveSaidWhatTheyHave) {
  ReplicaCheck check(2);
  EXPECT_FALSE(check.take(RankId(1), 5, {"aa w [0]+[2]"}, false));
  EXPECT_FALSE(check.take(RankId(0), 5, {"bb w [0]+[2]"}, true));
  const std::optional<std::string> told = check.take(RankId(1), 5, {"cc v [0]+[2]"}, true);
  ASSERT_TRUE(told.has_value());
  EXPECT_THAT(*told, HasSubstr("after step 5 rank "));
  EXPECT_THAT(*told, HasSubstr("hold different numbers in 'w [0]+[2]'"));
}

TEST(ReplicaCheck, TheOddOneOfSeveralIsNamed) {
  ReplicaCheck check(3);
  EXPECT_FALSE(check.take(RankId(0), 5, {"aa w [0]+[2]"}, true));
  EXPECT_FALSE(check.take(RankId(1), 5, {"bb w [0]+[2]"}, true));
  EXPECT_THAT(check.take(RankId(2), 5, {"aa w [0]+[2]"}, true).value_or(""),
              HasSubstr("rank 1 holds other numbers than rank 0, 2 in 'w [0]+[2]'"));
}

// Ranks are not at the same step when they say what they have.
TEST(ReplicaCheck, StepsAreComparedEachByItself) {
  ReplicaCheck check(2);
  EXPECT_FALSE(check.take(RankId(0), 5, {"aa w [0]+[2]"}, true));
  EXPECT_FALSE(check.take(RankId(0), 10, {"bb w [0]+[2]"}, true));
  EXPECT_FALSE(check.take(RankId(1), 5, {"aa w [0]+[2]"}, true));
  EXPECT_FALSE(check.take(RankId(1), 10, {"bb w [0]+[2]"}, true));
}

}  // namespace
}  // namespace pipeshard
