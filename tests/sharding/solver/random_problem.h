// Small random problems, and their optimum by trying everything.
#pragma once

#include <cstdint>
#include <optional>

#include "sharding/solver/random.h"
#include "sharding/solver/solver.h"

namespace pipeshard {

struct RandomProblemOptions {
  int nodes = 6;
  int most_strategies = 4;
  int edges = 8;
  double forbidden = 0.1;  // share of entries of tables
  int64_t most_cost = 20;  // small: many ties
  bool memory = true;
  double tightness = 0.6;   // of the usage limit, between the least and the largest peak
  double wide_edges = 0;    // share of edges of other than two nodes
  double equal_labels = 0;  // share of edges whose ends must agree, as followers do
};

SolverProblem randomProblem(const RandomProblemOptions& options, solver::Random& random);

// The least cost of a feasible choice; none if there is none.
std::optional<Int128> bruteForce(const SolverProblem& problem);

// Forward chain, backward chain and weights, as a training step has them: every layer's values joined to the
// next and to their gradient.
SolverProblem ladder(int layers, int strategies, bool memory, solver::Random& random);

}  // namespace pipeshard
