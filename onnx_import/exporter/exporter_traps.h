// What an exporter has dropped of a call without a word, where its marks still tell
// (ir/graph/exporter_marks.h).
#pragma once

#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// A sentence per kind of trap:
//   a batch normalisation of a module in training mode is exported in inference mode, so it uses and keeps
//   the running statistics of the file the label smoothing of a cross-entropy is gone
// To be called on the graph as read.
std::vector<std::string> exporterTraps(const Graph& graph);

}  // namespace pipeshard
