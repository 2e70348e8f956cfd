// Schedules as small pure functions: for each rank the order of its forward and backward passes.
//
// F is the forward pass of one microbatch through one stage, B its whole backward pass (input gradients, then weight
// gradients; I and W are the two halves, for schedules that part them). p stages, m microbatches, tF and tB the time of a
// pass through one stage, A the activation bytes that a stage keeps from F to B of one microbatch.
//
// Every schedule here runs the backward passes of a stage in ascending order of microbatches. Gradients are thus added up
// in the same order in all of them, and the results of a step are equal bit by bit.
//
// sequential: a microbatch goes forward through all stages and backward again before the next one starts. Plain model
// parallelism; the reference for the others.
//   p=2, m=2, tF=1, tB=2       rank 0  F0 .  .  .  B0 B0 F1 .  .  .  B1 B1
//                              rank 1  .  F0 B0 B0 .  .  .  F1 B1 B1 .  .
//   makespan m p (tF+tB);  idle/makespan (p-1)/p;  peak activations A on every rank.
//
// gpipe: all forwards, then all backwards. Huang et al. 2019, "GPipe: Efficient Training of Giant Neural Networks using
// Pipeline Parallelism", section 2.3 (there with backwards in descending order; the makespan is the same).
//   p=2, m=3, tF=1, tB=2       rank 0  F0 F1 F2 .  .  .  B0 B0 B1 B1 B2 B2
//                              rank 1  .  F0 F1 F2 B0 B0 B1 B1 B2 B2 .  .
//   makespan (m+p-1)(tF+tB);  idle/makespan (p-1)/(m+p-1), idle/useful (p-1)/m;  peak activations m A on every rank.
//
// 1f1b: rank s starts with min(p-1-s, m) forwards, then alternates one forward and one backward, then drains. Narayanan et
// al. 2019, "PipeDream", section 3.2, with a flush at the end of the step as in Fan et al. 2021, "DAPPLE", section 3.2, and
// Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters", section 2.2.
//   p=2, m=3, tF=1, tB=2       rank 0  F0 F1 .  .  B0 B0 F2 B1 B1 .  B2 B2
//                              rank 1  .  F0 B0 B0 F1 B1 B1 F2 B2 B2 .  .
//   makespan and idle as gpipe;  peak activations min(p-s, m) A on rank s.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pipeshard {

enum class ActionKind : char { kForward = 'F', kBackward = 'B', kBackwardInput = 'I', kBackwardWeight = 'W' };

struct Action {
  int stage = 0;
  ActionKind kind = ActionKind::kForward;
  int microbatch = 0;
  friend bool operator==(const Action&, const Action&) = default;
};
std::string actionToString(const Action& action);  // "2F3": stage, kind, microbatch

// orders[rank]: the actions of the rank (= stage here), first to last.
using ScheduleOrders = std::vector<std::vector<Action>>;

// All names, for --help and messages.
const std::vector<std::string>& scheduleNames();
// Throws Error(kUsage) for an unknown name, listing those that exist. stages >= 1, microbatches >= 1 (fewer microbatches
// than stages are fine).
ScheduleOrders makeSchedule(std::string_view name, int stages, int microbatches);

// Completeness, order (F before B, upstream before downstream) and freedom from deadlock; Error(kInternal) otherwise.
void verifySchedule(const ScheduleOrders& orders, int microbatches);

// The most microbatches of which the rank holds activations at once: from F to B (or to W, where B is in halves).
int64_t peakActivations(const std::vector<Action>& order);

}  // namespace pipeshard
