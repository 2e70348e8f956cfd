// Stages: runs of consecutive layers.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/base/ids.h"

namespace pipeshard {

struct StageProblem {
  IdVector<LayerId, int64_t> weight;     // not negative
  IdVector<LayerId, int64_t> cut_bytes;  // of the cut behind the layer
  // by stage: how many devices share its weight; {1, 1, 1}: three stages of one device
  std::vector<int> widths;
  bool even = false;         // spread what the largest stage leaves open evenly, too
  int64_t least_weight = 0;  // that every stage must have
  // by layer: a stage may end behind it (the last always may); empty: behind any
  IdVector<LayerId, bool> may_end = {};
};

// Cuts layers into exactly widths.size() non-empty stages; returns the last layer of each. Exact, by dynamic
// programming in O(stages * layers^2). Among the partitions in which every stage has the least weight and
// ends where it may, the one where
//   1. the largest weight per device, sum(weight) / width, is least: a slow stage stalls the others in every
//      microbatch, so the largest decides the time of a pipeline (the contiguous min-max partition of
//      PipeDream, Narayanan et al. 2019, section 3.1, and Alpa, Zheng et al. 2022, section 5);
//   2. if `even`: the sum over stages of sum(weight)^2 / width is least, so that five equal layers make four
//      stages of 2,1,1,1 and not of 2,2,1,0 weights when layers without weight could fill a stage;
//   3. the sum of cut_bytes at the cuts is least;
//   4. the cuts are earliest (the first, then the second, ...).
// Weights per device are compared as weight * 720720 / width, rounded down: exactly for widths up to 16.
// Requires 1 <= stages <= layers, widths of at least 1, and that some partition gives every stage the least
// weight and ends its stages where they may.
//   assignStages({.weight = {1,1,1,1}, .cut_bytes = {1,1,1,0}, .widths = {1,3}}) == {0,3}
std::vector<LayerId> assignStages(const StageProblem& problem);

// The same for `stages` stages of one device, not even, any weight.
//   assignStages({2,1,1,2}, {5,5,5,0}, 2) == {1,3};   assignStages({1,1,1,1,9}, {1,9,3,4,0}, 2) == {3,4}
std::vector<LayerId> assignStages(const IdVector<LayerId, int64_t>& cost,
                                  const IdVector<LayerId, int64_t>& cut_bytes, int stages);

}  // namespace pipeshard
