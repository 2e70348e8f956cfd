#include "partition/families/families.h"

namespace pipeshard {

int64_t FamilyRequest::option(const std::string& key, int64_t otherwise) const {
  const auto found = options.find(key);
  return found == options.end() ? otherwise : found->second;
}

const std::vector<FamilyEntry>& familyEntries() {
  static const std::vector<FamilyEntry> entries = {
      {{"sequential", "one microbatch after the other, forward and backward: plain model parallelism"},
       sequentialSchedule,
       {},
       1},
      {{"gpipe", "all forward passes, then all backward passes"}, gpipeSchedule, {}, 1},
      {{"1f1b",
        "one forward, one backward, with a flush: the bubble of gpipe, at most p microbatches' activations"},
       oneForwardOneBackwardSchedule,
       {},
       1},
      {{"eager-1f1b", "1f1b with `extra` more microbatches in flight, which hides transfers"},
       eagerOneForwardOneBackwardSchedule,
       {"extra"},
       1},
      {{"interleaved",
        "1f1b over v stages per rank, in groups of `group` microbatches: a bubble v times smaller", 2},
       interleavedSchedule,
       {"group"},
       0},
      {{"looped-bfs", "gpipe over v stages per rank: a bubble v times smaller, all activations held", 2},
       loopedBreadthFirstSchedule,
       {},
       0},
      {{"zb-h1", "1f1b with split backward passes: a third of its bubble at the memory of its first rank", 1,
        false, true},
       zeroBubbleH1Schedule,
       {},
       1},
      {{"zb-h2", "split backward passes and 2p-1 microbatches in flight: no bubble inside a rank's span", 1,
        false, true},
       zeroBubbleH2Schedule,
       {},
       1},
      {{"interleaved-zb",
        "interleaved with split backward passes, as torch's InterleavedZeroBubble; options v and `group`", 2,
        false, true},
       interleavedZeroBubbleSchedule,
       {"group"},
       0},
      {{"dual-pipe-v",
        "forward and backward passes in pairs on two stages per rank, V placement; needs m >= 2p", 2, false,
        true},
       dualPipeVSchedule,
       {},
       1},
      {{"forward-only", "forward passes only, for evaluation; option v"}, forwardOnlySchedule, {}, 0},
      {{"pipedream",
        "asynchronous: an update after every microbatch, weights stashed for its backward pass; replicas of "
        "a stage take microbatches in turn (rows=1: share the rows of each)",
        1, true},
       pipeDreamSchedule,
       {"rows"},
       1},
      {{"pipedream-vertical", "pipedream with vertical sync: all stages read one version for a microbatch", 1,
        true},
       pipeDreamVerticalSchedule,
       {"rows"},
       1},
      {{"pipedream-2bw",
        "asynchronous: an update after every m >= p microbatches (option m), two versions of the weights", 1,
        true},
       pipeDreamTwoBufferSchedule,
       {"m", "rows"},
       1},
      {{"zb-1p",
        "zero bubble, found for given times within the memory of 1f1b (option limit: microbatches' "
        "activations)",
        1, false, true},
       zeroBubbleOneSchedule,
       {"limit"},
       1},
      {{"zb-2p", "zero bubble, found for given times within twice the memory of 1f1b (option limit)", 1,
        false, true},
       zeroBubbleTwoSchedule,
       {"limit"},
       1},
      {{"1f1b-v", "1f1b over two stages per rank, placed forth and back: two thirds of the memory of 1f1b",
        2},
       oneForwardOneBackwardVSchedule,
       {},
       1},
      {{"zbv", "zero bubble over two stages per rank, placed forth and back: the memory of 1f1b", 2, false,
        true},
       zbvSchedule,
       {},
       1},
      {{"v-half",
        "as zbv with half the memory of 1f1b and one microbatch's (option limit: microbatches' activations)",
        2, false, true},
       vHalfSchedule,
       {"limit"},
       1},
      {{"v-min", "as zbv with a third of the memory of 1f1b, rounded up (option limit)", 2, false, true},
       vMinSchedule,
       {"limit"},
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
  for (int stage = 0; stage < 2 * ranks; ++stage)
    rank_of_stage.push_back(stage < ranks ? stage : 2 * ranks - 1 - stage);
  return rank_of_stage;
}

}  // namespace pipeshard
