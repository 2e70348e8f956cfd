// What devices need and have.
#pragma once

#include <cstdint>

#include "tools/planning.h"

namespace pipeshard {

// What the rank's worker will allocate: its arena (runtime/memory_plan.h) and constants.
int64_t plannedMemory(const RankProgram& rank);

// The rank that needs most beyond what it has, as --memory says or else its device's kind; with no limits none does: -1.
struct Shortage {
  int rank = -1;
  int64_t needed = 0;
  int64_t room = 0;
  int64_t excess() const { return needed - room; }
};
Shortage largestShortage(const PartitionOptions& options, const StepPrograms& step);

}  // namespace pipeshard
