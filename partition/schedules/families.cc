#include "partition/schedules/families.h"

namespace pipeshard {

int64_t FamilyRequest::option(const std::string& key, int64_t otherwise) const {
  const auto found = options.find(key);
  return found == options.end() ? otherwise : found->second;
}

const std::vector<FamilyEntry>& familyEntries() {
  static const std::vector<FamilyEntry> entries = {
      {{"sequential", "one microbatch after the other, forward and backward: plain model parallelism"}, sequentialSchedule, {}, 1},
      {{"gpipe", "all forward passes, then all backward passes"}, gpipeSchedule, {}, 1},
      {{"1f1b", "one forward, one backward, with a flush: the bubble of gpipe, at most p microbatches' activations"},
       oneForwardOneBackwardSchedule,
       {},
       1},
      {{"pipedream", "asynchronous: an update after every microbatch, weights stashed for its backward pass", 1, true},
       pipeDreamSchedule,
       {},
       1},
      {{"pipedream-vertical", "pipedream with vertical sync: all stages read one version for a microbatch", 1, true},
       pipeDreamVerticalSchedule,
       {},
       1},
      {{"pipedream-2bw", "asynchronous: an update after every m >= p microbatches (option m), two versions of the weights", 1, true},
       pipeDreamTwoBufferSchedule,
       {"m"},
       1},
  };
  return entries;
}

std::vector<int> loopedPlacement(int ranks, int stages) {
  std::vector<int> rank_of_stage;
  for (int stage = 0; stage < stages; ++stage) rank_of_stage.push_back(stage % ranks);
  return rank_of_stage;
}

std::vector<int> vPlacement(int ranks) {
  std::vector<int> rank_of_stage;
  for (int stage = 0; stage < 2 * ranks; ++stage) rank_of_stage.push_back(stage < ranks ? stage : 2 * ranks - 1 - stage);
  return rank_of_stage;
}

}  // namespace pipeshard
