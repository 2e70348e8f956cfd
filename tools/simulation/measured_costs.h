// Durations that a trace has measured, for simulatePrograms: what a step would take with these programs, on
// that machine.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "partition/simulation/program_simulation.h"

namespace pipeshard {

// What computing and copying took, by rank and name ("0F3" counts as "0F": the microbatches of a stage take
// equally long).
class MeasuredDurations {
 public:
  // Of a file that tracesToJson wrote (`run --trace`). The first step is left out where there are others: it
  // touches memory for the first time. Errors: kMissingInput, kConfiguration naming the file.
  static MeasuredDurations read(const std::string& path);

  // Replaces the costs of instructions without collectives that the trace has: the median of the same on the
  // same rank, else (a plan of another shape) on any rank. Returns the first forward or backward pass that
  // the trace lacks, by name; "" if it has all.
  std::string apply(const Program& program, ProgramCosts& costs) const;

 private:
  std::map<std::pair<int, std::string>, Ticks> by_rank_;
  std::map<std::string, Ticks> anywhere_;
};

}  // namespace pipeshard
