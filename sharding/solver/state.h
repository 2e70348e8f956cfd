// A choice of labels with its cost and its bytes in rows, kept up to date under changes.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "sharding/solver/memory.h"
#include "sharding/solver/model.h"

namespace pipeshard::solver {

// First the bytes over the capacity, summed over rows, then the cost.
struct Score {
  double excess = 0;
  double cost = 0;

  bool betterThan(const Score& other) const {
    return excess != other.excess ? excess < other.excess : cost < other.cost;
  }
};

using Change = std::pair<int32_t, int32_t>;  // node, new label

class State {
 public:
  State(const Model& model, const Memory& memory, std::vector<int32_t> labels);

  const std::vector<int32_t>& labels() const { return labels_; }
  const Score& score() const { return score_; }
  // Neither forbidden nor over a capacity.
  bool feasible() const { return score_.excess == 0 && score_.cost < model_->big; }
  const std::vector<int64_t>& usage() const { return usage_; }

  // The score after the changes (nodes at most once), without making them. `usage`, if given, gets the bytes
  // in rows.
  Score scoreAfter(const std::vector<Change>& changes, std::vector<int64_t>* usage = nullptr) const;
  void apply(const std::vector<Change>& changes);
  // The rows that hold the most bytes over capacity among neighbouring rows that are too full.
  std::vector<int32_t> peaks(const std::vector<int64_t>& usage) const;

 private:
  const Model* model_;
  const Memory* memory_;
  std::vector<int32_t> labels_;
  std::vector<int64_t> usage_;
  Score score_;
};

}  // namespace pipeshard::solver
