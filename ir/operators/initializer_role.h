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

}  // namespace pipeshard
