#include "transport/collectives/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

template <typename T>
std::vector<T> reduceAll(Reduction reduction, const std::vector<std::vector<T>>& inputs) {
  std::vector<const std::byte*> pointers;
  for (const auto& input : inputs) pointers.push_back(reinterpret_cast<const std::byte*>(input.data()));
  std::vector<T> output(inputs[0].size());
  reduceInOrder(dataTypeOf<T>(), reduction, pointers, reinterpret_cast<std::byte*>(output.data()),
                output.size());
  return output;
}

TEST(Reduce, AddsFromTheFirstToTheLast) {
  // (1e8 + 1) - 1e8 is 0 in float32, 1e8 - 1e8 + 1 is 1.
  EXPECT_EQ(reduceAll<float>(Reduction::kSum, {{1e8F}, {1.0F}, {-1e8F}}), (std::vector<float>{0.0F}));
  EXPECT_EQ(reduceAll<float>(Reduction::kSum, {{1e8F}, {-1e8F}, {1.0F}}), (std::vector<float>{1.0F}));
}

TEST(Reduce, TakesMaximumAndMinimum) {
  EXPECT_EQ(reduceAll<int32_t>(Reduction::kMax, {{1, -5}, {3, -7}, {2, -6}}), (std::vector<int32_t>{3, -5}));
  EXPECT_EQ(reduceAll<double>(Reduction::kMin, {{1, -5}, {3, -7}, {2, -6}}), (std::vector<double>{1, -7}));
}

TEST(Reduce, KeepsNotANumberWhereverItStands) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Reduction reduction : {Reduction::kSum, Reduction::kMax, Reduction::kMin}) {
    for (const auto& inputs : std::vector<std::vector<std::vector<float>>>{
             {{nan}, {1}, {2}}, {{1}, {nan}, {2}}, {{1}, {2}, {nan}}}) {
      EXPECT_TRUE(std::isnan(reduceAll<float>(reduction, inputs)[0]));
    }
  }
}

TEST(Reduce, WrapsIntegersAround) {
  const int64_t top = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(reduceAll<int64_t>(Reduction::kSum, {{top}, {1}}),
            (std::vector<int64_t>{std::numeric_limits<int64_t>::min()}));
}

TEST(Reduce, MayWriteOverAnyInput) {
  for (size_t target = 0; target < 3; ++target) {
    std::vector<std::vector<float>> inputs(3, std::vector<float>(5000));
    for (size_t k = 0; k < 3; ++k) {
      for (size_t i = 0; i < 5000; ++i) inputs[k][i] = static_cast<float>(i + k);
    }
    std::vector<const std::byte*> pointers;
    for (const auto& input : inputs) pointers.push_back(reinterpret_cast<const std::byte*>(input.data()));
    reduceInOrder(DataType::kFloat32, Reduction::kSum, pointers,
                  reinterpret_cast<std::byte*>(inputs[target].data()), 5000);
    for (size_t i = 0; i < 5000; ++i) ASSERT_EQ(inputs[target][i], static_cast<float>(3 * i + 3));
  }
}

TEST(Reduce, AddsBfloat16InFloat32AndRoundsOnce) {
  // 256 + 1 + 1 is 258 in bfloat16, whose step there is 2; rounded after each sum, 257 would fall back to
  // 256.
  constexpr uint16_t kOne = 0x3f80, k256 = 0x4380, k258 = 0x4381;
  const std::vector<std::vector<uint16_t>> inputs = {std::vector<uint16_t>(5000, k256),
                                                     std::vector<uint16_t>(5000, kOne),
                                                     std::vector<uint16_t>(5000, kOne)};
  std::vector<const std::byte*> pointers;
  for (const auto& input : inputs) pointers.push_back(reinterpret_cast<const std::byte*>(input.data()));
  std::vector<uint16_t> output(5000);
  reduceInOrder(DataType::kBfloat16, Reduction::kSum, pointers, reinterpret_cast<std::byte*>(output.data()),
                output.size());
  EXPECT_EQ(output, std::vector<uint16_t>(5000, k258));
  reduceInOrder(DataType::kBfloat16, Reduction::kMax, pointers, reinterpret_cast<std::byte*>(output.data()),
                output.size());
  EXPECT_EQ(output, inputs[0]);
}

TEST(Reduce, AddsFloat16InFloat32AndOverflowsToInfinity) {
  // 2048 + 1 + 1 is 2050, where the step is 2; 60000 + 60000 - 60000 is 60000 again.
  constexpr uint16_t kOne = 0x3c00, k2048 = 0x6800, k2050 = 0x6801, k60000 = 0x7b53, kInfinity = 0x7c00;
  const std::vector<std::vector<uint16_t>> inputs = {
      {k2048, k60000, k60000}, {kOne, k60000, k60000}, {kOne, k60000 | 0x8000, kOne}};
  std::vector<const std::byte*> pointers;
  for (const auto& input : inputs) pointers.push_back(reinterpret_cast<const std::byte*>(input.data()));
  std::vector<uint16_t> output(3);
  reduceInOrder(DataType::kFloat16, Reduction::kSum, pointers, reinterpret_cast<std::byte*>(output.data()),
                3);
  EXPECT_EQ(output, (std::vector<uint16_t>{k2050, k60000, kInfinity}));
}

TEST(Reduce, RefusesOtherTypesByName) {
  try {
    checkReducible(DataType::kUint8);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfiguration);
    EXPECT_NE(error.message().find(" not uint8"), std::string::npos);
  }
}

}  // namespace
}  // namespace pipeshard
