#include "runtime/files/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

template <typename To, typename From>
std::vector<To> converted(DataType from_type, const std::vector<From>& from, DataType to_type) {
  std::vector<To> to(from.size());
  convertElements(from_type, from.data(), to_type, to.data(), from.size());
  return to;
}

TEST(ConvertElements, WidensFloatsExactlyAndNarrowsToNearest) {
  EXPECT_EQ((converted<double, float>(DataType::kFloat32, {0.1f, -3}, DataType::kFloat64)),
            (std::vector<double>{0.1f, -3}));
  EXPECT_EQ((converted<float, double>(DataType::kFloat64, {0.1, 1e300}, DataType::kFloat32)),
            (std::vector<float>{0.1f, std::numeric_limits<float>::infinity()}));
}

TEST(ConvertElements, RoundTripsEveryFloat16) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const std::vector<uint16_t> half{static_cast<uint16_t>(bits)};
    const auto wide = converted<double>(DataType::kFloat16, half, DataType::kFloat64);
    const auto back = converted<uint16_t>(DataType::kFloat64, wide, DataType::kFloat16);
    if (std::isnan(wide[0])) {
      EXPECT_EQ(back[0] & 0x7c00, 0x7c00);
      EXPECT_NE(back[0] & 0x3ff, 0);
    } else {
      EXPECT_EQ(back[0], half[0]);
    }
  }
}

TEST(ConvertElements, RoundsFloat16HalvesToEven) {
  // 2048 + 1 and 2048 + 3 lie half-way between neighbours that are 2 apart; 65519 still rounds down, 65520
  // does not.
  EXPECT_EQ(
      (converted<double>(
          DataType::kFloat16,
          converted<uint16_t, double>(DataType::kFloat64,
                                      {2049, 2051, 65519, 65520, 0x1p-25, 0x1.8p-24, 1023.75 * 0x1p-24},
                                      DataType::kFloat16),
          DataType::kFloat64)),
      (std::vector<double>{2048, 2052, 65504, std::numeric_limits<double>::infinity(), 0, 0x1p-23, 0x1p-14}));
}

TEST(ConvertElements, RoundsBfloat16ToEven) {
  const auto bits = converted<uint16_t, float>(
      DataType::kFloat32, {1.0f, 1.00390625f, 1.01171875f, -2.5f, NAN}, DataType::kBfloat16);
  EXPECT_EQ(bits[0], 0x3f80);
  EXPECT_EQ(bits[1], 0x3f80);
  EXPECT_EQ(bits[2], 0x3f82);
  EXPECT_EQ(bits[3], 0xc020);
  EXPECT_TRUE(std::isnan(
      converted<float>(DataType::kBfloat16, std::vector<uint16_t>{bits[4]}, DataType::kFloat32)[0]));
}

TEST(ConvertElements, ConvertsIntegersAndBools) {
  EXPECT_EQ((converted<int64_t, int32_t>(DataType::kInt32, {-5, 7}, DataType::kInt64)),
            (std::vector<int64_t>{-5, 7}));
  EXPECT_EQ((converted<int32_t, double>(DataType::kFloat64, {-1.9, 1e20, NAN}, DataType::kInt32)),
            (std::vector<int32_t>{-1, 2147483647, 0}));
  EXPECT_EQ((converted<uint8_t, int64_t>(DataType::kInt64, {0, 256, -1}, DataType::kBool)),
            (std::vector<uint8_t>{0, 1, 1}));
}

TEST(ConvertElements, KnowsWhatItCannot) {
  EXPECT_FALSE(isConvertible(DataType::kString, DataType::kFloat32));
  EXPECT_FALSE(isConvertible(DataType::kFloat32, DataType::kComplex64));
  EXPECT_TRUE(isConvertible(DataType::kBool, DataType::kBfloat16));
  float number = 0;
  EXPECT_THROW(convertElements(DataType::kFloat32, &number, DataType::kInt4, &number, 1), Error);
}

}  // namespace
}  // namespace pipeshard
