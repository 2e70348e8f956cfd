// What a choice costs: the one checker, which knows nothing of how solve() finds one.
#pragma once

#include <cstdint>
#include <vector>

#include "sharding/solver/solver.h"

namespace pipeshard {

// What a choice costs.
struct SolverEvaluation {
  Int128 cost = 0;         // forbidden entries count with their value
  bool forbidden = false;  // it meets a forbidden cost
  Int128 peak_usage = 0;   // bytes, over all times
  int64_t peak_time = 0;   // the first time of the peak
  bool feasible = false;   // not forbidden, and within the limit
};

// Errors: kConfiguration as checkProblem, and for a choice that is not one strategy of each node.
SolverEvaluation evaluate(const SolverProblem& problem, const std::vector<int32_t>& choice);

// Checks what solve() and evaluate() ask of a problem; throws kConfiguration.
void checkProblem(const SolverProblem& problem);

}  // namespace pipeshard
