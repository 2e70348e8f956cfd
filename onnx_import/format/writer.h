// Graph to .onnx. readModel(writeModel(g)) prints the same as g.
#pragma once

#include <string>

#include "ir/graph/graph.h"

namespace pipeshard {

// Weight references are written as external data with their location unchanged; constants inline. Writes a
// temporary file beside `path` and renames it: a reader never sees half a file. Errors: kDiskFull when it
// cannot be written.
void writeModel(const Graph& graph, const std::string& path);

// The serialised ModelProto.
std::string serializeModel(const Graph& graph);

}  // namespace pipeshard
