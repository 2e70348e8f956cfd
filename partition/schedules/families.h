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

// partition/schedules/asynchronous.cc
//
// Asynchronous schedules. `microbatches` are those of a window of several updates, in which the pipeline is never empty; it drains at
// the window's end. U is an update of the stage's weights; "reads" is the version of the weights that F and B of microbatch 0, 1, ... use.
// Between the ends of a window nobody idles: makespan m (tF+tB) + (p-1)(tF+tB), whatever the number of updates. Peak activations as 1f1b.
//
// pipedream: 1f1b with an update after every backward pass, and weight stashing: B reads the version that F has read. Narayanan et al.
// 2019, "PipeDream: Generalized Pipeline Parallelism for DNN Training", section 3.3. Microbatch i on stage s reads version max(0, i -
// (p-1-s)); at most min(p-s, m) versions live on it.
//   p=2, m=4        rank 0  F0 F1 .  B0 U F2 B1 U F3 B2 U .  B3 U    reads 0 0 1 2
//                   rank 1  .  F0 B0 U F1 B1 U F2 B2 U F3 B3 U       reads 0 1 2 3
Schedule pipeDreamSchedule(const FamilyRequest& request);
//
// pipedream-vertical: the same order with vertical sync (same section): every stage reads the version that stage 0 has read,
// max(0, i - (p-1)); at most min(p, m) versions live on each stage.
Schedule pipeDreamVerticalSchedule(const FamilyRequest& request);
//
// pipedream-2bw: double-buffered weight updates. Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel DNN Training", section 3.1.
// An update takes option m microbatches (default p, at least p; the window is a multiple); those of batch t read version max(0, t-1);
// at most two versions live on each stage.
//   p=2, m=4, option m=2    rank 0  F0 F1 .  B0 F2 B1 U F3 B2 .  B3 U     reads 0 0 0 0
//                           rank 1  .  F0 B0 F1 B1 U F2 B2 F3 B3 U        reads 0 0 0 0
Schedule pipeDreamTwoBufferSchedule(const FamilyRequest& request);

}  // namespace pipeshard
