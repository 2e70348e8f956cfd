// Executes training steps with numbers modulo 2^64 for tensors, so that sums over the batch are exact in any
// order: whoever adds up the rows, the microbatches and the devices, the results are equal, or the Programs
// are wrong. For graphs of TrainingBuilder with rows. What a value holds:
//   split      one number per row; a node gives each row a hash of its name, that row of its split operands,
//              and the others
//   sum        one number; of split operands the sum of such hashes over the rows; of sums, sums times hashes
//              of the others
//   invariant  one number, a hash of the operands
// Nodes that update parameters hash whatever they read: they see whole sums.
#pragma once

#include <functional>
#include <vector>

#include "sharding/batch/training_family.h"
#include "tests/partition/emit/symbolic_execution.h"

namespace pipeshard {

// By the definition in ir/graph/training_graph.h, one entry per step: every microbatch is run whole. `parts`:
// the rows of each.
std::vector<Symbols> executeDefinition(const TrainingFamily::Maker& maker, const std::vector<Rows>& parts,
                                       int steps);

// The programs of all ranks. Throws std::runtime_error when they stop, when a node reads what it cannot, when
// a buffer gets what its shape does not say, or when devices of a stage end with different copies.
std::vector<Symbols> executeFamilyPrograms(const std::vector<RankProgram>& ranks, int steps);

}  // namespace pipeshard
