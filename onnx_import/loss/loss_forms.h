// What the model has made of a prediction before a loss reads it: a loss of scores would do it a second time.
// Internal to onnx_import/loss.
#pragma once

#include <string>
#include <vector>

#include "ir/graph/graph.h"
#include "ir/plan/loss_spec.h"

namespace pipeshard {

// Error(kUsage) with the remedy where `prediction` is of another form than the term's kind reads, through
// nodes that change no number (Identity, Cast, Reshape of its elements):
//   cross-entropy or nll of a Softmax over the classes, bce-with-logits of a Sigmoid
// A cross-entropy of a LogSoftmax is left: it is the same number.
void checkLossForm(const Graph& graph, const LossTerm& term, ValueId prediction);

// "cross-entropy:LOGITS,labels", "mse:OUTPUT,target": the losses that could be meant for an output of the
// model that is no scalar, the likeliest first; cross-entropy names what a Softmax reads.
std::vector<std::string> likelyLosses(const Graph& graph, ValueId output);

}  // namespace pipeshard
