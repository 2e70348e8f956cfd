// v-half, v-min: orders of two stages per rank in the V placement, found for given times, transfer time and
// memory limit.
//
// One trial runs the ranks along the simulated time. A rank takes, of its next F and I of both stages, what
// can start first; what starts at the same time in a fixed order of preference; a W in a gap before that of
// at least `fill_permille` of a W. F of the first stage is held back while `in_flight` microbatches are
// between it and their last I on this rank.
//
// No rank can get stuck: F of the first stage leaves room for an F of the second and what its I takes, so the
// oldest microbatch can always go on, and its W frees what it has.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "partition/families/families.h"
#include "partition/families/zero_bubble_automatic.h"

namespace pipeshard {

struct VRules {
  int in_flight = 1;
  std::array<int, 4> preference = {
      1, 0, 3, 2};  // of F of the first stage, F and I of the second, I of the first; 0 first
  int64_t fill_permille = 0;
};

// Times of the trial are in half units: a stage takes half of what a rank's share takes.
AutomaticTrial vTrial(const FamilyRequest& request, int64_t limit,
                      const std::vector<VRules>& rules);  // rules[rank]

// The most that `in_flight` can be under the limit; at least 1 for a limit of checkAutomaticCosts.
int mostInFlight(const FamilyRequest& request, int64_t limit);

}  // namespace pipeshard
