// Graphs as text, for people and for tests.
#pragma once

#include <string>

#include "ir/graph/graph.h"

namespace pipeshard {

// The one way to print a Graph: deterministic text, one line per input, initializer and node, with types and
// shapes.
//   %h: float32[8,16] = MatMul(%x, %w) {transA=0}  # blocks.0.mlp
std::string printGraph(const Graph& graph);
std::string printAttribute(const Attribute& attribute);

}  // namespace pipeshard
