// Schedules of the V placement (rank r holds stages r and 2p-1-r) that repeat a pattern: microbatch k runs as
// microbatch 0 does, 6 slots later per microbatch, the time that a rank needs for one. Qi et al. 2024,
// "Pipeline Parallelism with Controllable Memory", section 3 and appendix: how long a pattern keeps a
// microbatch decides the memory, and any pattern whose passes do not collide modulo 6 runs without idling
// between the first and the last microbatches.
#pragma once

#include <vector>

#include "partition/families/families.h"

namespace pipeshard {

// By stage: the slot in which each pass of microbatch 0 starts. F, I and W take one slot, B two.
struct VPattern {
  int ranks = 1;
  bool splits_backward = false;
  IdVector<StageId, int> forward, backward, weight;  // backward: of B or I; weight: empty where B is whole
};

// The pattern that keeps microbatches shortest: each F one slot after the one before, each I too. (Where 3
// divides p, the first I waits two slots, or it would collide with a forward pass.) A rank holds 2
// floor((p+4)/3) stages' activations, 1/3 of 1F1B's in the limit.
VPattern shortestSplitPattern(int ranks);
// The same with whole backward passes: two slots each, and three more after every third. 2 floor((2p+3)/3)
// stages, 2/3 of 1F1B's.
VPattern shortestWholePattern(int ranks);

// m microbatches of the pattern: each pass, in order of its slot, moves to the first gap of its rank after
// what it needs, forward passes only where the rank then holds no more activations than the pattern itself at
// its peak.
ScheduleOrders unrollPattern(const VPattern& pattern, int microbatches);

}  // namespace pipeshard
