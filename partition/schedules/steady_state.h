// The steady state of a schedule: the iterations in which every pipeline rank does the same to the next
// microbatches. What is done in it need not be looked at in each of them.
//
//   1F1B, 2 ranks, 8 microbatches   rank 0: F0 F1 B0 F2 B1 F3 B2 ... F7 B6 B7     from F1 B0 on 7 iterations
//                                   rank 1: F0 B0 F1 B1 ... F7 B7                 8 iterations
//   without 4 of them               rank 0: F0 F1 B0 F2 B1 F3 B2 B3               rank 1: F0 B0 ... F3 B3
#pragma once

#include <optional>
#include <vector>

#include "ir/program/loops.h"
#include "partition/schedules/schedule.h"

namespace pipeshard {

// The schedule that it is of outlives it.
class SteadyState {
 public:
  // Nothing: no such state is found, as with a schedule of few microbatches, or without a period, or an
  // asynchronous one.
  static std::optional<SteadyState> of(const Schedule& schedule);

  // How many microbatches an iteration takes.
  int period() const { return period_; }
  // How many iterations can be left out; the rest still has a steady state, long enough for what depends on
  // a few iterations before (which messages a rank knows to have come, say).
  int most() const { return most_; }
  // The schedule of so many iterations less. It passes verifySchedule.
  Schedule without(int iterations) const;

 private:
  explicit SteadyState(const Schedule& schedule) : schedule_(schedule) {}

  bool find();
  std::vector<Action> shortened(PipelineRankId rank, int iterations) const;

  const Schedule& schedule_;
  IdVector<PipelineRankId, std::vector<Loop>> loops_;  // of the orders
  int period_ = 1;
  int most_ = 0;
};

}  // namespace pipeshard
