// Lets ONNX's own checker look at a Graph.
#pragma once

#include "ir/graph/graph.h"

namespace pipeshard {

// onnx.checker (full check but for shape inference of foreign domains) on a graph; throws Error(kBadModel).
void checkModel(const Graph& graph);

}  // namespace pipeshard
