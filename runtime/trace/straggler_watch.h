// A rank that computes for longer than others that do the same, or than it did itself before while others do
// not: a processor that is shared or too hot, a machine that swaps. Its job waits for it in every step.
#pragma once

#include <cstddef>
#include <optional>

#include "ir/base/ids.h"

namespace pipeshard {

struct Straggler {
  RankId rank;
  double times = 0;          // as long as the others, or as before
  bool than_before = false;  // nobody else does the same
  double seconds = 0;        // of computing in a step, in the mean
};

// Looks at spans of at least 16 steps and 2 seconds of computing; who is half as slow again in two spans, one
// behind the other, is told of once, until it is as fast as others again.
class StragglerWatch {
 public:
  // By rank: ranks of one kind run the same program.
  explicit StragglerWatch(IdVector<RankId, size_t> kinds);

  // What ranks have computed in a step, in seconds, without waiting and transfers.
  std::optional<Straggler> take(const IdVector<RankId, double>& compute_seconds);

 private:
  struct Rank {
    double sum = 0;         // of this span
    double best = 0;        // the least mean of a span so far; 0: none yet
    bool was_slow = false;  // in the last span
    bool was_told = false;
  };
  std::optional<Straggler> endSpan();
  double growthOfOthers(RankId rank) const;
  Straggler lookAt(RankId rank, double others_growth) const;

  IdVector<RankId, size_t> kinds_;
  IdVector<RankId, Rank> ranks_;
  int steps_ = 0;  // of this span
  bool is_first_step_ = true;
};

}  // namespace pipeshard
