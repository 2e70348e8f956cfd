// Executes training steps with symbols for tensors: a symbol is a hash of the whole expression that made it,
// so two results are equal only if the same operators were applied to the same operands in the same order
// (sums included). Works for any operators; shows that Programs compute exactly what
// ir/graph/training_graph.h defines.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ir/graph/training_graph.h"
#include "partition/emit/rank_program.h"

namespace pipeshard {

// "loss", "gradient w", "parameter w", "state w.moment0": the symbol after the step.
using Symbols = std::map<std::string, uint64_t>;

// By the definition in ir/graph/training_graph.h, one entry per step.
std::vector<Symbols> executeDefinition(const TrainingGraph& training, int steps);

// The same with asynchronous updates, as docs/schedules.md defines them: a step is a window of so many
// updates of training.microbatches each; microbatch k of the window reads version versions.at(parameter)[k]
// of each parameter that is trained (how many of the window's updates it has seen). Losses and gradients are
// of each update: "loss of update 0", "gradient w of update 0".
std::vector<Symbols> executeWindows(const TrainingGraph& training, int updates,
                                    const std::map<std::string, std::vector<int>>& versions, int steps);

// The programs of all ranks, with messages in order per pair of ranks. Adds a test failure when they stop.
std::vector<Symbols> executePrograms(const std::vector<RankProgram>& ranks, int steps);

}  // namespace pipeshard
