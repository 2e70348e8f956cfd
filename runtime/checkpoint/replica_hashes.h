// A watch for silent corruption: ranks that hold copies of the same part of a parameter, an optimizer's state
// or a running statistic must hold the same bits. Each says what its parts hash to; whoever hears all of them
// compares.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ir/base/ids.h"
#include "runtime/execute/executor.h"

namespace pipeshard {

// Of all that the rank keeps from one step to the next, as it is now, after `step`: a text for each part, its
// hash (16 digits, XXH3), its tensor's name in checkpoints (rank_state.h) and its box:
//   "00c1f1ae41f1a5d2 parameter/wte [0,0]+[50,32]"
// For tests: where the environment's PIPESHARD_FLIP_BIT is "RANK:STEP" of this one, a bit of its first part
// is inverted before.
std::vector<std::string> replicaHashes(Executor& executor, int64_t step);
// So many go into one message.
inline constexpr size_t kHashesAtOnce = 1000;

// Compares what the ranks have said of a step.
class ReplicaCheck {
 public:
  explicit ReplicaCheck(int ranks) : ranks_(ranks) {}

  // `is_last`: the rank has no more. What differs, in one line that names the part and the ranks, when all
  // ranks have said what they have; where more than two hold copies, whose is unlike most. Nothing before,
  // and where all is well. Error(kInternal) for a text that is none.
  std::optional<std::string> take(RankId rank, int64_t step, const std::vector<std::string>& texts,
                                  bool is_last);
  // A step was compared, and no part of it was held twice: there is nothing to compare in this job.
  bool hasNoCopies() const { return has_no_copies_; }

 private:
  using ByHash = std::map<std::string, std::vector<RankId>>;
  struct Said {
    std::map<std::string, ByHash> parts;
    int complete = 0;  // ranks
  };
  static std::string describe(const std::string& part, const ByHash& groups);

  int ranks_;
  std::map<int64_t, Said> said_;  // by step
  bool has_no_copies_ = false;
};

}  // namespace pipeshard
