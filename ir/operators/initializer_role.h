// What the initializers of a graph are to training: decided here, for all who ask.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

enum class InitializerRole : uint8_t {
  kNone,       // no initializer
  kParameter,  // trained
  kFrozen,     // a weight that the user does not train, or computed from one
  kBuffer,     // the exporter marks it as a buffer or constant
  kConstant,   // a number or mask of the arithmetic, computed from constants, or called like a buffer
  kSetting,    // a limit, size, place, statistic: no weight, whatever it holds
  kUnclear,    // nothing tells: it may be a parameter, but no operator reads it where weights are
};

// By value index. The heuristic for files without marks is documented in the source. On the graph as read,
// what only a subgraph reads is kUnclear; on a prepared graph kUnclear is read by arithmetic.
std::vector<InitializerRole> initializerRoles(const Graph& graph);

// An additive mask, by the numbers that it holds.
bool looksLikeMask(const Constant& constant);

// What batch normalisations in training mode read as their running mean and variance: initializers of the
// file, also where views and casts hand them on. They change with every microbatch. Each once.
std::vector<ValueId> runningStatistics(const Graph& graph);

// Marks what is a parameter by its place alone (the slope of a PRelu of one element), which stays one when an
// operator is lowered or rewritten.
void keepLayerWeights(Graph& graph);

}  // namespace pipeshard
