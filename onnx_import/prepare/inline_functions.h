// Functions of a model: their bodies in the place of their calls.
#pragma once

#include <cstdint>
#include <functional>

#include "ir/graph/graph.h"

namespace pipeshard {

// Replaces calls of model-local functions by their bodies (value and node names made unique, attribute
// references filled in, metadata of the call kept on the body's nodes), repeatedly, except functions for
// which `keep` is true. Types and shapes of the new values are not known afterwards: call inferShapes.
// Error(kBadModel) on recursion or beyond `node_limit` nodes.
void inlineFunctions(Graph& graph, uint64_t node_limit,
                     const std::function<bool(const Function&)>& keep = {});

}  // namespace pipeshard
