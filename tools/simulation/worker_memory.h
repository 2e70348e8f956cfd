// What the workers of a plan directory's ranks allocate when they train.
#pragma once

#include <cstdint>
#include <functional>

#include "ir/base/ids.h"
#include "ir/program/program_set.h"
#include "runtime/execute/rank_image.h"

namespace pipeshard {

// As StepRunner has them: the programs of all sizes share the arena, and each has constants of its own.
// Without an evaluation.
struct WorkerMemory {
  int64_t arena_bytes = 0;
  int64_t constant_bytes = 0;
};

// By rank. `whole`: the folder's programs of whole batches; `threads`: how many the rank's worker has. Found
// once per kind and number of threads, on all processors. Errors as ProgramFolder and Executor, naming the
// rank.
IdVector<RankId, WorkerMemory> memoryOfWorkers(ProgramFolder& folder, const ProgramSet& whole,
                                               const std::function<int(RankId)>& threads);

}  // namespace pipeshard
