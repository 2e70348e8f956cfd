#include "runtime/data/row_permutation.h"

#include <bit>

#include "ir/base/hash.h"

namespace pipeshard {
namespace {

constexpr int kRounds = 6;

}  // namespace

RowPermutation::RowPermutation(int64_t count, uint64_t seed, int64_t epoch)
    : count_(count),
      key_(mixBits(mixBits(seed) + static_cast<uint64_t>(epoch))),
      half_bits_((std::bit_width(static_cast<uint64_t>(count - 1)) + 1) / 2) {}

int64_t RowPermutation::operator()(int64_t place) const {
  if (count_ <= 1) return place;
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  auto number = static_cast<uint64_t>(place);
  do {
    uint64_t left = number >> half_bits_, right = number & mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t next = left ^ (mixBits(mixBits(key_ + round) ^ right) & mask);
      left = right;
      right = next;
    }
    number = left << half_bits_ | right;
  } while (number >= static_cast<uint64_t>(count_));
  return static_cast<int64_t>(number);
}

}  // namespace pipeshard
