#include "partition/families/families.h"

#include <utility>

namespace pipeshard {

int64_t FamilyRequest::option(const std::string& key, int64_t otherwise) const {
  const auto found = options.find(key);
  return found == options.end() ? otherwise : found->second;
}

namespace {

BubbleFormula formula(std::string step, std::string useful, int64_t idle, int64_t work) {
  return {std::move(step), std::move(useful), static_cast<double>(idle) / static_cast<double>(idle + work),
          static_cast<double>(idle) / static_cast<double>(work)};
}

BubbleFormula sequentialBubble(int64_t p, int64_t /*m*/, int64_t /*v*/) {
  return formula("(p−1)/p", "p−1", p - 1, 1);
}

BubbleFormula flushBubble(int64_t p, int64_t m, int64_t /*v*/) {
  return formula("(p−1)/(m+p−1)", "(p−1)/m", p - 1, m);
}

BubbleFormula chunkedBubble(int64_t p, int64_t m, int64_t v) {
  if (m % p != 0) return {};
  return formula("(p−1)/(vm+p−1)", "(p−1)/(vm)", p - 1, v * m);
}

BubbleFormula zeroBubbleH1Bubble(int64_t p, int64_t m, int64_t /*v*/) {
  if (m < p) return {};
  return formula("(p−1)/(3m+p−1)", "(p−1)/(3m)", p - 1, 3 * m);
}

BubbleFormula zeroBubbleH2Bubble(int64_t p, int64_t m, int64_t v) {
  return m < 2 * p ? BubbleFormula() : zeroBubbleH1Bubble(p, m, v);
}

}  // namespace

const std::vector<FamilyEntry>& familyEntries() {
  static const std::vector<FamilyEntry> entries = {
      {{.name = "sequential",
        .description = "one microbatch after the other, forward and backward: plain model parallelism",
        .bubble = sequentialBubble},
       sequentialSchedule,
       {},
       1},
      {{.name = "gpipe",
        .description = "all forward passes, then all backward passes",
        .all_in_flight = true,
        .tried_as = 5,
        .bubble = flushBubble},
       gpipeSchedule,
       {},
       1},
      {{.name = "1f1b",
        .description = "one forward, one backward, with a flush: the bubble of gpipe, at most p "
                       "microbatches' activations",
        .tried_as = 1,
        .bubble = flushBubble},
       oneForwardOneBackwardSchedule,
       {},
       1},
      {{.name = "eager-1f1b",
        .description = "1f1b with `extra` more microbatches in flight, which hides transfers",
        .tried_as = 2},
       eagerOneForwardOneBackwardSchedule,
       {"extra"},
       1},
      {{.name = "interleaved",
        .description =
            "1f1b over v stages per rank, in groups of `group` microbatches: a bubble v times smaller",
        .chunks = 2,
        .tried_as = 8,
        .tried_chunks = {2, 3, 4},
        .bubble = chunkedBubble},
       interleavedSchedule,
       {"group"},
       0},
      {{.name = "looped-bfs",
        .description = "gpipe over v stages per rank: a bubble v times smaller, all activations held",
        .chunks = 2,
        .all_in_flight = true,
        .tried_as = 10,
        .tried_chunks = {2},
        .bubble = chunkedBubble},
       loopedBreadthFirstSchedule,
       {},
       0},
      {{.name = "zb-h1",
        .description =
            "1f1b with split backward passes: a third of its bubble at the memory of its first rank",
        .splits_backward = true,
        .tried_as = 3,
        .bubble = zeroBubbleH1Bubble},
       zeroBubbleH1Schedule,
       {},
       1},
      {{.name = "zb-h2",
        .description =
            "split backward passes and 2p-1 microbatches in flight: no bubble inside a rank's span",
        .splits_backward = true,
        .tried_as = 4,
        .bubble = zeroBubbleH2Bubble},
       zeroBubbleH2Schedule,
       {},
       1},
      {{.name = "interleaved-zb",
        .description =
            "interleaved with split backward passes, as torch's InterleavedZeroBubble; options v and `group`",
        .chunks = 2,
        .splits_backward = true,
        .tried_as = 9,
        .tried_chunks = {2}},
       interleavedZeroBubbleSchedule,
       {"group"},
       0},
      {{.name = "dual-pipe-v",
        .description =
            "forward and backward passes in pairs on two stages per rank, V placement; needs m >= 2p",
        .chunks = 2,
        .splits_backward = true,
        .placement = StagePlacement::kV,
        .tried_as = 13,
        .tried_chunks = {2}},
       dualPipeVSchedule,
       {},
       1},
      {{.name = "forward-only",
        .description = "forward passes only, for evaluation; option v",
        .forward_only = true},
       forwardOnlySchedule,
       {},
       0},
      {{.name = "pipedream",
        .description = "asynchronous: an update after every microbatch, weights stashed for its backward "
                       "pass; replicas of "
                       "a stage take microbatches in turn (rows=1: share the rows of each)",
        .asynchronous = true},
       pipeDreamSchedule,
       {"rows"},
       1},
      {{.name = "pipedream-vertical",
        .description = "pipedream with vertical sync: all stages read one version for a microbatch",
        .asynchronous = true},
       pipeDreamVerticalSchedule,
       {"rows"},
       1},
      {{.name = "pipedream-2bw",
        .description =
            "asynchronous: an update after every m >= p microbatches (option m), two versions of the weights",
        .asynchronous = true},
       pipeDreamTwoBufferSchedule,
       {"m", "rows"},
       1},
      {{.name = "zb-1p",
        .description =
            "zero bubble, found for given times within the memory of 1f1b (option limit: microbatches' "
            "activations)",
        .splits_backward = true,
        .automatic = true,
        .tried_as = 6},
       zeroBubbleOneSchedule,
       {"limit"},
       1},
      {{.name = "zb-2p",
        .description = "zero bubble, found for given times within twice the memory of 1f1b (option limit)",
        .splits_backward = true,
        .automatic = true,
        .tried_as = 7},
       zeroBubbleTwoSchedule,
       {"limit"},
       1},
      {{.name = "1f1b-v",
        .description =
            "1f1b over two stages per rank, placed forth and back: two thirds of the memory of 1f1b",
        .chunks = 2,
        .placement = StagePlacement::kV,
        .tried_as = 11,
        .tried_chunks = {2}},
       oneForwardOneBackwardVSchedule,
       {},
       1},
      {{.name = "zbv",
        .description = "zero bubble over two stages per rank, placed forth and back: the memory of 1f1b",
        .chunks = 2,
        .splits_backward = true,
        .placement = StagePlacement::kV,
        .tried_as = 12,
        .tried_chunks = {2}},
       zbvSchedule,
       {},
       1},
      {{.name = "v-half",
        .description = "as zbv with half the memory of 1f1b and one microbatch's (option limit: "
                       "microbatches' activations)",
        .chunks = 2,
        .splits_backward = true,
        .automatic = true,
        .placement = StagePlacement::kV,
        .tried_as = 14,
        .tried_chunks = {2}},
       vHalfSchedule,
       {"limit"},
       1},
      {{.name = "v-min",
        .description = "as zbv with a third of the memory of 1f1b, rounded up (option limit)",
        .chunks = 2,
        .splits_backward = true,
        .automatic = true,
        .placement = StagePlacement::kV,
        .tried_as = 15,
        .tried_chunks = {2}},
       vMinSchedule,
       {"limit"},
       1},
  };
  return entries;
}

RankOfStage loopedPlacement(int ranks, int stages) {
  RankOfStage rank_of_stage;
  for (int stage = 0; stage < stages; ++stage) rank_of_stage.push_back(PipelineRankId(stage % ranks));
  return rank_of_stage;
}

RankOfStage vPlacement(int ranks) {
  RankOfStage rank_of_stage;
  for (int stage = 0; stage < 2 * ranks; ++stage)
    rank_of_stage.push_back(PipelineRankId(stage < ranks ? stage : 2 * ranks - 1 - stage));
  return rank_of_stage;
}

}  // namespace pipeshard
