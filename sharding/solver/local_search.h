// Improves a choice by moves. A move frees some nodes and optimises these together, exactly, by elimination;
// all others keep their labels. Bytes have prices meanwhile: where the answer exceeds the memory by more than
// the present choice does, the prices of the fullest rows rise and the move is tried again, a few times.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "sharding/solver/elimination.h"
#include "sharding/solver/random.h"
#include "sharding/solver/state.h"

namespace pipeshard::solver {

class LocalSearch {
 public:
  // Model, memory and prices must stay as they are.
  LocalSearch(const Model& model, const Memory& memory, const std::vector<double>& prices,
              std::vector<int32_t> labels, uint64_t seed);

  // A few moves, side by side, from the same choice; those that still improve it after those before are made.
  // The outcome does not depend on the number of threads. `stop` is asked between eliminations. Returns
  // whether the score improved.
  bool round(int threads, const std::function<bool()>& stop);

  // Labels near the present ones but elsewhere: one node is given another label, and its neighbourhood
  // follows. They may be worse in all ways.
  std::vector<int32_t> kicked(uint64_t seed) const;
  void setLabels(std::vector<int32_t> labels) { state_ = State(model_, memory_, std::move(labels)); }

  const State& state() const { return state_; }
  // Table entries visited so far.
  int64_t work() const { return work_; }

 private:
  struct Move {
    std::vector<Change> changes;  // none: nothing better was found
    int64_t work = 0;
  };
  Move tryMove(uint64_t seed, const std::function<bool()>& stop) const;
  std::vector<int32_t> chooseRegion(Random& random) const;
  std::vector<int32_t> ball(int32_t centre, size_t size, Random& random) const;
  void optimise(const std::vector<int32_t>& order, double price_factor, const std::function<bool()>& stop,
                Move& move) const;
  void setCosts(const Elimination& elimination, const std::vector<double>& prefix,
                std::vector<double>& costs) const;
  double pricedGain(const std::vector<Change>& changes, const Score& after,
                    const std::vector<double>& prefix) const;

  const Model& model_;
  const Memory& memory_;
  const std::vector<double>& prices_;
  std::vector<int32_t> alive_;
  State state_;
  uint64_t seed_;
  uint64_t rounds_ = 0;
  int64_t work_ = 0;
};

}  // namespace pipeshard::solver
