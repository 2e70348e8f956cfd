// A graph cut into segments that run one behind the other. Internal to partition/.
#pragma once

#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

struct GraphSegment {
  std::vector<NodeId> nodes;     // of the whole graph, in its order
  std::vector<ValueId> inputs;   // values of the whole graph: its inputs, and what earlier segments hand on
  std::vector<ValueId> outputs;  // its outputs, and what later segments read
};

// `segment_of_output`, by output of the graph: the segment at whose end it is to be there, 0 to count - 1. A
// node is in the first segment that needs it; the last also has what no output needs. Nodes that only show a
// value differently (Transpose, Reshape and the like) are in each segment that needs them, so that kernels
// read what they would read in the whole graph.
std::vector<GraphSegment> cutIntoSegments(const Graph& graph, const std::vector<size_t>& segment_of_output,
                                          size_t count);

}  // namespace pipeshard
