// Keys that no query of a block sees: their scores are so far below the others that their probabilities are 0
// to the last bit, and nothing of them need be computed. A causal mask hides half of all.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/kernels/products/attention.h"

namespace pipeshard::kernels {

struct KeyRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

// Scores below kFarBelow are hidden wherever the largest of their row is above kNearby.
inline constexpr double kFarBelow = -1e30;
inline constexpr double kNearby = -1e29;

// Looks once at the overlays of all matrices that differ.
template <typename T>
class VisibleKeys {
 public:
  VisibleKeys(const AttentionShape& shape, const AttentionInputs<T>& inputs);

  // The keys outside are hidden from queries [first, first + count) of the matrix, if each of these has a
  // largest score above kNearby. All keys where products are not surely small beside the overlays.
  KeyRange of(int64_t matrix, int64_t first, int64_t count) const;

 private:
  void look(int64_t pattern, int64_t matrix, int64_t first);
  bool hasSmallProducts(int64_t matrix, int64_t first, int64_t count) const;
  void lookAtKeys();

  const AttentionShape& shape_;
  const AttentionInputs<T>& inputs_;
  std::vector<int64_t> pattern_;   // by matrix: which overlays; empty: none hides anything
  std::vector<KeyRange> visible_;  // by pattern and query
  bool hides_ = false;             // the mask does, not a bias alone
  struct Added {
    const ScoreOverlay* overlay;
    const T* bias;
  };
  std::vector<Added> added_;          // biases of which some element is not small
  std::vector<T> largest_key_;        // by matrix of keys: magnitude
  std::vector<uint8_t> are_numbers_;  // by matrix of keys: all of its values
};

}  // namespace pipeshard::kernels
