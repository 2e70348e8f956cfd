// The functions behind makeSchedule, one per family, each with its timeline, formulas and source. Internal to partition/.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "partition/schedule.h"

namespace pipeshard {

// What a family's function gets: a request with its text taken apart.
struct FamilyRequest {
  int ranks = 1;
  int microbatches = 1;
  int chunks = 1;                          // v
  std::map<std::string, int64_t> options;  // "extra=2", but v
  ScheduleCosts costs;

  int64_t option(const std::string& key, int64_t otherwise) const;
};

// Fills everything but the name.
using FamilyFunction = Schedule (*)(const FamilyRequest& request);

struct FamilyEntry {
  ScheduleFamily about;
  FamilyFunction make = nullptr;
  std::vector<std::string> options;  // those it knows
  int most_chunks = 1;               // larger v is refused; 0: any
};
const std::vector<FamilyEntry>& familyEntries();

// S stages on p ranks: stage s on rank s mod p ("looped"), and forth and back ("V": two stages per rank, s and 2p-1-s).
std::vector<int> loopedPlacement(int ranks, int stages);
std::vector<int> vPlacement(int ranks);

// partition/schedules/fill_drain.cc
//
// sequential: a microbatch goes forward through all stages and backward again before the next one starts. Plain model
// parallelism; the reference for the others.
//   p=2, m=2, tF=1, tB=2       rank 0  F0 .  .  .  B0 B0 F1 .  .  .  B1 B1
//                              rank 1  .  F0 B0 B0 .  .  .  F1 B1 B1 .  .
//   makespan m p (tF+tB);  idle/makespan (p-1)/p;  peak activations A on every rank.
Schedule sequentialSchedule(const FamilyRequest& request);
//
// gpipe: all forwards, then all backwards. Huang et al. 2019, "GPipe: Efficient Training of Giant Neural Networks using
// Pipeline Parallelism", section 2.3 (there with backwards in descending order; the makespan is the same).
//   p=2, m=3, tF=1, tB=2       rank 0  F0 F1 F2 .  .  .  B0 B0 B1 B1 B2 B2
//                              rank 1  .  F0 F1 F2 B0 B0 B1 B1 B2 B2 .  .
//   makespan (m+p-1)(tF+tB);  idle/makespan (p-1)/(m+p-1), idle/useful (p-1)/m;  peak activations m A on every rank.
Schedule gpipeSchedule(const FamilyRequest& request);

// partition/schedules/one_forward_one_backward.cc
//
// 1f1b: rank s starts with min(p-1-s, m) forwards, then alternates one forward and one backward, then drains. Narayanan et
// al. 2019, "PipeDream", section 3.2, with a flush at the end of the step as in Fan et al. 2021, "DAPPLE", section 3.2, and
// Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters", section 2.2.
//   p=2, m=3, tF=1, tB=2       rank 0  F0 F1 .  .  B0 B0 F2 B1 B1 .  B2 B2
//                              rank 1  .  F0 B0 B0 F1 B1 B1 F2 B2 B2 .  .
//   makespan and idle as gpipe;  peak activations min(p-s, m) A on rank s.
Schedule oneForwardOneBackwardSchedule(const FamilyRequest& request);

}  // namespace pipeshard
