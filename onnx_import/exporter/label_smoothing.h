// The label smoothing of cross-entropies, which PyTorch's exporter drops: its mark on the node still has it.
#pragma once

#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// Of a SoftmaxCrossEntropyLoss whose call has a smoothing; 0 for any other node.
double droppedSmoothing(const Node& node);

// Cross-entropies of the graph as read become what the module computes: labels that are probabilities
// (soft_labels.h), and a smoothing s that was dropped, as PyTorch has it with the node's weights w (1
// without), ignore_index and reduction:
//
//   (1 - s) * NegativeLogLikelihoodLoss(l, labels, w) - s * u      l = LogSoftmax(scores)
//
//   "none"  u = mean over classes of w * l, 0 where the label is ignored
//   "sum"   the sum of these
//   "mean"  the sum of these, divided by the sum of w[label] of the labels that count
//
// Returns notes on smoothings that are put back, and that are not: of nodes before opset 18, or of scores
// whose rank or type is not known.
std::vector<std::string> restoreCrossEntropies(Graph& graph);

}  // namespace pipeshard
