// Problem files of the ASPLOS 2025 / EuroSys 2025 contest on intra-operator parallelism.
#pragma once

#include <string>

#include "sharding/solver/solver.h"

namespace pipeshard {

// Reads PATH, gzip or plain JSON: {"problem": {"nodes": {"intervals", "costs", "usages"}, "edges": {"nodes",
// "costs"}, "usage_limit"}}, with or without the outer "problem"; other keys are skipped. Live intervals are
// [from, to). Errors: kMissingInput if it cannot be read, kBadModel with the byte offset if it is no such
// file.
SolverProblem readIopddl(const std::string& path);

}  // namespace pipeshard
