#include <gtest/gtest.h>

#include "ir/base/amounts.h"
#include "ir/base/hash.h"
#include "ir/graph/graph.h"

namespace pipeshard {
namespace {

int halfBits(double number) {
  const Constant constant = makeScalar(DataType::kFloat16, number);
  EXPECT_EQ(constant.bytes.size(), 2u);
  return std::to_integer<int>(constant.bytes[0]) | std::to_integer<int>(constant.bytes[1]) << 8;
}

// Encodings as IEEE 754 binary16 has them (Wikipedia, "Half-precision floating-point format", examples).
TEST(MakeScalar, RoundsToHalfPrecision) {
  EXPECT_EQ(halfBits(0), 0x0000);
  EXPECT_EQ(halfBits(1), 0x3c00);
  EXPECT_EQ(halfBits(-2), 0xc000);
  EXPECT_EQ(halfBits(65504), 0x7bff);
  EXPECT_EQ(halfBits(65520), 0x7c00);  // too large: infinity
  EXPECT_EQ(halfBits(1.0 / 3), 0x3555);
  EXPECT_EQ(halfBits(0x1p-14), 0x0400);      // the smallest normal number
  EXPECT_EQ(halfBits(0x1p-24), 0x0001);      // the smallest of all
  EXPECT_EQ(halfBits(1 + 0x1p-11), 0x3c00);  // halfway: to even
  EXPECT_EQ(halfBits(1 + 3 * 0x1p-11), 0x3c02);
  EXPECT_EQ(halfBits(2 - 0x1p-12), 0x4000);  // carries into the exponent
}

// The first numbers of SplitMix64 (Steele, Lea, Flood 2014) from the seed 0, whose states are multiples of
// its increment. Masks and orders of rows are drawn by these: they stay the same from version to version.
TEST(MixBits, IsThatOfSplitMix64) {
  EXPECT_EQ(mixBits(0), 0xe220a8397b1dcdafU);
  EXPECT_EQ(mixBits(0x9e3779b97f4a7c15U), 0x6e789e6aa1b965f4U);
  EXPECT_EQ(mixBits(2 * 0x9e3779b97f4a7c15U), 0x06c45d188009454fU);
}

TEST(FormatShare, IsAPartInPercent) {
  EXPECT_EQ(formatShare(3, 8), "37.5%");
  EXPECT_EQ(formatShare(0, 8), "0.0%");
  EXPECT_EQ(formatShare(3, 0), "0.0%");
}

}  // namespace
}  // namespace pipeshard
