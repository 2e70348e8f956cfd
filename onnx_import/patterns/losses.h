// Log-softmax, then the negative log-likelihood: the loss of scores and labels. Logarithms of a sigmoid, of
// which binary cross-entropies of scores are made.
#pragma once

#include <optional>
#include <vector>

#include "onnx_import/patterns/match.h"

namespace pipeshard {

// In front of a NegativeLogLikelihoodLoss. `missed` as in matchActivation.
std::optional<Match> matchCrossEntropy(const PatternGraph& patterns, NodeId node,
                                       std::vector<NearMiss>& missed);

// A Log of a Sigmoid, log(sigmoid(x)) = -softplus(-x), or of 1 minus one, -softplus(x). As the exporters
// write them they are infinite, and their slopes no numbers, where the sigmoid rounds to 0 or 1: from x = 17
// on in float32. The Sigmoid stays for others that read it. A logarithm that a Clip or Max bounds stays, too:
// that is a binary cross-entropy of probabilities, whose slope vanishes there.
std::optional<Match> matchLogSigmoid(const PatternGraph& patterns, NodeId node);

}  // namespace pipeshard
