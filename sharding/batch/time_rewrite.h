// Graph rewrites of the time axis. Internal to time_axis.
#pragma once

#include <vector>

#include "ir/graph/graph.h"
#include "sharding/batch/time_kinds.h"

namespace pipeshard {

// SoftmaxCrossEntropyLoss or NegativeLogLikelihoodLoss with reduction "mean" whose denominator depends on the
// labels (ignored labels or class weights): the same with reduction "sum", the nodes that compute the
// denominator from the labels, and the division. Adds values to the graph, but no nodes: the result, in
// topological order, takes the node's place and gives the same outputs. Empty when the node is none of this.
//   sum of w[label] over labels that are not ignored     (0/0 = NaN when all are ignored, as in ONNX)
std::vector<Node> expandMeanLoss(GraphBuilder& builder, const Node& node);

// Nodes that compute the parts of totals become the prologue's own: those that the rest of the graph needs
// too (its outputs, and `results`) are copied, and the parts are taken from the copies. Extends `facts` for
// the new values.
void separatePrologue(GraphBuilder& builder, const std::vector<ValueId>& results,
                      std::vector<PrologueTotal>& totals, TimeFactsTable& facts);

// Of `constants` (WantedValues), those that the nodes behind the parts read are marked as not trained: every
// device reads such a weight whole, which has no gradient and no state.
void freezeForPrologue(Graph& graph, const std::vector<PrologueTotal>& totals,
                       const std::vector<ValueId>& constants);

}  // namespace pipeshard
