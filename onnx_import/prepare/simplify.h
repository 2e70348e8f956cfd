// Nodes that do nothing, and branches that are decided. Internal to onnx_import.
#pragma once

#include "ir/graph/graph.h"

namespace pipeshard {

// Removes Identity nodes, casts to the same type and Dropout in inference mode where the names of graph
// inputs and outputs allow it; drops a Conv's bias of zeros that has no bias's shape; makes a Cast of a
// CastLike, a Gather of a GatherND that takes the same places of every row, and a Split of a SplitToSequence
// whose parts are read one by one; turns Constant nodes that hold external data into weight references; puts
// the taken branch of an If with a constant condition in its place. Returns how many nodes changed.
int simplify(Graph& graph);

}  // namespace pipeshard
