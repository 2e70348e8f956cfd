// One trial of a schedule that is searched (zb-1p, zb-2p; v-half and v-min share what is about costs, limits
// and given orders): orders of one stage per pipeline rank, made by rules along the simulated time.
//
// The rank that can decide first takes its next pass:
//   no F while `in_flight` microbatches are between their F and I on this rank;
//   until its first I, forward passes as long as they end before that I can start (`delay_backward`: longer)
//     and memory has room;
//   then whichever of F and I can start first; an F that would make an I wait is put off unless the pass
//     before was that I (`forward_first`: never put off);
//   a W when nothing else can start before so much of a W has passed (`fill_permille`); or, with
//     `level_idle`, when otherwise this rank would idle more than any other; both only while more than
//     `weight_lag` of them wait; and when memory has no room for the next F.
//
// No rank can get stuck: an F is taken only if its I has room, too, and a W always frees. Internal to
// partition/families/.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "ir/base/error.h"
#include "partition/families/families.h"

namespace pipeshard {

// How one rank decides.
struct AutomaticRules {
  bool delay_backward = false;
  bool forward_first = false;
  bool level_idle = false;
  int64_t fill_permille = 1;
  int in_flight = 1;
  int weight_lag = 0;
};

struct AutomaticTrial {
  ScheduleOrders orders;
  int64_t span = 0;  // of the rank with the longest one, from its first start to its last end
  int64_t makespan = 0;
};

// Until all passes are taken: the rank that can begin first takes its next pass, and it and its neighbours
// decide anew what they would do. A rank has `next.start` (kNeverStarts where it knows of nothing), `order`,
// `now` and `first_start`; take(rank) runs its `next`.
inline constexpr int64_t kNeverStarts = std::numeric_limits<int64_t>::max() / 4;
template <typename Rank, typename Decide, typename Take>
AutomaticTrial runGreedily(std::vector<Rank>& ranks, size_t passes, const Decide& decide, const Take& take) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) decide(rank);
  for (size_t left = passes; left > 0; --left) {
    const auto first = std::min_element(
        ranks.begin(), ranks.end(), [](const Rank& a, const Rank& b) { return a.next.start < b.next.start; });
    PIPESHARD_CHECK(first->next.start < kNeverStarts, "{} passes are left and no rank can run one", left);
    const size_t rank = first - ranks.begin();
    take(rank);
    if (rank > 0) decide(rank - 1);
    decide(rank);
    if (rank + 1 < ranks.size()) decide(rank + 1);
  }
  AutomaticTrial result;
  for (Rank& rank : ranks) {
    result.orders.push_back(std::move(rank.order));
    result.makespan = std::max(result.makespan, rank.now);
    result.span = std::max(result.span, rank.now - rank.first_start);
  }
  return result;
}

// `limit`: bytes (or the unit of the costs' memory) that no rank's passes exceed; rules[rank]. Costs and
// limit are checkAutomaticCosts'.
AutomaticTrial automaticTrial(const FamilyRequest& request, int64_t limit,
                              const std::vector<AutomaticRules>& rules);

// What a given order takes, if no rank exceeds the limit. Of one or two stages per rank: times are in units
// or half units.
std::optional<AutomaticTrial> fixedTrial(const FamilyRequest& request, int64_t limit, Schedule schedule);

// No order has a shorter longest span, whatever the limit: a rank's own work; and the way of the first
// microbatch to the last rank, the F and I of all microbatches there, the way back of the last one, and its
// W.
int64_t automaticSpanBound(const FamilyRequest& request);

// Whether a W may run in a gap of this length: at least `permille` of it must fit. Not in one of length 0.
bool fillsGap(int64_t gap, int64_t weight_time, int64_t permille);

// The option limit=N, or `otherwise`, in bytes: N times forward_memory. Errors: kConfiguration where times
// are negative, where F, I and W do not add up to 0 or W adds memory, and where the limit has no room for one
// microbatch of `chunks` stages per rank (says which has).
int64_t checkAutomaticCosts(const FamilyRequest& request, int64_t otherwise, int chunks);

}  // namespace pipeshard
