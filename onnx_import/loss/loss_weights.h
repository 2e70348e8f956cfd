// Weights that only weigh a loss: of classes, of targets, of terms. A module has them as buffers, and a file
// without marks does not tell these from parameters.
#pragma once

#include <string>

#include "ir/graph/graph.h"

namespace pipeshard {

// Marks (markTakenForConstant), in a file without marks, whoever wrote it, tensors of several elements that
// only scale a square or an absolute value of a difference, which is then summed up into an output without
// axes: w in mean(w * (y - t)^2). Trained, such a loss falls by itself, without an end, as w does: no module
// does that. To be called on the graph as read, behind restoreParameters.
void takeLossWeights(Graph& graph);

// In a file without marks, a sentence that names trained tensors of several elements that are called like a
// layer's ("loss.weight"), but are read by no layer: an output without axes is linear in them (the weights of
// a cross-entropy that is written out). "" without any. To be called when the user's choice is known
// (overrideParameters), and where anything is trained.
std::string likelyLossWeights(const Graph& graph);

}  // namespace pipeshard
