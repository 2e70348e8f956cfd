// Cross-entropies as the module has them: with label smoothing, which PyTorch's exporter drops (its mark on
// the node still has it), and with probabilities for labels, for which it writes an operator that takes class
// numbers only.
#pragma once

#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// Of a SoftmaxCrossEntropyLoss whose call has a smoothing; 0 for any other node.
double droppedSmoothing(const Node& node);

// SoftmaxCrossEntropyLoss whose labels are floating-point numbers, of the shape of the scores [N, C, ...],
// becomes what torch.nn.CrossEntropyLoss computes: -sum over C of label * log_softmax(scores), and of these
// its `reduction` (a mean over all but C). With a smoothing s that the exporter has dropped the labels are
// (1 - s) * label + s / C. To be called on the graph as read. Returns how many there were. Those with class
// weights stay, and are refused by their types when the graph is prepared.
int takeSoftLabels(Graph& graph);

// Cross-entropies of the graph as read become what the module computes: labels that are probabilities
// (takeSoftLabels), and a smoothing s that was dropped, as PyTorch has it with the node's weights w (1
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
