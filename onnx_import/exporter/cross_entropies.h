// Cross-entropies as the module has them: with label smoothing, which PyTorch's exporter drops (its mark on
// the node still has it), and with probabilities for labels, for which it writes an operator that takes class
// numbers only.
#pragma once

#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// Each SoftmaxCrossEntropyLoss of the graph as read becomes what the module computes.
//
// Labels that are floating-point numbers, of the shape of the scores [N, C, ...], are probabilities, as for
// torch.nn.CrossEntropyLoss: -sum over C of label * log_softmax(scores), and of these its `reduction` (a mean
// over all but C). With a smoothing s that was dropped the labels are (1 - s) * label + s / C. Those with
// class weights stay, and are refused by their types when the graph is prepared.
//
// Labels that are class numbers, with a smoothing s that was dropped, as PyTorch has it with the node's
// weights w (1 without), ignore_index and reduction:
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
