// How much memory a rank's worker will take, and which device has too little for it.
#pragma once

#include <cstdint>

#include "partition/stages/partition_options.h"
#include "planning/programs/planned_training.h"

namespace pipeshard {

// What the rank's worker will allocate: its arena (runtime/execute/memory_plan.h) and constants, with as many
// threads as the description of its node gives it (1 if that says no cores): plans do not depend on the
// machine that makes them.
int64_t plannedMemory(const RankProgram& rank, const Cluster& cluster);

// The rank that needs most beyond what it has, as --memory says or else its device's kind; with no limits
// none does: an invalid one.
struct Shortage {
  RankId rank = {};
  int64_t needed = 0;
  int64_t room = 0;
  int64_t excess() const { return needed - room; }
};
Shortage largestShortage(const PartitionOptions& options, const StepPrograms& step);

}  // namespace pipeshard
