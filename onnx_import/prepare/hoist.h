// Taking out of a loop's body what is the same in every trip. Internal to onnx_import.
#pragma once

#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// A body that does the same as `body` and captures what it had itself before. Copies of such a body share:
//   - weights: initializers, and Constant nodes (which may be weights in files), of the body and of the
//     subgraphs of its nodes at any depth. One parameter stays one, however many trips read it;
//   - what follows from captured values alone, as the transposed weight that a product reads, unless it is
//     random or has subgraphs.
// The initializers are added to the builder's graph, the nodes to `nodes`. Values keep their names where
// these mean nothing else, or get `prefix` before them, as all nodes do.
//   body(h): wt = Transpose(w);  y = MatMul(h, wt)     ->     wt = Transpose(w);   body(h): y = MatMul(h, wt)
Graph hoistInvariants(GraphBuilder& builder, const Graph& body, const std::string& prefix,
                      std::vector<Node>& nodes);

}  // namespace pipeshard
