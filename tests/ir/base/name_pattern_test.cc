#include "ir/base/name_pattern.h"

#include <gtest/gtest.h>

#include <ctime>
#include <string>

#include "ir/base/error.h"
#include "tests/expect_error.h"

namespace pipeshard {
namespace {

TEST(NamePattern, IsFoundAnywhereInAName) {
  const NamePattern pattern("--freeze", "h\\.\\d+$");
  EXPECT_TRUE(pattern.isFoundIn("transformer.h.12"));
  EXPECT_FALSE(pattern.isFoundIn("transformer.h.12.attn"));
  EXPECT_FALSE(pattern.isFoundIn("transformer.H.1"));
  EXPECT_TRUE(NamePattern("--balance", "BLOCK", NamePattern::Case::kIgnored).isFoundIn("Gpt2Block"));
}

// A backtracking matcher needs 2^40 steps for the first, and a frame of the stack per character for the
// second.
TEST(NamePattern, TakesTimeAndMemoryInProportionToTheName) {
  const std::clock_t start = std::clock();
  EXPECT_FALSE(NamePattern("--freeze", "(a+)+$").isFoundIn(std::string(40, 'a') + "!"));
  EXPECT_TRUE(NamePattern("--freeze", "(x|y)*z").isFoundIn(std::string(1'000'000, 'x') + "z"));
  EXPECT_LT(std::clock() - start, 5 * CLOCKS_PER_SEC);
}

TEST(NamePattern, SaysWhatItDoesNotTake) {
  const auto make = [](const std::string& text) { NamePattern("--group '" + text + "'", text); };
  EXPECT_ERROR(make("("), ErrorCode::kUsage, "--group '(' is no regular expression: missing");
  EXPECT_ERROR(make("a(?!b)"), ErrorCode::kUsage, "no look-ahead, no back-references");
  EXPECT_ERROR(make("(a)\\1"), ErrorCode::kUsage, "no look-ahead, no back-references");
  EXPECT_ERROR(make("((a{1000}){1000}){1000}"), ErrorCode::kUsage, "is no regular expression");
}

}  // namespace
}  // namespace pipeshard
