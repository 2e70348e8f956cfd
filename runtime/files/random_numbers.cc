#include "runtime/files/random_numbers.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ir/base/convert.h"
#include "ir/base/hash.h"
#include "ir/base/tensor_box.h"

namespace pipeshard {
namespace {

double uniform(uint64_t bits) { return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53; }  // in (0, 1)

// Box and Muller 1958, the cosine branch.
double standardNormal(uint64_t key, uint64_t element) {
  const uint64_t first = mixBits(key ^ mixBits(2 * element));
  const uint64_t second = mixBits(key ^ mixBits(2 * element + 1));
  return std::sqrt(-2 * std::log(uniform(first))) * std::cos(2 * std::numbers::pi * uniform(second));
}

// The high word of a 64x64 bit product: a value in [0, range) without the bias and cost of a division.
uint64_t scaled(uint64_t bits, uint64_t range) {
  return (static_cast<unsigned __int128>(bits) * range) >> 64;
}

constexpr int64_t kBlock = 256;  // numbers that are converted at once

// block[i] of element first + i.
void makeNumbers(const RandomNumbers& drawn, uint64_t key, uint64_t first, std::span<double> block) {
  if (drawn.kind == RandomNumbers::Kind::kUniform) {
    for (size_t i = 0; i < block.size(); ++i)  // exact in float32: never 1
      block[i] = static_cast<double>(mixBits(key ^ mixBits(first + i)) >> 40) * 0x1p-24;
  } else {
    for (size_t i = 0; i < block.size(); ++i) block[i] = standardNormal(key, first + i);
  }
  for (double& number : block) number = number * drawn.scale + drawn.shift;
}

void makeIntegers(const ProgramInput& input, uint64_t key, uint64_t first, std::span<int64_t> block) {
  const bool is_bool = input.data_type == DataType::kBool;
  const uint64_t low = is_bool ? 0 : input.low;
  const uint64_t range = is_bool ? 2 : static_cast<uint64_t>(input.high) - low;
  for (size_t i = 0; i < block.size(); ++i) block[i] = low + scaled(mixBits(key ^ mixBits(first + i)), range);
}

// Elements [first, first + count), at most a block.
void writeBlock(const ProgramInput& input, uint64_t key, uint64_t first, size_t count, std::byte* to) {
  if (isFloatingPoint(input.data_type)) {
    double block[kBlock];
    makeNumbers(input.drawn.value_or(RandomNumbers{RandomNumbers::Kind::kNormal}), key, first,
                {block, count});
    convertElements(DataType::kFloat64, block, input.data_type, to, count);
  } else if (input.drawn) {
    for (size_t i = 0; i < count; ++i)
      to[i] = std::byte{uniform(mixBits(key ^ mixBits(first + i))) < input.drawn->probability};
  } else {
    int64_t block[kBlock];
    makeIntegers(input, key, first, {block, count});
    convertElements(DataType::kInt64, block, input.data_type, to, count);
  }
}

}  // namespace

void writeRandomNumbers(const ProgramInput& input, uint64_t seed, int64_t step, const Shard& box,
                        std::span<std::byte> out) {
  if (input.drawn && input.drawn->kind == RandomNumbers::Kind::kTrue && input.drawn->probability >= 1) {
    std::fill(out.begin(), out.end(), std::byte{1});  // in an evaluation nothing is dropped
    return;
  }
  const size_t element_bytes = dataTypeSize(input.data_type);
  const uint64_t key = mixBits(mixBits(seed) ^ mixBits(step) * 3 ^ mixBits(hashBytes(input.name)));
  std::byte* to = out.data();
  forEachRun(input.shape, box, [&](int64_t first, int64_t count) {
    for (int64_t i = 0; i < count; i += kBlock) {
      const int64_t numbers = std::min(kBlock, count - i);
      writeBlock(input, key, first + i, numbers, to);
      to += numbers * element_bytes;
    }
  });
}

}  // namespace pipeshard
