#include "ir/base/convert.h"

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

TEST(ConvertElements, NumbersBeyondATypesRangeAreCounted) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::vector<double> wide = {1e300, -1e39, 3e38, kInfinity, std::nan(""), 0};
  const auto narrow = converted<float>(DataType::kFloat64, wide, DataType::kFloat32);
  EXPECT_EQ(countBeyond(DataType::kFloat64, wide.data(), DataType::kFloat32, narrow.data(), wide.size()), 2);
  EXPECT_EQ(countBeyond(DataType::kFloat32, narrow.data(), DataType::kFloat64, wide.data(), wide.size()), 0);
  const std::vector<float> many(10000, 1e6F);  // more than are looked at together
  const auto half = converted<uint16_t>(DataType::kFloat32, many, DataType::kFloat16);
  EXPECT_EQ(countBeyond(DataType::kFloat32, many.data(), DataType::kFloat16, half.data(), many.size()),
            10000);
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

// By way of float64, which is exact.
TEST(ConvertElements, Float32AndFloat16AreConvertedAsByWayOfFloat64) {
  std::vector<uint16_t> halves(0x10000);
  for (uint32_t bits = 0; bits < halves.size(); ++bits) halves[bits] = static_cast<uint16_t>(bits);
  const auto singles = converted<float>(DataType::kFloat16, halves, DataType::kFloat32);
  const auto doubles = converted<double>(DataType::kFloat16, halves, DataType::kFloat64);
  for (size_t i = 0; i < halves.size(); ++i) {
    if (std::isnan(doubles[i])) {
      EXPECT_TRUE(std::isnan(singles[i])) << i;
    } else {
      EXPECT_EQ(std::bit_cast<uint64_t>(static_cast<double>(singles[i])),
                std::bit_cast<uint64_t>(doubles[i]));
    }
  }
  std::vector<float> numbers;
  for (uint32_t bits = 0; bits < 0xffffff00; bits += 1021) numbers.push_back(std::bit_cast<float>(bits));
  const auto direct = converted<uint16_t>(DataType::kFloat32, numbers, DataType::kFloat16);
  const auto exact = converted<uint16_t>(DataType::kFloat64,
                                         converted<double>(DataType::kFloat32, numbers, DataType::kFloat64),
                                         DataType::kFloat16);
  EXPECT_EQ(direct, exact);
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

TEST(ConvertElements, RoundTripsEverySmallFloat) {
  for (const DataType type : {DataType::kFloat8E4M3FN, DataType::kFloat8E4M3FNUZ, DataType::kFloat8E5M2,
                              DataType::kFloat8E5M2FNUZ, DataType::kFloat4E2M1, DataType::kFloat8E8M0}) {
    for (int code = 0; code < (type == DataType::kFloat4E2M1 ? 16 : 256); ++code) {
      const std::vector<uint8_t> small{static_cast<uint8_t>(code)};
      const auto wide = converted<double>(type, small, DataType::kFloat64);
      if (std::isnan(wide[0])) continue;
      std::vector<uint8_t> back(1);
      convertElements(DataType::kFloat64, wide.data(), type, back.data(), 1, {.saturate = false});
      EXPECT_EQ(back[0], small[0]) << dataTypeName(type) << " " << code;
    }
  }
}

// Largest numbers and neighbours as the table of ONNX's documentation of float8 has them.
TEST(ConvertElements, RoundsAndSaturatesSmallFloats) {
  const auto codes = [](DataType type, const std::vector<double>& numbers, bool saturate) {
    std::vector<uint8_t> small(numbers.size());
    convertElements(DataType::kFloat64, numbers.data(), type, small.data(), numbers.size(),
                    {.saturate = saturate});
    return converted<double>(type, small, DataType::kFloat64);
  };
  const std::vector<double> numbers{448, 464, 465, 1e6, -1e6, 2.125, 2.375};
  EXPECT_EQ(codes(DataType::kFloat8E4M3FN, numbers, true),
            (std::vector<double>{448, 448, 448, 448, -448, 2, 2.5}));
  EXPECT_TRUE(std::isnan(codes(DataType::kFloat8E4M3FN, numbers, false)[2]));
  EXPECT_EQ(codes(DataType::kFloat8E5M2, {57344, 61439, 61440, -1e9}, false),
            (std::vector<double>{57344, 57344, INFINITY, -INFINITY}));
  EXPECT_EQ(codes(DataType::kFloat4E2M1, {0.25, 0.75, 2.5, 5, 100, -0.3}, false),
            (std::vector<double>{0, 1, 2, 4, 6, -0.5}));
}

// As ONNX's table of Cast to float8_e8m0 has it.
TEST(ConvertElements, RoundsToPowersOfTwo) {
  const std::vector<double> numbers{1, 1.25, 1.5, 3, -6, 0, 1e-300, 1e300, INFINITY};
  const auto codes = [&](SmallFloatRounding rounding) {
    std::vector<uint8_t> small(numbers.size());
    convertElements(DataType::kFloat64, numbers.data(), DataType::kFloat8E8M0, small.data(), numbers.size(),
                    rounding);
    return small;
  };
  EXPECT_EQ(codes({}), (std::vector<uint8_t>{127, 128, 128, 129, 130, 0, 0, 254, 254}));
  EXPECT_EQ(codes({.power = PowerRounding::kDown}),
            (std::vector<uint8_t>{127, 127, 127, 128, 129, 0, 0, 254, 254}));
  EXPECT_EQ(codes({.saturate = false, .power = PowerRounding::kNearest}),
            (std::vector<uint8_t>{127, 127, 128, 129, 130, 255, 255, 255, 255}));
  const auto wide =
      converted<double>(DataType::kFloat8E8M0, std::vector<uint8_t>{0, 127, 254, 255}, DataType::kFloat64);
  EXPECT_EQ(wide[0], 0x1p-127);
  EXPECT_EQ(wide[1], 1);
  EXPECT_EQ(wide[2], 0x1p127);
  EXPECT_TRUE(std::isnan(wide[3]));
}

TEST(ConvertElements, WrapsIntegersOfFourBits) {
  EXPECT_EQ((converted<int8_t, int64_t>(DataType::kInt64, {7, 8, -8, -9, 16}, DataType::kInt4)),
            (std::vector<int8_t>{7, -8, -8, 7, 0}));
  EXPECT_EQ((converted<uint8_t, float>(DataType::kFloat32, {15, 16.9f, 3}, DataType::kUint4)),
            (std::vector<uint8_t>{15, 0, 3}));
}

TEST(ConvertElements, KnowsWhatItCannot) {
  EXPECT_FALSE(isConvertible(DataType::kString, DataType::kFloat32));
  EXPECT_FALSE(isConvertible(DataType::kFloat32, DataType::kComplex64));
  EXPECT_TRUE(isConvertible(DataType::kBool, DataType::kBfloat16));
  float number = 0;
  EXPECT_THROW(convertElements(DataType::kFloat32, &number, DataType::kString, &number, 1), Error);
}

}  // namespace
}  // namespace pipeshard
