// A permutation of rows that needs no memory per row.
#pragma once

#include <cstdint>

namespace pipeshard {

// Of the rows 0 to count-1, a function of (count, seed, epoch) alone. A Feistel network of six rounds over
// pairs of numbers of half the bits of count-1; what it puts beyond the rows goes through it again.
class RowPermutation {
 public:
  RowPermutation(int64_t count, uint64_t seed, int64_t epoch);
  // The row that stands at `place`; 0 <= place < count.
  int64_t operator()(int64_t place) const;

 private:
  int64_t count_;
  uint64_t key_;
  int half_bits_;
};

}  // namespace pipeshard
