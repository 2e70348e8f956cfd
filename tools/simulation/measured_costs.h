// Durations that a trace has measured, for simulatePrograms: what a step would take with these programs, on
// that machine.
#pragma once

#include <compare>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ir/trace/trace_event.h"
#include "partition/simulation/program_simulation.h"

namespace pipeshard {

// The upper one of two in the middle; 0 of none.
Ticks medianOf(std::vector<Ticks> times);

// What computing and copying took, by rank and by what it is: the microbatches of a stage take equally long.
class MeasuredDurations {
 public:
  // Of a file that tracesToJson wrote (`run --trace`). The first step is left out where there are others: it
  // touches memory for the first time. Errors: kMissingInput, kConfiguration naming the file.
  static MeasuredDurations read(const std::string& path);

  // Replaces the costs of instructions without collectives that the trace has: the median of the same on the
  // same rank, else (a plan of another shape) on any rank. A backward pass that ran whole and is now in
  // halves, or the reverse, takes as long as both halves; these share it as they were estimated. Returns the
  // first forward or backward pass that the trace lacks, by name; "" if it has all.
  std::string apply(const Program& program, ProgramCosts& costs) const;

 private:
  // What counts as the same: a pass by its stage; all else by its name, but for numbers of microbatches.
  struct Key {
    TraceWork work;
    StageId stage;     // invalid: of no pass
    std::string name;  // "": of a pass
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  using FirstPasses = std::map<Key, Ticks>;  // of each stage, in a program
  static Key keyOf(const TraceEvent& event);
  std::optional<Ticks> measured(RankId rank, const Key& key) const;
  // Of a backward pass or a half from what was measured in the other form.
  std::optional<Ticks> otherForm(RankId rank, const Key& key, const FirstPasses& estimated) const;

  std::map<std::pair<RankId, Key>, Ticks> by_rank_;
  std::map<Key, Ticks> anywhere_;
};

}  // namespace pipeshard
