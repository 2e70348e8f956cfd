// What planning makes: the plan, the training step, and every rank's program.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ir/graph/training_graph.h"
#include "ir/plan/plan.h"
#include "partition/cut/shard_stages.h"
#include "partition/emit/rank_program.h"

namespace pipeshard {

// What a worker allocates for its program, in bytes.
struct ProgramBytes {
  int64_t arena = 0;
  int64_t constants = 0;
};

// By kind of rank and threads.
using MemoryOfKinds = std::map<std::pair<KindId, int>, ProgramBytes>;

// A training step, cut up.
struct StepPrograms {
  EmittedPrograms ranks;
  RankProgram reference;      // the same step on one device
  MemoryOfKinds memory = {};  // of the ranks, as far as it was planned (planning/programs/memory_shortage.h)
};

struct PlannedTraining {
  Plan plan;
  std::string trains;                 // for people: trainedSummary of the model, or that it is evaluated
  TrainingGraph training;             // of the largest microbatch
  StepPrograms whole;                 // no ranks: only a plan was asked for (PlanRequest::programs)
  std::optional<StepPrograms> last;   // of the shorter batch that ends an epoch
  std::vector<StepPrograms> shorter;  // of shorter sequences: by Plan::shorter_lengths
  // the gradients as the model was exported with (planning/programs/imported_gradients.h)
  std::optional<RankProgram> imported;
  std::vector<StageCombinations> combinations;  // with --method exhaustive
};

}  // namespace pipeshard
