// Solves a stage's problem: exact elimination first (repeated blocks once), the solver for what is left.
// Internal to shard_stage.
#pragma once

#include <optional>
#include <vector>

#include "sharding/solver/solver.h"
#include "sharding/stage/sharding_problem.h"
#include "sharding/stage/stage_memory.h"

namespace pipeshard {

struct StageSolution {
  bool feasible = false;
  std::vector<int> choice;  // by variable: which of its options
  int64_t cost_ns = 0;
  int64_t lower_bound_ns = 0;
  bool optimal = false;
  std::optional<SolverInfeasibility> infeasibility;
};

// An option of a variable that must not be chosen.
struct ForbiddenOption {
  int variable;
  int option;  // position in the variable's options
};

StageSolution solveStage(const ShardingProblem& problem, const ShardStageOptions& options,
                         const std::vector<ForbiddenOption>& forbidden = {});

// With rows of memory: every kept value of the problem while it lives. What `memory` counts beside them is
// left to the caller.
StageSolution solveStageWithin(const ShardingProblem& problem, const ShardStageOptions& options,
                               const StageMemory& memory, int64_t limit,
                               const std::vector<ForbiddenOption>& forbidden = {});

}  // namespace pipeshard
