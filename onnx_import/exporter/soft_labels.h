// Cross-entropy with probabilities for labels, which PyTorch's exporter writes as an operator that takes
// class numbers only.
#pragma once

#include "ir/graph/graph.h"

namespace pipeshard {

// SoftmaxCrossEntropyLoss whose labels are floating-point numbers, of the shape of the scores [N, C, ...],
// becomes what torch.nn.CrossEntropyLoss computes: -sum over C of label * log_softmax(scores), and of these
// its `reduction` (a mean over all but C). With a smoothing s that the exporter has dropped
// (label_smoothing.h) the labels are (1 - s) * label + s / C. To be called on the graph as read. Returns how
// many there were.
// Those with class weights stay, and are refused by their types when the graph is prepared.
int takeSoftLabels(Graph& graph);

}  // namespace pipeshard
