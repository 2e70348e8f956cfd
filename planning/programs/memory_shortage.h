// How much memory a rank's worker will take, and which device has too little for it.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "partition/stages/partition_options.h"
#include "planning/programs/planned_training.h"

namespace pipeshard {

// What ranks' workers will allocate for the programs of one size of steps: their arena
// (runtime/execute/memory_plan.h) and constants, with as many threads as the description of their nodes gives
// them (1 if that says no cores): plans do not depend on the machine that makes them. Found once per kind of
// rank and number of threads, on all processors, when it is first asked for; `known` is not found again.
// Programs and cluster must outlive it.
class PlannedMemory {
 public:
  PlannedMemory(const EmittedPrograms& programs, const Cluster& cluster, MemoryOfKinds known = {})
      : programs_(programs), cluster_(cluster), known_(std::move(known)) {}

  int64_t of(RankId rank);
  ProgramBytes partsOf(RankId rank);
  const MemoryOfKinds& known() const { return known_; }

 private:
  std::pair<KindId, int> keyOf(RankId rank) const;
  void planAll();
  ProgramBytes plan(KindId kind, int threads) const;

  const EmittedPrograms& programs_;
  const Cluster& cluster_;
  MemoryOfKinds known_;
};

// The same for the steps of all sizes that a plan has programs for: whole batches, the last one (whose
// microbatches may be larger), shorter sequences. Their programs share the arena, and each has constants of
// its own. What is found is kept with the programs.
class MemoryOfSteps {
 public:
  // `planned` must outlive it.
  explicit MemoryOfSteps(PlannedTraining& planned);
  ~MemoryOfSteps();
  MemoryOfSteps(const MemoryOfSteps&) = delete;
  MemoryOfSteps& operator=(const MemoryOfSteps&) = delete;

  int64_t of(RankId rank);
  int64_t largest();

 private:
  std::vector<StepPrograms*> steps_;
  std::vector<PlannedMemory> sizes_;  // by steps_
};

// The rank that needs most beyond what it has, as --memory says or else its device's kind; with no limits
// none does: an invalid one.
struct Shortage {
  RankId rank = {};
  int64_t needed = 0;
  int64_t room = 0;
  int64_t excess() const { return needed - room; }
};
// In steps of all sizes that there are yet.
Shortage largestShortage(const PartitionOptions& options, PlannedTraining& planned);

// Of a plan: what --memory, the cluster or a stage's sharding says that a device may use.
bool limitsMemory(const Plan& plan);
// By stage, each device that needs more than that, in steps of all sizes.
struct StageShortage {
  StageId stage;
  Shortage shortage;
};
std::vector<StageShortage> shortagesOf(PlannedTraining& planned);

}  // namespace pipeshard
