// One training step at different numbers of rows: which values correspond, and the step at one row.
// Internal to training_family.
#pragma once

#include <vector>

#include "ir/graph/training_graph.h"

namespace pipeshard {

struct SizedTraining {
  const TrainingGraph& training;
  int64_t rows;
};

// By value index of `base`: the value of `other` with the same place. Nodes are matched by position, all else
// by name. Error(kBadModel) when the nodes differ.
std::vector<ValueId> matchValues(const SizedTraining& base, const SizedTraining& other);

// The step at fewer rows than `base`, which is at least 2. Gradients depend on which sizes are 1 (a broadcast
// axis), so the graph of a single row is not made as others are: it is the base with all sizes adapted. Every
// size in the graph (axes of values, constants that hold sizes) grows by the same amount per row, so two
// members tell it for all. A number is a share of the batch, which grows with the rows, or the divisor of a
// mean, which shrinks with them.
//   Reshape to [2*16, 8] at 2 rows and [3*16, 8] at 3 rows is Reshape to [16, 8] at 1 row.
// Errors: kBadModel when nodes differ, a constant is no size, or a number follows the rows in another way.
TrainingGraph trainingOfRows(const SizedTraining& base, const SizedTraining& longer, int64_t rows);

}  // namespace pipeshard
